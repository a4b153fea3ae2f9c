"""A real openstack-placement behind the gateway, and a link to it that can be cut."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from config.launcher.demo import ADDRESS, choose_port
from config.launcher.peers import ensure_peer, start_reference
from config.launcher.places import this_checkout
from config.launcher.processes import stop_children, wait_until
from config.sections_gateway import GatewaySettings
from tests.e2e.placement_peers import PlacementServer
from tests.placement.client import PlacementClient, placement_settings
from tests.placement.gateway.cutting import CutLink

MOUNT = "/placement"
PATIENCE_SECONDS = 60.0

MakeGateway = Callable[..., PlacementClient]


@pytest.fixture(scope="session")
def reference_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    directory: Path = tmp_path_factory.mktemp("upstream")
    port = choose_port(0)
    child = start_reference(
        ensure_peer(this_checkout()),
        directory,
        port=port,
        database_url=f"sqlite:///{directory}/placement.sqlite",
        environ={"PATH": os.environ["PATH"]},
        mount=MOUNT,
    )

    def answers() -> bool:
        try:
            with urlopen(f"http://{ADDRESS}:{port}{MOUNT}/") as response:
                return bool(response.status == 200)
        except URLError:
            return False

    assert wait_until(answers, PATIENCE_SECONDS), child.log.read_text()[-2000:]
    yield port
    stop_children([child], ((15, 10.0),))


@pytest.fixture
def theirs(reference_port: int) -> Iterator[PlacementServer]:
    """The other Placement itself, empty."""
    server = PlacementServer(port=reference_port, prefix=MOUNT)
    server.wipe()
    yield server
    server.close()


@pytest.fixture
def cut(reference_port: int) -> Iterator[CutLink]:
    """What the gateway takes for the other Placement."""
    with CutLink(reference_port) as link:
        yield link


@pytest.fixture
def gateway(settings: Any, cut: CutLink, theirs: PlacementServer) -> MakeGateway:
    """Make a client of a gateway whose groups are all in a mode."""
    del theirs

    def make(mode: str = "hybrid", **fields: Any) -> PlacementClient:
        placement_settings(settings)
        groups = {str(group): mode for group in fields.pop("groups", ALL)}
        section = GatewaySettings(
            modes={**groups, **fields.pop("modes", {})},
            token="admin",
            **{
                "upstream_url": f"http://{ADDRESS}:{cut.port}{MOUNT}",
                "timeout_seconds": 5,
                "most_failures": 1000,
                **fields,
            },
        )
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"gateway": section})
        return PlacementClient(X_Roles="admin,service")

    return make


ALL = (
    "root",
    "resourceProviders",
    "traits",
    "resourceProviderTraits",
    "resourceClasses",
    "inventories",
    "aggregates",
    "allocations",
    "usages",
    "allocationCandidates",
    "reshaper",
)
