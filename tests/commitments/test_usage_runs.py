"""Usage runs: what starts one, what it looks at, what it writes (spec commitments, 14)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from capacity.locks import LockSpace, take_lock
from capacity.models import FlavorGroupMember, FlavorGroupSnapshot
from commitments.models import (
    AssignmentPeriod,
    Commitment,
    Condition,
    InstanceAssignment,
    ProjectDeparture,
    ProjectUsage,
    UsageCheck,
)
from commitments.selectors.usage_reads import vms_by_place
from commitments.services import retention, usage
from commitments.services.quota_usage import reconcile_changed, reconcile_full
from commitments.services.usage import reconcile_all_usage, reconcile_project_usage
from commitments.tasks import prune_usage_history, reconcile_changed_usage, reconcile_usage
from hosts.models import Host, Instance
from journal.actors import task_actor
from journal.errors import Busy
from scheduling.resources import GIB
from tests.commitments.change_requests import change, decide_ram
from tests.factories import make_commitment, make_group, make_host, make_quota, make_vm
from tests.schedule import beat_schedule

pytestmark = pytest.mark.django_db(transaction=True)

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "aaaaaaaa-0000-4000-8000-000000000002"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
PROJECT = "alpha"


@pytest.fixture(autouse=True)
def host() -> Host:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    return make_host("h1", zone="az-a", memory_gib=100, vcpus=400)


def vm(host: Host, gib: int = 1, *, hours: int = 0, project_id: str = PROJECT) -> Instance:
    return make_vm(
        host=host,
        memory_gib=gib,
        vcpus=4 * gib,
        project_id=project_id,
        nova_created_at=NOW + timedelta(hours=hours),
    )


def commitment(uuid: str = A, gib: int = 2, **fields: Any) -> Commitment:
    """Make one that was accepted as it is, unless fields say otherwise."""
    row = make_commitment(uuid, amount_gib=gib, **{"project_id": PROJECT, **fields})
    if row.accepted_spec:
        row.accepted_spec |= {
            "startTime": row.start_time and row.start_time.isoformat(),
            "endTime": row.end_time and row.end_time.isoformat(),
        }
        row.save()
    return row


def renew(*, only_changed: bool = True, now: datetime | None = None) -> int:
    return reconcile_all_usage(
        actor=task_actor("test"), request_id="usage-1", only_changed=only_changed, now=now
    )


def covered() -> dict[str, list[str]]:
    """Commitment -> VMs in order."""
    found: dict[str, list[str]] = {}
    rows = InstanceAssignment.objects.order_by("commitment_id", "position")
    for one in rows.select_related("commitment"):
        found.setdefault(one.commitment.commitment_uuid, []).append(one.vm_uuid)
    return found


def written() -> dict[str, list[tuple[Any, ...]]]:
    """Everything a run may write about projects, with the transaction that wrote it."""
    return {
        "commitments": list(Commitment.objects.order_by("pk").values_list()),
        "assignments": list(InstanceAssignment.objects.order_by("pk").values_list()),
        "projects": list(ProjectUsage.objects.order_by("pk").values_list()),
        "periods": list(AssignmentPeriod.objects.order_by("pk").values_list()),
    }


class TestTriggers:
    def test_accepted_commitment_covers_its_vms_at_once(self, host: Host) -> None:
        one = vm(host)
        now = timezone.now()
        decide_ram(PROJECT, change(A, 2, expires_at=now + timedelta(days=1)), now=now)
        assert reconcile_changed_usage() == {"projects": 1}
        assert covered() == {A: [one.openstack_id]}

    def test_project_without_changes_is_left_alone(self, host: Host) -> None:
        vm(host)
        commitment()
        assert renew() == 1
        assert renew() == 0
        assert renew(only_changed=False) == 1
        assert reconcile_usage() == {"projects": 1}

    def test_ended_commitment_gives_its_vms_back(self, host: Host) -> None:
        vm(host)
        now = timezone.now()
        decide_ram(PROJECT, change(A, 2, expires_at=now + timedelta(days=1)), now=now)
        renew()
        decide_ram(PROJECT, change(A, 2, "superseded", old="confirmed"))
        assert renew() == 1
        assert covered() == {}
        assert Commitment.objects.get().used_memory_bytes == 0
        assert renew() == 0

    def test_vm_that_fits_freed_room_is_covered_at_once(self, host: Host) -> None:
        first, second, third = (vm(host, hours=hours) for hours in range(3))
        commitment(gib=2)
        renew()
        assert covered() == {A: [first.openstack_id, second.openstack_id]}
        first.delete()
        assert renew() == 1
        assert covered() == {A: [second.openstack_id, third.openstack_id]}
        assert renew() == 0

    def test_new_vm_is_covered_at_once_and_only_its_project_is_looked_at(self, host: Host) -> None:
        commitment()
        commitment(B, project_id="beta")
        assert renew() == 2
        one = vm(host)
        assert renew() == 1
        assert covered() == {A: [one.openstack_id]}

    def test_host_that_changes_its_zone_takes_the_cover_of_its_vms_along(self, host: Host) -> None:
        one, elsewhere = vm(host), make_host("h2", zone="az-b", memory_gib=100, vcpus=400)
        other = vm(elsewhere, project_id="beta")
        commitment()
        commitment(B, zone="az-b")
        commitment("aaaaaaaa-0000-4000-8000-000000000003", zone="az-b", project_id="beta")
        renew()
        before = covered()
        assert before[A] == [one.openstack_id]
        Host.objects.filter(pk=host.pk).update(zone="az-b")
        assert renew() == 1
        assert covered() == {**{k: v for k, v in before.items() if k != A}, B: [one.openstack_id]}
        assert covered()["aaaaaaaa-0000-4000-8000-000000000003"] == [other.openstack_id]
        assert renew() == 0

    def test_vm_of_a_project_without_commitments_is_no_reason_to_look(self, host: Host) -> None:
        commitment()
        renew()
        vm(host, project_id="nobody")
        assert renew() == 0

    def test_vm_that_changes_its_project_is_taken_over(self, host: Host) -> None:
        one = vm(host)
        commitment()
        commitment(B, project_id="beta")
        renew()
        Instance.objects.update(project_id="beta")
        assert renew() == 2
        assert covered() == {B: [one.openstack_id]}

    def test_vm_that_left_its_project_for_one_without_commitments_is_let_go(
        self, host: Host
    ) -> None:
        vm(host)
        commitment()
        renew()
        Instance.objects.update(project_id="nobody")
        assert renew() == 1
        assert covered() == {}

    def test_room_of_a_deleted_commitment_passes_to_the_next(self, host: Host) -> None:
        one = vm(host)
        first = commitment(start_time=NOW)
        commitment(B, start_time=NOW + MINUTE)
        renew()
        assert covered() == {A: [one.openstack_id]}
        first.delete()
        assert renew() == 1
        assert covered() == {B: [one.openstack_id]}

    def test_project_whose_last_commitment_was_deleted_has_nothing_assigned(
        self, host: Host
    ) -> None:
        vm(host)
        commitment().delete()
        commitment()
        renew()
        Commitment.objects.all().delete()
        assert renew() == 1
        assert ProjectUsage.objects.get().assigned_vms == 0
        assert renew() == 0

    @pytest.mark.parametrize(
        ("fields", "before", "after"),
        [
            ({"start_time": NOW + 10 * MINUTE}, 0, 1),
            ({"end_time": NOW + 10 * MINUTE}, 1, 0),
        ],
        ids=["it begins", "it ends"],
    )
    def test_time_alone_starts_and_ends_what_is_covered(
        self, host: Host, fields: dict[str, Any], before: int, after: int
    ) -> None:
        vm(host)
        commitment(**fields)
        renew(now=NOW)
        assert InstanceAssignment.objects.count() == before
        assert renew(now=NOW + 9 * MINUTE) == 0
        assert renew(now=NOW + 11 * MINUTE) == 1
        assert InstanceAssignment.objects.count() == after
        assert renew(now=NOW + 12 * MINUTE) == 0

    def test_what_ends_at_the_last_moment_of_all_is_in_nobodys_way(self, host: Host) -> None:
        mine, others = vm(host), vm(host, project_id="beta")
        last = datetime.max.replace(tzinfo=UTC)
        decide_ram(PROJECT, change(A, 2, expires_at=last), now=timezone.now())
        commitment(B, project_id="beta")
        assert renew() == 2
        assert covered() == {A: [mine.openstack_id], B: [others.openstack_id]}
        assert renew() == 0

    def test_changed_flavor_groups_make_every_project_due(self, host: Host) -> None:
        vm(host)
        commitment()
        renew()
        FlavorGroupMember.objects.all().delete()
        assert renew() == 1
        assert covered() == {}

    def test_change_that_commits_after_a_run_is_seen_by_the_next(self, host: Host) -> None:
        one = vm(host, project_id="nobody")
        commitment()
        renew()
        raw = connection.copy()
        try:
            with raw.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("UPDATE hosts_instance SET project_id = %s", [PROJECT])
                vm(host, project_id="nobody")  # a later transaction that is visible earlier
                assert renew() == 0
                cursor.execute("COMMIT")
        finally:
            raw.close()
        assert renew() == 1
        assert covered() == {A: [one.openstack_id]}
        assert renew() == 0

    def test_project_that_was_busy_is_due_in_the_next_run(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = vm(host)
        commitment()

        def refuse(space: LockSpace, names: list[str]) -> None:
            message = f"{space} {names}"
            raise Busy(message)

        monkeypatch.setattr(usage, "take_lock", refuse)
        assert renew() == 0
        monkeypatch.setattr(usage, "take_lock", take_lock)
        assert renew() == 1
        assert covered() == {A: [one.openstack_id]}
        assert renew() == 0

    def test_without_flavor_groups_nothing_is_looked_at_and_nothing_is_lost(
        self, host: Host
    ) -> None:
        one = vm(host)
        commitment()
        FlavorGroupSnapshot.objects.update(is_ready=False)
        assert renew() == 0
        assert not UsageCheck.objects.exists()
        FlavorGroupSnapshot.objects.update(is_ready=True)
        assert renew() == 1
        assert covered() == {A: [one.openstack_id]}

    @pytest.mark.sql("commitments_note_transfer")
    def test_project_that_handed_a_commitment_over_is_looked_at(self, host: Host) -> None:
        vms = [vm(host, hours=hours).openstack_id for hours in range(2)]
        moved = commitment(gib=2)
        commitment(B, gib=2)
        renew()
        assert covered() == {A: vms}
        moved.project_id = "beta"
        moved.save()
        assert renew() == 2
        assert covered() == {B: vms}
        assert renew() == 0
        assert not ProjectDeparture.objects.exists()

    def test_departures_are_kept_for_the_quota_controller(self, host: Host) -> None:
        make_quota(PROJECT, "az-a", {})
        reconcile_full()
        moved = commitment()
        renew()
        moved.project_id = "beta"
        moved.save()
        renew()
        assert ProjectDeparture.objects.count() == 1
        assert reconcile_changed().projects == 1
        assert renew() == 0
        assert not ProjectDeparture.objects.exists()

    @pytest.mark.sql("commitments_note_departure")
    def test_departures_are_forgotten_once_they_were_seen(self, host: Host) -> None:
        commitment()
        vm(host).delete()
        assert ProjectDeparture.objects.count() == 1
        renew()
        assert not ProjectDeparture.objects.exists()


class TestGates:
    """The table of 14.1: a run over the project of one commitment."""

    @pytest.mark.parametrize(
        "fields",
        [
            {"state": "planned", "is_accepted": False},
            {"state": "guaranteed", "start_time": NOW + 10 * MINUTE},
            {"is_accepted": False},
            {"is_accepted": False, "generation": 2, "ready_observed_generation": 1},
        ],
        ids=[
            "planned, nothing stored",
            "guaranteed, start in 10 min",
            "no Ready",
            "Ready for generation 1 while at 2",
        ],
    )
    def test_nothing_is_written(self, host: Host, fields: dict[str, Any]) -> None:
        vm(host)
        commitment(**fields)
        before = written()["commitments"]
        reconcile_project_usage(PROJECT, actor=task_actor("t"), request_id="r", now=NOW)
        assert written()["commitments"] == before
        assert covered() == {}

    @pytest.mark.parametrize(
        "fields",
        [{"state": "expired"}, {"state": "superseded"}, {"end_time": NOW - MINUTE}],
        ids=["expired", "superseded", "confirmed, end_time 1 min ago"],
    )
    def test_what_is_stored_is_cleared(self, host: Host, fields: dict[str, Any]) -> None:
        vm(host), vm(host)
        commitment()
        renew(now=NOW - 2 * MINUTE)
        Commitment.objects.update(**fields)
        run = reconcile_project_usage(PROJECT, actor=task_actor("t"), request_id="r", now=NOW)
        row = Commitment.objects.get()
        assert run.cleared == 1
        assert covered() == {}
        assert (row.used_memory_bytes, row.used_vcpus) == (0, 0)
        assert (row.last_usage_reconcile_at, row.usage_observed_generation) == (None, None)

    def test_unknown_project_is_no_op(self) -> None:
        run = reconcile_project_usage("nobody", actor=task_actor("t"), request_id="r")
        assert run.commitments == run.assigned == run.written == 0

    def test_just_reconciled_waits_for_the_cooldown(self, host: Host) -> None:
        vm(host)
        commitment()
        assert renew(now=NOW) == 1
        assert renew(now=NOW + MINUTE) == 0
        beat = beat_schedule()
        assert beat["usage"]["schedule"].run_every == timedelta(minutes=5)

    def test_usage_never_observed_runs(self, host: Host) -> None:
        one = vm(host)
        commitment()
        renew(now=NOW)
        Commitment.objects.update(usage_observed_generation=None)
        assert renew(now=NOW) == 1
        assert Commitment.objects.get().usage_observed_generation == 1
        assert covered() == {A: [one.openstack_id]}

    @pytest.mark.parametrize(
        ("ready", "observed"),
        [
            ({"ready_status": None, "ready_reason": ""}, None),
            ({"ready_status": False, "ready_reason": Condition.RESERVING}, None),
            ({"ready_observed_generation": 1}, None),
            ({}, 2),
            ({"ready_status": False, "ready_reason": Condition.REJECTED}, 2),
        ],
        ids=["Ready missing", "False", "older generation", "True current", "rolled back"],
    )
    def test_generation_is_observed_once_it_is_decided(
        self, host: Host, ready: dict[str, Any], observed: int | None
    ) -> None:
        one = vm(host)
        commitment(**{"generation": 2, "ready_observed_generation": 2, **ready})
        renew()
        assert Commitment.objects.get().usage_observed_generation == observed
        assert covered() == {A: [one.openstack_id]}, "the accepted amount counts all the same"


class TestWrites:
    @pytest.mark.parametrize("only_changed", [True, False])
    def test_second_run_writes_nothing(self, host: Host, *, only_changed: bool) -> None:
        for hours in range(5):
            vm(host, hours=hours)
        commitment(end_time=NOW + timedelta(days=30))
        commitment(B, gib=1)
        commitment("aaaaaaaa-cores", resource_type="cores", requested_amount=8)
        renew(now=NOW)
        before = written()
        renew(only_changed=only_changed, now=NOW + timedelta(hours=5))
        assert written() == before

    def test_status_line_is_refreshed_once_a_day(self, host: Host) -> None:
        vm(host)
        commitment(end_time=NOW + timedelta(days=30))
        renew(now=NOW)
        assert "exp in 30d" in Commitment.objects.get().status_summary
        renew(only_changed=False, now=NOW + timedelta(days=2))
        assert "exp in 28d" in Commitment.objects.get().status_summary

    def test_only_the_commitment_that_changed_is_written(self, host: Host) -> None:
        commitment(gib=1)
        commitment(B, gib=4)
        vm(host)
        renew()
        before = Commitment.objects.get(commitment_uuid=A).changed_xid
        vm(host, gib=2, hours=1)
        renew()
        assert Commitment.objects.get(commitment_uuid=A).changed_xid == before
        assert Commitment.objects.get(commitment_uuid=B).used_memory_bytes == 3 * GIB

    def test_cores_commitment_covers_vms_of_its_own(self, host: Host) -> None:
        one = vm(host)
        commitment("aaaaaaaa-cores", resource_type="cores", requested_amount=4)
        commitment()
        renew()
        assert covered() == {A: [one.openstack_id], "aaaaaaaa-cores": [one.openstack_id]}
        assert ProjectUsage.objects.get().assigned_vms == 1

    def test_vms_that_commitments_had_no_room_for_are_counted(self, host: Host) -> None:
        vm(host, gib=1)
        vm(host, gib=4, hours=1)
        commitment(gib=3)
        renew()
        row = ProjectUsage.objects.get()
        assert (row.assigned_vms, row.uncovered_vms) == (1, 1)

    def test_plan_is_made_again_when_a_commitment_changed_while_it_was_made(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        vm(host), vm(host)
        row = commitment(gib=2)
        plain = vms_by_place
        changes: list[Callable[[], Any]] = [
            lambda: Commitment.objects.update(
                accepted_spec={**(row.accepted_spec or {}), "amount": GIB}
            )
        ]

        def change_meanwhile(*arguments: Any) -> Any:
            if changes:
                changes.pop()()
            return plain(*arguments)

        monkeypatch.setattr(usage, "vms_by_place", change_meanwhile)
        renew()
        assert len(covered()[A]) == 1
        assert Commitment.objects.get().used_memory_bytes == GIB


class TestHistory:
    def periods(self) -> list[tuple[str, str, bool]]:
        rows = AssignmentPeriod.objects.order_by("pk")
        return [(row.vm_uuid, row.commitment_uuid, row.valid_to is None) for row in rows]

    @pytest.mark.sql(
        "commitments_open_period", "commitments_move_period", "commitments_close_period"
    )
    def test_periods_open_move_and_close_with_assignments(self, host: Host) -> None:
        one = vm(host)
        commitment(start_time=NOW)
        commitment(B, start_time=NOW + MINUTE)
        renew()
        assert self.periods() == [(one.openstack_id, A, True)]
        Commitment.objects.filter(commitment_uuid=A).update(state="superseded")
        renew()
        assert self.periods() == [(one.openstack_id, A, False), (one.openstack_id, B, True)]
        Commitment.objects.all().delete()
        assert self.periods() == [(one.openstack_id, A, False), (one.openstack_id, B, False)]
        first, second = AssignmentPeriod.objects.order_by("pk")
        assert first.valid_to is not None
        assert second.valid_to is not None
        assert first.valid_from <= first.valid_to <= second.valid_from <= second.valid_to

    def test_shift_within_a_commitment_is_no_new_period(self, host: Host) -> None:
        first, second = vm(host), vm(host, hours=1)
        commitment()
        renew()
        first.delete()
        renew()
        assert set(self.periods()) == {
            (first.openstack_id, A, False),
            (second.openstack_id, A, True),
        }

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM commitments_assignmentperiod",
            "UPDATE commitments_assignmentperiod SET valid_to = now()",
            "UPDATE commitments_assignmentperiod SET vm_uuid = 'x'",
        ],
        ids=["delete", "close again", "rewrite"],
    )
    def test_database_refuses_to_change_the_past(self, host: Host, statement: str) -> None:
        vm(host)
        row = commitment()
        renew()
        row.delete()
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            connection.cursor().execute(statement)

    @pytest.mark.sql("commitments_keep_period")
    def test_old_periods_are_forgotten_and_open_ones_stay(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "PRUNE_CHUNK_ROWS", 2)
        for hours in range(5):
            vm(host, hours=hours)
        stays = vm(host, hours=9)
        commitment(gib=6)
        renew()
        Instance.objects.exclude(pk=stays.pk).delete()
        renew()
        now = timezone.now()
        assert retention.prune_periods(now=now + timedelta(days=1094)) == 0
        assert retention.prune_periods(now=now + timedelta(days=1096)) == 5
        assert self.periods() == [(stays.openstack_id, A, True)]
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            connection.cursor().execute("DELETE FROM commitments_assignmentperiod")

    def test_retention_of_periods_is_a_setting(self, host: Host, settings: Any) -> None:
        chosen = settings.HEADROOM.usage.model_copy(update={"history_retention_days": 1})
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"usage": chosen})
        vm(host).delete()
        one = vm(host)
        commitment()
        renew()
        one.delete()
        renew()
        now = timezone.now()
        pruned = ("periods", "hours", "refusals", "runs", "events")
        assert prune_usage_history() == dict.fromkeys(pruned, 0)
        assert retention.prune_periods(now=now + timedelta(days=2)) == 1

    def test_beat_starts_the_pruning(self) -> None:
        entries = beat_schedule().values()
        (entry,) = [one for one in entries if one["task"] == "commitments.prune_usage_history"]
        assert entry["options"]["expires"] == entry["schedule"].run_every.total_seconds()
