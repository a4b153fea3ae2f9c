"""The watcher of Hypervisor objects as a process, and another that stands in for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.hypervisors.watcher import LEASE
from config.launcher.processes import Child
from hosts.models import Host
from journal.models import Lease
from tests.bridge.hypervisor_objects import hypervisor_object
from tests.bridge.hypervisor_writer import PATIENCE_SECONDS, Objects, awaited
from tests.bridge.serving import served
from tests.e2e.processes import process_environment
from tests.kube.server import Cluster

#: Processes start, on a machine that does much else.
SECONDS = 3 * PATIENCE_SECONDS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


@contextmanager
def watchers(cluster: Cluster, directory: Path, count: int) -> Iterator[list[Child]]:
    """Run watchers beside each other."""
    environment = process_environment(
        directory,
        HEADROOM_HYPERVISORS__SYNC="import",
        HEADROOM_HYPERVISORS__KUBECONFIG=str(cluster.kubeconfig),
        HEADROOM_HYPERVISORS__GATHER_SECONDS="0",
        HEADROOM_HYPERVISORS__METRICS_PORT="0",
        HEADROOM_ALLOCATION_SOURCE="hypervisor",
        HEADROOM_PROCESS="worker",
    )
    with served("hypervisors", environment, directory, count) as children:
        yield children


def test_another_takes_over_from_one_that_was_killed(api_server: Cluster, tmp_path: Path) -> None:
    objects = Objects(api_server)
    objects.define()
    objects.put(hypervisor_object("node1"))
    with watchers(api_server, tmp_path, count=2) as children:
        awaited(lambda: Host.objects.filter(name="node1").exists(), seconds=SECONDS)
        holder = Lease.objects.get(name=LEASE).holder
        (leader,) = (one for one in children if f":{one.process.pid}:" in holder)
        os.kill(leader.process.pid, signal.SIGKILL)
        objects.put(hypervisor_object("node2"))
        awaited(lambda: Host.objects.filter(name="node2").exists(), seconds=SECONDS)
        assert Lease.objects.get(name=LEASE).holder != holder
        (other,) = (one for one in children if one is not leader)
        os.kill(other.process.pid, signal.SIGTERM)
        assert other.process.wait(SECONDS) == 0
    objects.close()
