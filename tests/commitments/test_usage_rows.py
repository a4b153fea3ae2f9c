"""Rows of the usage reconciler where it reads and writes (spec commitments, 14.2-14.5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError
from prometheus_client import REGISTRY

from commitments.models import Commitment, InstanceAssignment
from commitments.selectors.usage_reads import groups_by_flavor, vms_by_place
from commitments.services import usage
from commitments.services.usage import UsageRun, reconcile_all_usage, reconcile_project_usage
from hosts.models import Host
from journal.actors import task_actor
from journal.metrics import metrics_page
from scheduling.resources import GIB
from tests.factories import make_commitment, make_group, make_host, make_vm

pytestmark = pytest.mark.django_db

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "aaaaaaaa-0000-4000-8000-000000000002"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
PROJECT = "alpha"


@pytest.fixture(autouse=True)
def host() -> Host:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    make_group("gp_1", flavors=[("gp", 1024, 4)])
    return make_host("h1", zone="az-a", memory_gib=100, vcpus=400)


def vm(host: Host, uuid: str, gib: int = 1, created: datetime | None = NOW, **more: Any) -> str:
    fields = {"openstack_id": uuid, "memory_gib": gib, "vcpus": gib, "nova_created_at": created}
    return make_vm(host=host, **{**fields, "project_id": PROJECT, **more}).openstack_id


def accepted(uuid: str = A, gib: int = 2, **spec: Any) -> Commitment:
    """Make a commitment whose accepted copy says what is given."""
    row = make_commitment(uuid, amount_gib=gib, project_id=PROJECT, is_accepted=True)
    row.accepted_spec = {**(row.accepted_spec or {}), **spec}
    row.save()
    return row


def run(now: datetime = NOW) -> UsageRun:
    return reconcile_project_usage(PROJECT, actor=task_actor("t"), request_id="r", now=now)


def covered() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    rows = InstanceAssignment.objects.order_by("commitment_id", "position")
    for one in rows.select_related("commitment"):
        found.setdefault(one.commitment.commitment_uuid, []).append(one.vm_uuid)
    return found


@pytest.mark.parametrize(
    ("vms", "expected"),
    [
        pytest.param(
            [("c", 1, NOW + 2 * HOUR), ("a", 1, NOW), ("b", 1, NOW + HOUR)],
            "abc",
            id="created +2h, 0, +1h",
        ),
        pytest.param(
            [("c", 1, NOW), ("a", 8, NOW), ("b", 4, NOW)], "abc", id="same time, 1, 8, 4 GiB"
        ),
        pytest.param(
            [("c", 1, NOW), ("a", 1, NOW), ("b", 1, NOW)], "abc", id="same time and size, c, a, b"
        ),
        pytest.param(
            [("c", 8, NOW + HOUR), ("b", 1, NOW), ("a", 8, NOW)],
            "abc",
            id="new-large, old-small, old-large",
        ),
        pytest.param([("b", 8, NOW), ("a", 1, None)], "ab", id="unparsable time is oldest"),
        pytest.param([("a", 1, NOW), ("B", 1, NOW)], "Ba", id="uuids as bytes"),
    ],
)
def test_vms_are_read_in_the_order_of_the_table(
    host: Host, vms: list[tuple[str, int, datetime | None]], expected: str
) -> None:
    """The VM sort cases of 14.4: the database sorts, so they are its cases too."""
    for uuid, gib, created in vms:
        vm(host, uuid, gib, created)
    read = vms_by_place(PROJECT, groups_by_flavor())
    assert "".join(uuid for uuid, _, _ in read["az-a", "hana_1"]) == expected


@pytest.mark.parametrize(
    ("more", "place"),
    [
        pytest.param({}, ("az-a", "hana_1"), id="a VM of the group"),
        pytest.param({"flavor_name": "gp"}, ("az-a", "gp_1"), id="flavor of another group"),
        pytest.param({"flavor_name": "lone"}, None, id="flavor in no group"),
        pytest.param({"project_id": "beta"}, None, id="other project"),
        pytest.param({"status": "SHUTOFF"}, ("az-a", "hana_1"), id="stopped"),
        pytest.param({"status": "DELETED"}, None, id="deleted"),
    ],
)
def test_which_vms_are_read(
    host: Host, more: dict[str, Any], place: tuple[str, str] | None
) -> None:
    """Section 14.3."""
    vm(host, "vm", **more)
    read = vms_by_place(PROJECT, groups_by_flavor())
    assert read == ({place: [("vm", GIB, 1)]} if place else {})


def iso(moment: datetime) -> str:
    return moment.isoformat()


@pytest.mark.parametrize(
    ("spec", "covers"),
    [
        pytest.param({}, "vm", id="accepted as it is"),
        pytest.param({"state": "guaranteed"}, "vm", id="accepted when guaranteed"),
        pytest.param({"state": "pending"}, "", id="accepted while pending"),
        pytest.param({"state": "planned"}, "", id="accepted copy planned"),
        pytest.param({"state": "superseded"}, "", id="accepted copy superseded"),
        pytest.param({"resourceType": "disk"}, "", id="invalid type"),
        pytest.param({"amount": "much"}, "", id="invalid amount"),
        pytest.param({"startTime": "soon"}, "", id="invalid start"),
        pytest.param({"startTime": iso(NOW)}, "vm", id="starts now"),
        pytest.param({"startTime": iso(NOW + MINUTE)}, "", id="starts later"),
        pytest.param({"endTime": iso(NOW)}, "vm", id="ends now"),
        pytest.param({"endTime": iso(NOW - MINUTE)}, "", id="ended"),
        pytest.param({"availabilityZone": "az-b"}, "", id="accepted in another zone"),
        pytest.param({"flavorGroupName": "gp_1"}, "gp", id="accepted in another group"),
        pytest.param({"amount": GIB // 2}, "", id="accepted with less"),
    ],
)
def test_accepted_copy_says_what_may_be_covered(
    host: Host, spec: dict[str, Any], covers: str
) -> None:
    """Section 14.2: the row asks for 2 GiB in az-a all the same; that of B counts beside it."""
    vm(host, "vm"), vm(host, "gp", flavor_name="gp")
    accepted(**spec)
    make_commitment(B, amount_gib=1, project_id=PROJECT, group="gp_1")
    run()
    assert covered() == {
        **({A: [covers]} if covers else {}),
        **({} if covers == "gp" else {B: ["gp"]}),
    }


def test_every_commitment_of_the_project_is_written(host: Host) -> None:
    """Section 14.5."""
    vms = [vm(host, f"vm-{number}", created=NOW + number * MINUTE) for number in range(3)]
    first, second = accepted(A, 2), accepted(B, 1, startTime=iso(NOW - MINUTE))
    Commitment.objects.filter(pk=second.pk).update(generation=4, ready_observed_generation=4)
    assert run() == UsageRun(commitments=2, assigned=3, changed=3, written=2)
    assert covered() == {A: vms[:2], B: vms[2:]}
    seen = Commitment.objects.order_by("pk").values_list(
        "used_memory_bytes",
        "used_vcpus",
        "last_usage_reconcile_at",
        "usage_observed_generation",
        "status_summary",
    )
    assert list(seen) == [
        (2 * GIB, 2, NOW, 1, "Accepted · 2 VMs · no expiry"),
        (GIB, 1, NOW, 4, "Accepted · 1 VM · no expiry"),
    ]
    assert first.pk < second.pk


def series(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"cortex_committed_resource_usage_{name}", labels) or 0.0


class TestMetrics:
    """Section 14.5, last sentence."""

    def test_run_that_succeeds_is_timed(self, host: Host) -> None:
        before = series("reconcile_duration_seconds_count", result="success")
        accepted()
        run()
        assert series("reconcile_duration_seconds_count", result="success") == before + 1

    def test_run_that_fails_is_timed_and_writes_nothing(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        vm(host, "vm")
        accepted()

        def fail(_: object) -> None:
            message = "disk full"
            raise DatabaseError(message)

        monkeypatch.setattr(usage, "write_commitments", fail)
        before = series("reconcile_duration_seconds_count", result="error")
        with pytest.raises(DatabaseError, match="disk full"):
            run()
        assert series("reconcile_duration_seconds_count", result="error") == before + 1
        assert covered() == {}

    def test_age_of_the_previous_result_is_told_once_a_run(self, host: Host) -> None:
        vm(host, "vm")
        accepted(A)
        accepted(B)
        count, total = series("status_age_seconds_count"), series("status_age_seconds_sum")
        run()
        assert series("status_age_seconds_count") == count, "there was none before"
        run(NOW + 7 * MINUTE)
        assert series("status_age_seconds_count") == count + 1
        assert series("status_age_seconds_sum") == total + 420

    def test_covered_vms_are_told_by_project(self, host: Host) -> None:
        vm(host, "one")
        vm(host, "two")
        accepted(A, 2)
        name = f'cortex_committed_resource_usage_assigned_vms_total{{project_id="{PROJECT}"}}'
        reconcile_all_usage(actor=task_actor("t"), request_id="r", now=NOW)
        assert f"{name} 2.0" in metrics_page().decode().splitlines()
