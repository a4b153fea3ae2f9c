from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import WebServer


@pytest.fixture
def web(transactional_db: None, tmp_path: Path) -> Iterator[WebServer]:
    """The web server on the test database; what is left of it is killed at the end."""
    del transactional_db
    with WebServer(directory=tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def lasting_web(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebServer]:
    """A web server for tests that count nothing of it, nor end it."""
    del django_db_setup
    with WebServer(directory=tmp_path_factory.mktemp("lasting")) as server:
        yield server
