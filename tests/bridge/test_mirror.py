"""The database in a real cluster, object by object, whatever happens in between."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from bridge.conf import BridgeCluster
from bridge.domain.kinds import ObjectKind
from bridge.domain.quantities import timestamp
from bridge.kube.client import ClusterClient, ObjectRefused
from bridge.models import MirrorState
from bridge.services.compare import compare
from bridge.services.drain import Drain
from bridge.services.follow import CONSUMER
from capacity.models import HostCapacity, Reservation, ReservationAllocation
from commitments.models import Commitment, InstanceAssignment
from failover.models import FailoverReservation
from hosts.models import Host
from journal.models import LogConsumer, LoggedChange, PrunedLog
from journal.pruning import prune_logs
from tests.bridge.mirrors import assert_equal, converge, listed_kind, mirroring, objects
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


def versions(cluster: Cluster) -> dict[tuple[ObjectKind, str], str]:
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
    item = objects(cluster)[ObjectKind.COMMITTED_RESOURCE, f"commitment-{second.commitment_uuid}"]
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
    assert changed == {(ObjectKind.COMMITTED_RESOURCE, f"commitment-{first.commitment_uuid}")}
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


def test_hosts_tell_what_they_hold_and_how_they_are(cluster: Cluster) -> None:
    (commitment,) = fill(1)
    odd = make_host(
        "Node_7", zone="az-b", building_block="bb 7", conditions={"Evicting": "Unknown"}
    )
    moved = make_vm(host=odd)
    make_vm(host=None)
    converge()
    assert_equal(cluster)
    hosts = {item["spec"]["hostName"]: item for item in cluster.get("hst")["items"]}
    assert hosts["Node_7"]["metadata"]["name"].startswith("node-7-")
    assert hosts["Node_7"]["metadata"]["labels"]["topology.kubernetes.io/zone"] == "az-b"
    assert [vm["id"] for vm in hosts["Node_7"]["status"]["instances"]] == [moved.openstack_id]
    slot = Reservation.objects.get(commitment=commitment)
    held = hosts["h1"]["status"]["held"]["committed"]
    assert held["cpu"] == str(HostCapacity.objects.get(host__name="h1").committed_vcpus)
    assert slot.target_host is not None
    moved.host = Host.objects.get(name="h2")
    moved.save()
    Host.objects.filter(name="h1").update(state="down", maintenance="manual")
    Host.objects.filter(pk=odd.pk).update(conditions={"Ready": "True", "Evicting": "False"})
    converge()
    assert_equal(cluster)
    assert cluster.get("hst/h2")["status"]["numInstances"] == 1
    said = cluster.kubectl("get", "hst", "-o", "wide", "-l", "topology.kubernetes.io/zone=az-a")
    assert "Node" not in said
    assert "Down" in said
    assert cluster.kubectl("get", "hst", "--field-selector", "status.state=down", "-o", "name") == (
        "host.cortex.cloud/h1\n"
    )
    moved.delete()
    converge()
    assert_equal(cluster)


def transition(cluster: Cluster, kind: str, type_name: str = "Ready") -> tuple[str, str]:
    (item,) = cluster.get(kind)["items"]
    (one,) = (each for each in item["status"]["conditions"] if each["type"] == type_name)
    return one["status"], one["lastTransitionTime"]


def test_transitions_have_the_time_of_the_change_of_status(cluster: Cluster) -> None:
    """Rows of capacity, quota and hosts keep no such time: it is that of their write."""
    long_ago = timezone.now() - timedelta(days=3)
    group, quota, host = make_group_capacity(), make_quota(), make_host("h1")
    rows: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
        ("fgc", group, {"is_ready": False}, {"is_ready": False, "ready_message": "still"}),
        ("pqu", quota, {"observed_generation": quota.generation}, {"project_name": "other"}),
        ("hst", host, {"status": "disabled"}, {"disabled_reason": "still"}),
    ]
    for _, row, _, _ in rows:
        type(row).objects.filter(pk=row.pk).update(created_at=long_ago)
    converge()
    first = {}
    for kind, row, change, _ in rows:
        type(row).objects.filter(pk=row.pk).update(**change)
        row.refresh_from_db()
        first[kind] = timestamp(row.updated_at)
    converge()
    told = {kind: transition(cluster, kind) for kind, _, _, _ in rows}
    assert {kind: time for kind, (_, time) in told.items()} == first
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(1.1)")  # as far apart as Kubernetes tells times
    for _, row, _, later in rows:
        type(row).objects.filter(pk=row.pk).update(**later)
    converge()
    assert {kind: transition(cluster, kind) for kind, _, _, _ in rows} == told
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


def choose(settings: Any, **fields: Any) -> None:
    chosen = settings.HEADROOM.bridge.model_copy(update=fields)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"bridge": chosen})


def edits_told(cluster: Cluster) -> set[tuple[str, str]]:
    """Return names and messages; Events of other tests stay."""
    told = json.loads(cluster.kubectl("get", "events", "-o", "json"))["items"]
    return {
        (one["involvedObject"]["name"], one["message"])
        for one in told
        if one["reason"] == "HandEdited"
    }


OUTCOMES = {
    "restore": "written anew",
    "report": "left as it is",
    "adopt": "left until the database says something else",
}


@pytest.mark.parametrize("policy", ["restore", "report", "adopt"])
def test_edits_by_hand_are_restored_or_told(cluster: Cluster, settings: Any, policy: str) -> None:
    first, second = fill()
    choose(settings, hand_edits=policy)
    converge()
    edit = json.dumps({"spec": {"amount": "1Gi", "endTime": "2030-01-01T00:00:00Z"}})
    cluster.kubectl("patch", name_of(first), "--type=merge", "-p", edit)
    cluster.kubectl("delete", name_of(second))
    converge()
    drifted = MirrorState.objects.filter(drifts=1)
    assert drifted.count() == 2
    end = f"({OUTCOMES[policy]})"
    assert edits_told(cluster) >= {
        (
            name_of(first).partition("/")[2],
            f"changed by kubectl-patch: spec.amount, spec.endTime {end}",
        ),
        (name_of(second).partition("/")[2], f"deleted, though not by Headroom {end}"),
    }
    if policy == "restore":
        assert_equal(cluster)
        return
    assert drifted.exclude(drifted_at=None).count() == 2
    assert cluster.get(name_of(first))["spec"]["amount"] == "1Gi"
    assert name_of(second).partition("/")[2] not in {name for _, name in objects(cluster)}
    choose(settings, hand_edits="restore")
    converge()
    assert_equal(cluster)
    assert not MirrorState.objects.exclude(drifted_at=None).exists()


def test_what_was_only_reported_is_adopted_once_the_settings_say_so(
    cluster: Cluster, settings: Any
) -> None:
    first, _ = fill()
    choose(settings, hand_edits="report")
    converge()
    edit = json.dumps({"spec": {"amount": "1Gi"}})
    cluster.kubectl("patch", name_of(first), "--type=merge", "-p", edit)
    converge()
    choose(settings, hand_edits="adopt")
    converge()
    state = MirrorState.objects.get(kind=ObjectKind.COMMITTED_RESOURCE, source_id=first.pk)
    assert [field["path"] for field in (state.adopted or {})["fields"]] == [["spec", "amount"]]
    assert cluster.get(name_of(first))["spec"]["amount"] == "1Gi"


def test_an_adopted_edit_ends_when_the_database_says_something_else(
    cluster: Cluster, settings: Any
) -> None:
    first, second = fill()
    choose(settings, hand_edits="adopt")
    Commitment.objects.filter(pk=first.pk).update(end_time=timezone.now() + timedelta(days=900))
    converge()
    changes = {"amount": "1Gi", "allowRejection": True, "endTime": None}
    annotation = {"reservations.cortex.cloud/creator-request-id": "mine", "other": "stays"}
    edit = json.dumps({"spec": changes, "metadata": {"annotations": annotation}})
    cluster.kubectl("patch", name_of(first), "--type=merge", "-p", edit)
    status = json.dumps({"status": {"statusSummary": "mine", "usedResources": {"disk": "1"}}})
    cluster.kubectl("patch", name_of(first), "--type=merge", "--subresource=status", "-p", status)
    cluster.kubectl("delete", name_of(second))
    converge()
    state = MirrorState.objects.get(kind=ObjectKind.COMMITTED_RESOURCE, source_id=first.pk)
    assert state.adopted is not None
    assert sorted(".".join(field["path"]) for field in state.adopted["fields"]) == [
        "metadata.annotations.reservations.cortex.cloud/creator-request-id",
        "spec.allowRejection",
        "spec.amount",
        "spec.endTime",
    ]
    # What the bridge writes meanwhile leaves them alone; a status is never adopted.
    Commitment.objects.filter(pk=first.pk).update(status_summary="said", state="confirmed")
    converge()
    item = cluster.get(name_of(first))
    assert item["status"]["statusSummary"] == "said"
    assert "disk" not in item["status"]["usedResources"]
    assert (item["spec"]["amount"], item["spec"]["state"]) == ("1Gi", "confirmed")
    assert "endTime" not in item["spec"]
    assert item["metadata"]["annotations"] == annotation
    before = versions(cluster)
    converge()
    assert versions(cluster) == before
    Commitment.objects.filter(pk=first.pk).update(requested_amount=7 << 30)
    converge()
    item = cluster.get(name_of(first))
    assert (item["spec"]["amount"], item["spec"]["allowRejection"]) == ("7Gi", True)
    assert name_of(second).partition("/")[2] not in {name for _, name in objects(cluster)}
    Commitment.objects.filter(pk=second.pk).update(requested_amount=7 << 30)
    cluster.kubectl("delete", name_of(first))
    converge()
    Commitment.objects.filter(pk=first.pk).update(requested_amount=8 << 30)
    converge()
    cluster.kubectl("annotate", name_of(second), "other=stays")
    converge()
    assert MirrorState.objects.get(pk=state.pk).adopted is None
    assert {cluster.get(name_of(row))["spec"]["amount"] for row in (first, second)} == {
        "7Gi",
        "8Gi",
    }
    cluster.kubectl("annotate", name_of(second), "other-")
    converge()
    assert_equal(cluster)


def test_labels_of_others_are_no_edit(cluster: Cluster) -> None:
    first, _ = fill()
    converge()
    cluster.kubectl("label", name_of(first), "team=a")
    cluster.kubectl("annotate", name_of(first), "note=b")
    converge()
    item = cluster.get(name_of(first))
    assert (item["metadata"]["labels"]["team"], item["metadata"]["annotations"]["note"]) == (
        "a",
        "b",
    )
    assert not MirrorState.objects.exclude(drifts=0).exists()
    cluster.kubectl("label", name_of(first), "bridge.cortex.cloud/region-", "team-")
    cluster.kubectl("annotate", name_of(first), "note-")
    converge()
    assert_equal(cluster)


@pytest.mark.parametrize("policy", ["restore", "report", "adopt"])
def test_edits_are_heard_of_while_nothing_else_happens(
    cluster: Cluster, settings: Any, policy: str
) -> None:
    first, second = fill()
    choose(settings, hand_edits=policy)
    drifted = MirrorState.objects.filter(drifts=1, is_due=False)
    with mirroring() as until:
        assert until(lambda: not MirrorState.objects.filter(is_due=True).exists())
        assert until(None)  # all is listed, so that only a watch can tell
        edit = json.dumps({"spec": {"amount": "1Gi"}})
        cluster.kubectl("patch", name_of(first), "--type=merge", "-p", edit)
        assert until(lambda: drifted.count() == 1)
        cluster.kubectl("delete", name_of(second))
        assert until(lambda: drifted.count() == 2)
        Commitment.objects.filter(pk=first.pk).update(status_summary="said")
        assert until(lambda: not MirrorState.objects.filter(is_due=True).exists())
    if policy == "restore":
        assert_equal(cluster)
        assert not MirrorState.objects.filter(drifts__gt=1).exists()
    else:
        assert cluster.get(name_of(first))["spec"]["amount"] == "1Gi"
        assert MirrorState.objects.exclude(drifted_at=None).count() == 2


def test_own_writes_are_no_edits_when_they_are_heard(cluster: Cluster) -> None:
    first, _ = fill()
    with mirroring() as until:
        assert until(None)
        for number in range(20):
            Commitment.objects.filter(pk=first.pk).update(
                requested_amount=(number + 1) << 30, status_summary=str(number)
            )
            assert until(lambda: not MirrorState.objects.filter(is_due=True).exists())
        item = cluster.get(name_of(first))
    assert item["status"]["statusSummary"] == "19"
    assert not MirrorState.objects.exclude(drifts=0).exists()
    assert_equal(cluster)


def test_what_is_written_while_a_cluster_is_listed_is_no_drift(cluster: Cluster) -> None:
    first, second = fill()
    converge()
    drain = Drain()
    writer = drain.ways["test"].open()

    def differing() -> int:
        return sum(compare(writer, "test", listed_kind(ObjectKind.COMMITTED_RESOURCE)))

    listed = listed_kind(ObjectKind.COMMITTED_RESOURCE)
    Commitment.objects.filter(pk=first.pk).update(requested_amount=5 << 30)
    converge()
    assert sum(compare(writer, "test", listed)) == 0
    edit = json.dumps({"spec": {"amount": "1Gi"}})
    cluster.kubectl("patch", name_of(second), "--type=merge", "-p", edit)
    assert differing() == 1
    assert differing() == 0  # it waits to be looked at
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
    state = MirrorState.objects.get(kind=ObjectKind.COMMITTED_RESOURCE)
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


def test_a_deletion_that_is_refused_holds_up_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a policy of the cluster refuses it, which answers 422."""
    first, _ = fill()
    converge()
    delete = ClusterClient.delete

    def kept(self: ClusterClient, path: str) -> None:
        if path.endswith(first.commitment_uuid):
            raise ObjectRefused("422: not this one")
        delete(self, path)

    monkeypatch.setattr(ClusterClient, "delete", kept)
    ReservationAllocation.objects.filter(reservation__commitment__isnull=False).delete()
    Reservation.objects.filter(commitment__isnull=False).delete()
    Commitment.objects.all().delete()
    converge()
    (state,) = MirrorState.objects.filter(kind=ObjectKind.COMMITTED_RESOURCE)
    assert (state.source_id, state.is_due) == (first.pk, True)
    assert "not this one" in state.error
    assert cluster.get(name_of(first))["metadata"]["name"] == state.name

    MirrorState.objects.filter(pk=state.pk).delete()  # an orphan, as after a restored backup
    converge()
    assert cluster.get(name_of(first))["metadata"]["name"] == state.name
    monkeypatch.undo()
    converge()
    assert_equal(cluster)


