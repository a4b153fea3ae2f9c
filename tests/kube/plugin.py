"""Fixtures of a real Kubernetes API server, for every test that asks for one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.programs import NoGoError, built
from tests.kube.server import ApiServer, Cluster, start_api_server


@pytest.fixture(scope="session")
def own_api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One of our own, whatever ``KUBECONFIG`` says, for tests that stop it."""
    try:
        programs = built()
    except NoGoError as problem:
        pytest.skip(str(problem))
    server = start_api_server(programs, tmp_path_factory.mktemp("kube"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def api_server(request: pytest.FixtureRequest) -> Cluster:
    """The cluster of ``KUBECONFIG``, else one of our own."""
    given = os.environ.get("KUBECONFIG")
    if given:
        return Cluster(kubeconfig=Path(given))
    return request.getfixturevalue("own_api_server")  # type: ignore[no-any-return]  # pytest's
