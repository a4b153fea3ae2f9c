"""The bridge as a process, with a cluster that goes away and a bridge that is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db.models import F

from bridge.conf import BridgeCluster, BridgeSettings
from bridge.domain.kinds import PLURALS, Naming, ObjectKind
from bridge.kube.client import ClusterClient
from bridge.kube.definitions import load_definitions
from bridge.models import MirrorState
from commitments.models import Commitment
from config.launcher.processes import Child, wait_until
from journal.clock import database_now
from journal.models import Lease
from tests.bridge.mirrors import SECONDS, assert_equal, install_kinds, objects, rows
from tests.bridge.serving import served
from tests.e2e.processes import process_environment
from tests.factories import make_commitment, make_host, make_slot
from tests.kube.server import ApiServer

OFF = 500
BATCH = OFF // 5  # so that a kill at a quarter is in the middle of them
LONG_SECONDS = 10 * SECONDS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


@pytest.fixture
def own(own_api_server: ApiServer, settings: Any) -> Iterator[ApiServer]:
    client = ClusterClient(
        kubeconfig=own_api_server.kubeconfig, context="", timeout_seconds=SECONDS, threads=2
    )
    install_kinds(client, load_definitions(Naming()))
    client.close()
    clusters = (BridgeCluster(name="test", kubeconfig=own_api_server.kubeconfig),)
    chosen = BridgeSettings(clusters=clusters)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"bridge": chosen})
    yield own_api_server
    every = ",".join(f"{plural}.cortex.cloud" for plural in PLURALS.values())
    own_api_server.kubectl("delete", every, "--all", "--wait=false")


@contextmanager
def bridges(server: ApiServer, directory: Path, count: int = 1) -> Iterator[list[Child]]:
    """Run bridges beside each other."""
    clusters = [{"name": "test", "kubeconfig": str(server.kubeconfig)}]
    environment = process_environment(
        directory,
        HEADROOM_BRIDGE__CLUSTERS=json.dumps(clusters),
        HEADROOM_BRIDGE__METRICS_PORT="0",
        HEADROOM_BRIDGE__BATCH_ROWS=str(BATCH),
        HEADROOM_BRIDGE__REQUEST_TIMEOUT_SECONDS="5",
        HEADROOM_BRIDGE__COMPARE_INTERVAL_SECONDS="1",
        HEADROOM_PROCESS="worker",
    )
    with served("bridge", environment, directory, count) as children:
        yield children


def is_mirrored(count: int) -> Callable[[], bool]:
    def looked() -> bool:
        written = MirrorState.objects.filter(is_due=False).exclude(written_at=None)
        return written.count() == MirrorState.objects.count() == count

    return looked


def test_a_cluster_that_restarts_gets_what_happened_meanwhile(
    own: ApiServer, tmp_path: Path
) -> None:
    host = make_host("h1")
    rows = [make_commitment() for _ in range(20)]
    with bridges(own, tmp_path):
        assert wait_until(is_mirrored(21), SECONDS)
        own.stop()
        for row in rows[:10]:
            make_slot(row, host)
        Commitment.objects.filter(pk=rows[15].pk).delete()
        assert wait_until(lambda: MirrorState.objects.filter(is_due=True).exists(), SECONDS)
        own.start()
        assert wait_until(is_mirrored(30), 2 * SECONDS)
        assert_equal(own)
        own.kubectl("delete", f"cres/commitment-{rows[0].commitment_uuid}")
        assert wait_until(lambda: MirrorState.objects.filter(drifts=1).exists(), SECONDS)
        assert wait_until(is_mirrored(30), SECONDS)
        assert_equal(own)


def test_what_happened_while_the_bridge_was_off_and_killed_is_all_there(
    own: ApiServer, tmp_path: Path
) -> None:
    """500 objects that came, changed and went: equal one by one, though killed in between."""
    first = make_commitment()
    fields = {
        field.attname: getattr(first, field.attname)
        for field in Commitment._meta.concrete_fields
        if not field.primary_key and not field.generated
    }
    Commitment.objects.bulk_create(
        Commitment(**{**fields, "commitment_uuid": str(uuid4()), "creator_request_id": f"{n}"})
        for n in range(OFF - 1)
    )
    with bridges(own, tmp_path) as (child,):
        assert wait_until(lambda: written() >= OFF // 4, LONG_SECONDS)
        os.kill(child.process.pid, signal.SIGKILL)
    # Half of those that go were being written: the cluster has some, and nobody noted their names.
    states = MirrorState.objects.order_by("due_at", "id").values_list("source_id", flat=True)
    part = OFF // 20
    going = [*states.filter(name="")[:part], *states.exclude(name="")[:part]]
    Commitment.objects.filter(pk__in=going).delete()
    for _ in range(2):
        Commitment.objects.update(requested_amount=F("requested_amount") + (1 << 30))
    Lease.objects.all().delete()  # as after the time in which nobody renewed it
    began = database_now()
    with bridges(own, tmp_path) as (child,):
        assert wait_until(lambda: written(began) >= OFF // 4, LONG_SECONDS)
        os.kill(child.process.pid, signal.SIGKILL)
    Lease.objects.all().delete()
    with bridges(own, tmp_path):
        assert wait_until(is_mirrored(OFF - OFF // 10), LONG_SECONDS)
        # The first comparison finds what nobody noted.
        assert wait_until(lambda: objects(own).keys() == rows().keys(), LONG_SECONDS)
    assert_equal(own)
    assert not MirrorState.objects.exclude(drifts=0).exists()


def written(since: datetime | None = None) -> int:
    states = MirrorState.objects.exclude(written_at=None)
    return (states.filter(written_at__gt=since) if since else states).count()


def test_another_takes_over_from_one_that_was_killed(own: ApiServer, tmp_path: Path) -> None:
    make_commitment()
    with bridges(own, tmp_path, count=2) as children:
        assert wait_until(is_mirrored(1), SECONDS)
        holder = Lease.objects.get(name="bridge").holder
        (leader,) = (one for one in children if f":{one.process.pid}:" in holder)
        os.kill(leader.process.pid, signal.SIGKILL)
        last = make_commitment(state="pending")
        assert wait_until(is_mirrored(2), SECONDS)
        assert Lease.objects.get(name="bridge").holder != holder
        found = own.get(f"{ObjectKind.COMMITTED_RESOURCE.plural}.cortex.cloud")["items"]
        assert f"commitment-{last.commitment_uuid}" in {one["metadata"]["name"] for one in found}
    assert_equal(own)