def test_parts_of_an_object_that_a_cluster_keeps_are_followed(
    cluster: Cluster, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = fill()
    converge()
    state = MirrorState.objects.get(kind=ObjectKind.COMMITTED_RESOURCE, source_id=first.pk)
    assert state.part_ids

    def kept(self: ClusterClient, path: str) -> None:
        raise ObjectRefused("422: not this one")

    monkeypatch.setattr(ClusterClient, "delete", kept)
    for zones in ({"test": "az-a", "other": "az-b"}, {"test": "az-a"}):
        clusters = tuple(
            BridgeCluster(name=name, kubeconfig=cluster.kubeconfig, zones=(zone,))
            for name, zone in zones.items()
        )
        choose(settings, clusters=clusters)
        Commitment.objects.filter(pk=first.pk).update(zone="az-b")
        converge()
        found = MirrorState.objects.get(pk=state.pk)
        assert found.error
        assert (found.cluster, found.part_ids) == ("test", state.part_ids)


def test_transitions_are_told_by_events_once(cluster: Cluster) -> None:
    first, second = fill()
    converge()
    assert cluster.kubectl("events", "--for", name_of(first)) == ""
    moment = timezone.now()
    change = {"ready_status": False, "ready_reason": "Rejected", "ready_message": "no room"}
    Commitment.objects.filter(pk=first.pk).update(**change, ready_changed_at=moment)
    failover = Reservation.objects.filter(kind="failover")
    failover.update(is_ready=False, ready_changed_at=moment)
    evicted = Reservation.objects.filter(commitment=second)
    evicted.update(
        is_ready=False,
        ready_reason="PlacementRevoked",
        ready_message="h1 promises too much",
        ready_changed_at=moment,
    )
    converge()
    LogConsumer.objects.update(position="")
    converge()
    said = cluster.kubectl("events", "--for", name_of(first))
    assert said.count("no room") == 1
    assert "Rejected" in said
    lost = "resv/failover-az-a-abcde"
    assert told(cluster, lost, after=moment) == [("Warning", "FailoverLost", "ReservationActive")]
    slot = f"resv/commitment-{second.commitment_uuid}-0"
    assert told(cluster, slot) == [("Warning", "Evicted", "h1 promises too much")]
    later = moment + timedelta(seconds=5)
    failover.update(is_ready=True, ready_reason="ReservationActive", ready_changed_at=later)
    evicted.update(is_ready=True, ready_reason="ReservationActive", ready_changed_at=later)
    Commitment.objects.filter(pk=first.pk).update(
        ready_status=True, ready_reason="Accepted", ready_message="", ready_changed_at=later
    )
    converge()
    assert told(cluster, lost, after=moment) == [
        ("Normal", "FailoverRegained", "ReservationActive"),
        ("Warning", "FailoverLost", "ReservationActive"),
    ]
    assert len(told(cluster, slot)) == 1
    assert ("Normal", "Accepted", "Accepted") in told(cluster, name_of(first))


def told(
    cluster: Cluster, name: str, *, after: datetime | None = None
) -> list[tuple[str, str, str]]:
    """Return type, reason and message of the Events of an object; some names are of many tests."""
    plain = name.partition("/")[2]
    items = cluster.get("events", f"--field-selector=involvedObject.name={plain}")["items"]
    since = timestamp(after) or ""
    return sorted(
        (one["type"], one["reason"], one["message"])
        for one in items
        if one["firstTimestamp"] >= since
    )


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
        state.source_id: state
        for state in MirrorState.objects.filter(kind=ObjectKind.COMMITTED_RESOURCE)
    }
    assert (states[lost.pk].cluster, states[lost.pk].is_due) == ("away", True)
    assert "no cluster" in states[nowhere.pk].error
    assert states[found.pk].written_at is not None


def test_it_converges_wherever_it_was_killed(cluster: Cluster) -> None:
    """At every other statement; each run has more to write than the one before, and so more."""
    first, second = fill()
    for number in range(1, MOST_STATEMENTS, 2):
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
