"""The database in a real cluster, object by object, whatever happens in between."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from bridge.conf import BridgeCluster
from bridge.domain.kinds import Kind
from bridge.models import MirrorState
from bridge.services.compare import compare, list_objects
from bridge.services.drain import Drain
from bridge.services.follow import CONSUMER
from capacity.models import Reservation, ReservationAllocation
from commitments.models import Commitment, InstanceAssignment
from failover.models import FailoverReservation
from journal.clock import database_now
from journal.models import LogConsumer, LoggedChange, PrunedLog
from journal.pruning import prune_logs
from tests.bridge.mirrors import assert_equal, converge, objects
from tests.factories import (
    make_assignment,
    make_commitment,
    make_group_capacity,
    make_host,
    make_quota,
    make_reservation,
    make_slot,
    make_vm,
)
from tests.killing import MOST_STATEMENTS, run_in_child
from tests.kube.server import Cluster

pytestmark = pytest.mark.django_db(transaction=True)


def fill(commitments: int = 2) -> list[Commitment]:
    host, other = make_host("h1"), make_host("h2")
    made = []
    for number in range(commitments):
        row = make_commitment(creator_request_id=f"req-{number}")
        slot = make_slot(row, host)
        vm = make_vm(host=host, slot=slot)
        make_assignment(row, vm)
        made.append(row)
    held = make_reservation(other, is_ready=True, flavor_group_name="hana_1")
    FailoverReservation.objects.create(reservation=held, name="failover-az-a-abcde")
    placed: dict[str, Any] = {
        "vm_uuid": "v1",
        "placement_id": "00000000-0000-0000-0000-000000000001",
    }
    make_reservation(
        other, kind="in_flight", end_time=timezone.now() + timedelta(minutes=15), **placed
    )
    make_group_capacity()
    make_quota()
    return made


def versions(cluster: Cluster) -> dict[tuple[Kind, str], str]:
    return {key: item["metadata"]["resourceVersion"] for key, item in objects(cluster).items()}


def name_of(row: Commitment) -> str:
    return f"cres/commitment-{row.commitment_uuid}"


def test_every_kind_is_mirrored_and_a_second_look_writes_nothing(cluster: Cluster) -> None:
    fill()
    converge()
    assert_equal(cluster)
    before = versions(cluster)
    LogConsumer.objects.update(position="")
    converge()
    assert versions(cluster) == before


def test_kubectl_waits_for_what_was_accepted(cluster: Cluster) -> None:
    first, second = fill()
    Commitment.objects.filter(pk=second.pk).update(generation=7)
    converge()
    cluster.kubectl("wait", "--for=condition=Ready", name_of(first), "--timeout=5s")
    said = cluster.kubectl("get", name_of(second), "-o", "wide")
    assert "16Gi" in said
    assert "Accepted" in said
    item = objects(cluster)[Kind.COMMITTED_RESOURCE, f"commitment-{second.commitment_uuid}"]
    assert "observedGeneration" not in item["status"]
    assert cluster.kubectl(
        "get", "resv", "-l", "reservations.cortex.cloud/type=failover", "-o", "name"
    ) == ("reservation.cortex.cloud/failover-az-a-abcde\n")


def test_only_what_changed_is_written(cluster: Cluster) -> None:
    first, _ = fill()
    converge()
    before = versions(cluster)
    Commitment.objects.filter(pk=first.pk).update(requested_amount=5 << 30, generation=2)
    Commitment.objects.update(last_reconcile_at=timezone.now())
    converge()
    after = versions(cluster)
    changed = {key for key, version in after.items() if before[key] != version}
    assert changed == {(Kind.COMMITTED_RESOURCE, f"commitment-{first.commitment_uuid}")}
    assert_equal(cluster)


def test_parts_that_come_and_go_are_followed(cluster: Cluster) -> None:
    first, second = fill()
    converge()
    InstanceAssignment.objects.filter(commitment=first).delete()
    ReservationAllocation.objects.filter(reservation__commitment=second).delete()
    FailoverReservation.objects.update(acknowledged_at=timezone.now())
    make_vm(host=make_host("h3"), slot=Reservation.objects.get(kind="failover"))
    converge()
    assert_equal(cluster)


def test_what_is_gone_is_deleted_and_a_name_may_come_back(cluster: Cluster) -> None:
    first, second = fill()
    converge()
    slot = Reservation.objects.get(commitment=first)
    ReservationAllocation.objects.filter(reservation=slot).delete()
    slot.delete()
    make_slot(first, make_host("h4"), index=0, memory_gib=8)
    ReservationAllocation.objects.filter(reservation__commitment=second).delete()
    Reservation.objects.filter(commitment=second).delete()
    converge()
    assert_equal(cluster)


def test_the_bridge_was_off_and_the_log_is_gone(cluster: Cluster) -> None:
    first, second = fill()
    converge()
    Commitment.objects.filter(pk=first.pk).update(requested_amount=3 << 30, generation=2)
    ReservationAllocation.objects.filter(reservation__commitment=second).delete()
    Reservation.objects.filter(commitment=second).delete()
    LoggedChange.objects.all().delete()
    xid = "SELECT pg_current_xact_id()::text::bigint"
    with connection.cursor() as cursor:
        cursor.execute(xid)
        ((now,),) = cursor.fetchall()
    PrunedLog.objects.update_or_create(log="deletions", defaults={"pruned_xid": now})
    converge()
    assert_equal(cluster)


def test_the_log_waits_for_the_bridge_but_not_for_ever(cluster: Cluster) -> None:
    """Of transactions long ago: pruning waits for those that run now, also of other databases."""
    first, _ = fill()
    converge()
    consumer = LogConsumer.objects.filter(name=CONSUMER)
    assert consumer.update(position="10:10:") == 1
    LoggedChange.objects.all().delete()
    Commitment.objects.filter(pk=first.pk).update(requested_amount=3 << 30)
    assert LoggedChange.objects.update(changed_xid=10) == 1
    late = timezone.now() + timedelta(days=2)
    assert prune_logs(now=late)["deletions"] == 0
    much_later = timezone.now() + timedelta(days=8)
    assert prune_logs(now=much_later)["deletions"] == 1
    consumer.delete()
    Commitment.objects.filter(pk=first.pk).update(requested_amount=4 << 30)
    assert LoggedChange.objects.update(changed_xid=10) == 1
    assert prune_logs(now=late)["deletions"] == 1


@pytest.mark.parametrize("restores", [True, False])
def test_edits_by_hand_are_restored_or_told(
    cluster: Cluster, settings: Any, restores: bool
) -> None:
    first, second = fill()
    policy = "restore" if restores else "report"
    chosen = settings.HEADROOM.bridge.model_copy(update={"hand_edits": policy})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"bridge": chosen})
    converge()
    edit = json.dumps({"spec": {"amount": "1Gi"}})
    cluster.kubectl("patch", name_of(first), "--type=merge", "-p", edit)
    cluster.kubectl("delete", name_of(second))
    converge()
    drifted = MirrorState.objects.filter(drifts=1)
    assert drifted.count() == 2
    told = json.loads(cluster.kubectl("get", "events", "-o", "json"))["items"]
    said = {
        (one["involvedObject"]["name"], one["message"])
        for one in told
        if one["reason"] == "HandEdited"
    }
    assert said >= {  # Events of other tests stay
        (name_of(first).partition("/")[2], "changed by kubectl-patch"),
        (name_of(second).partition("/")[2], "deleted, though not by Headroom"),
    }
    if restores:
        assert_equal(cluster)
        return
    assert drifted.exclude(drifted_at=None).count() == 2
    assert cluster.get(name_of(first))["spec"]["amount"] == "1Gi"


def test_what_is_written_while_a_cluster_is_listed_is_no_drift(cluster: Cluster) -> None:
    first, second = fill()
    converge()
    drain = Drain()
    writer = drain.ways["test"].open()
    listed = list_objects(writer, database_now())
    Commitment.objects.filter(pk=first.pk).update(requested_amount=5 << 30)
    converge()
    assert compare(writer, "test", listed) == 0
    edit = json.dumps({"spec": {"amount": "1Gi"}})
    cluster.kubectl("patch", name_of(second), "--type=merge", "-p", edit)
    assert compare(writer, "test", list_objects(writer, database_now())) == 1
    drain.close()


def test_an_object_of_another_is_left_alone(cluster: Cluster) -> None:
    (first,) = fill(1)
    converge()
    item = cluster.get(name_of(first))
    cluster.kubectl("delete", name_of(first))
    foreign = {key: item[key] for key in ("apiVersion", "kind", "spec")}
    foreign["metadata"] = {"name": item["metadata"]["name"]}
    foreign["spec"]["amount"] = "1Gi"
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(foreign))
    Commitment.objects.filter(pk=first.pk).update(requested_amount=5 << 30)
    converge()
    state = MirrorState.objects.get(kind=Kind.COMMITTED_RESOURCE)
    assert "not ours" in state.error
    assert cluster.get(name_of(first))["spec"]["amount"] == "1Gi"


def test_an_object_that_is_refused_holds_up_nothing(cluster: Cluster) -> None:
    first, second = fill()
    Commitment.objects.filter(pk=first.pk).update(ready_message="x" * 40_000)
    converge()
    states = {
        state.source_id: state for state in MirrorState.objects.filter(kind="CommittedResource")
    }
    assert "Too long" in states[first.pk].error
    assert states[second.pk].written_at is not None
    Commitment.objects.filter(pk=first.pk).update(ready_message="fits")
    converge()
    assert_equal(cluster)


def test_transitions_are_told_by_events_once(cluster: Cluster) -> None:
    first, _ = fill()
    converge()
    assert cluster.kubectl("events", "--for", name_of(first)) == ""
    moment = timezone.now()
    change = {"ready_status": False, "ready_reason": "Rejected", "ready_message": "no room"}
    Commitment.objects.filter(pk=first.pk).update(**change, ready_changed_at=moment)
    Reservation.objects.filter(kind="failover").update(is_ready=False, ready_changed_at=moment)
    converge()
    LogConsumer.objects.update(position="")
    converge()
    said = cluster.kubectl("events", "--for", name_of(first))
    assert said.count("no room") == 1
    assert "Rejected" in said
    lost = cluster.kubectl("events", "--for", "resv/failover-az-a-abcde")
    assert lost.count("FailoverLost") == 1


def test_zones_go_to_their_clusters_and_may_move(
    cluster: Cluster, settings: Any, tmp_path: Path
) -> None:
    fill()
    converge()
    away = BridgeCluster(name="away", kubeconfig=tmp_path / "none", zones=("az-b",))
    here = BridgeCluster(name="test", kubeconfig=cluster.kubeconfig, zones=("az-a",))
    chosen = settings.HEADROOM.bridge.model_copy(update={"clusters": (here, away)})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"bridge": chosen})
    lost = make_commitment(zone="az-b")
    nowhere = make_commitment(zone="az-c")
    found = make_commitment(zone="az-a")
    converge()
    states = {
        state.source_id: state for state in MirrorState.objects.filter(kind=Kind.COMMITTED_RESOURCE)
    }
    assert (states[lost.pk].cluster, states[lost.pk].is_due) == ("away", True)
    assert "no cluster" in states[nowhere.pk].error
    assert states[found.pk].written_at is not None


def test_it_converges_wherever_it_was_killed(cluster: Cluster) -> None:
    first, second = fill()
    for number in range(1, MOST_STATEMENTS):
        Commitment.objects.filter(pk=first.pk).update(requested_amount=(number + 1) << 30)
        ReservationAllocation.objects.filter(reservation__commitment=second).delete()
        make_vm(host=make_host(f"k{number}"), slot=Reservation.objects.get(commitment=second))
        if run_in_child(converge, number):
            break
    else:
        raise AssertionError("it never finished")
    assert number > 10
    converge()
    assert_equal(cluster)
    assert not MirrorState.objects.exclude(drifts=0).exists()
