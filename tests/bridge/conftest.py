"""A cluster that knows our kinds, empty of their objects, and settings that lead to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bridge.conf import BridgeCluster, BridgeSettings
from bridge.domain.kinds import PLURALS, Naming
from bridge.hypervisors import allocated
from bridge.kube.client import ClusterClient
from bridge.kube.definitions import load_definitions
from capacity import hooks
from tests.bridge.mirrors import SECONDS, install_kinds
from tests.kube.server import Cluster


@pytest.fixture(scope="session")
def kinds(api_server: Cluster) -> Cluster:
    client = ClusterClient(
        kubeconfig=api_server.kubeconfig, context="", timeout_seconds=SECONDS, threads=2
    )
    install_kinds(client, load_definitions(Naming()))
    client.close()
    return api_server


@pytest.fixture
def cluster(kinds: Cluster, settings: Any) -> Iterator[Cluster]:
    chosen = BridgeSettings(
        clusters=(BridgeCluster(name="test", kubeconfig=kinds.kubeconfig),),
        request_timeout_seconds=SECONDS,
        host_interval_seconds=0.0,
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"bridge": chosen})
    yield kinds
    every = ",".join(f"{plural}.cortex.cloud" for plural in PLURALS.values())
    kinds.kubectl("delete", every, "--all", "--wait=false")


@pytest.fixture
def takes_objects(settings: Any) -> Iterator[Any]:
    """Settings with which Hypervisor objects say what hosts are and what VMs take on them."""
    use(settings, sync="import", gather_seconds=0.0)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": allocated.NAME})
    before = hooks.allocation_sources()
    hooks.add_allocation_source(allocated.NAME, allocated.SOURCE)
    yield settings
    hooks._allocation_sources.clear()
    hooks._allocation_sources.update(before)


def use(settings: Any, **fields: Any) -> None:
    """Change settings of Hypervisor objects."""
    chosen = settings.HEADROOM.hypervisors.model_copy(update=fields)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"hypervisors": chosen})
