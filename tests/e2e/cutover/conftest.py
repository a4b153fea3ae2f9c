from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from placement.cutover import switching
from tests.e2e.cutover.driving import (
    LONG_AGO,
    TIMEOUT_SECONDS,
    execute,
    forget_peer,
    gateway_client,
    step,
    wait_for_mirror,
)
from tests.e2e.cutover.halves import CONSUMERS, HOSTS
from tests.e2e.placement_peers import MOUNT, PlacementServer
from tests.e2e.processes import ALONE, OPEN, WebServer
from tests.e2e.upstream_placement import UpstreamPlacement, running_upstream
from tests.e2e.write_load import make_cloud
from tests.placement.client import PlacementClient


@pytest.fixture(scope="module")
def upstream(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[UpstreamPlacement]:
    del django_db_setup
    with running_upstream(tmp_path_factory.mktemp("upstream")) as running:
        yield running
        forget_peer()


@pytest.fixture
def _gateway(settings: Any, upstream: UpstreamPlacement) -> Iterator[None]:
    """Give this process the settings of a gateway."""
    gateway = settings.HEADROOM.gateway.model_copy(
        update={
            "upstream_url": upstream.url,
            "token": SecretStr("admin"),
            "timeout_seconds": TIMEOUT_SECONDS,
        }
    )
    placement = settings.HEADROOM.placement.model_copy(update={"host_providers": False})
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={"gateway": gateway, "placement": placement, "auth": "noauth"}
    )
    yield
    wait_for_mirror()


@pytest.fixture
def webs(
    transactional_db: None, tmp_path: Path, upstream: UpstreamPlacement
) -> Iterator[list[WebServer]]:
    """Two web servers on one database."""
    del transactional_db
    overrides = {**OPEN, **ALONE, **upstream.settings(timeout_seconds=str(TIMEOUT_SECONDS))}
    servers = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        servers.append(WebServer(directory=tmp_path / name, overrides=overrides))
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.end()


@pytest.fixture
def theirs(upstream: UpstreamPlacement) -> Iterator[PlacementServer]:
    server = PlacementServer(port=upstream.port, prefix=MOUNT)
    yield server
    server.close()


@pytest.fixture
def _nobody_wrote_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copying begin at once: nothing was handed on before it."""
    monkeypatch.setattr(switching, "seconds_of_old_writes", lambda: 0.0)


@pytest.fixture
def client(
    transactional_db: None,
    _gateway: None,
    _nobody_wrote_before: None,
    upstream: UpstreamPlacement,
) -> PlacementClient:
    """A client of a cloud that is copied."""
    del transactional_db
    upstream.fill(make_cloud(HOSTS, CONSUMERS))
    step("copy")
    execute(LONG_AGO)
    return gateway_client()
