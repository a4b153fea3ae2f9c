"""Rows of the life of a commitment: conditions, refusals, cores, roll-backs (commitments, 8, 9)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import connection
from prometheus_client import REGISTRY

from capacity.models import (
    FlavorGroup,
    HostCapacity,
    Reservation,
)
from commitments.models import Commitment, CommitmentEvent
from commitments.services import repair as repair_module
from commitments.services.repair import RepairReport
from hosts.models import Host
from scheduling.resources import GIB
from tests.commitments.change_requests import NOW
from tests.commitments.due_rows import (
    FLAVOR_GIB,
    A,
    B,
    change_spec,
    conditions,
    due,
    make_all_due,
    repair,
    slots,
    use_payg,
)
from tests.factories import (
    make_commitment,
    make_group,
    make_group_capacity,
    make_host,
    make_vm,
)
from tests.ledger import assert_ledger_holds

pytestmark = pytest.mark.django_db

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
SHORT_OF_SLOTS = "insufficient capacity: 0/1 reservation slots could be placed"


@pytest.fixture
def group() -> FlavorGroup:
    return make_group("hana_1", flavors=[("small", FLAVOR_GIB * 1024, 4)])


@pytest.fixture
def cloud(group: FlavorGroup) -> Host:
    return make_host("h1", zone="az-a", memory_gib=16, vcpus=64)


def use_slot_limit(settings: Any, limit: int) -> None:
    liquid = settings.HEADROOM.liquid.model_copy(update={"max_slots_per_commitment": limit})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"liquid": liquid})


def slot_limit_rejections() -> float:
    labels = {"flavor_group": "hana_1", "availability_zone": "az-a"}
    name = "cortex_committed_resource_slot_limit_rejections_total"
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.usefixtures("cloud")
class TestDispatch:
    """Section 8.2: what the state and the end say is done, and what the condition says then."""

    @pytest.mark.parametrize(
        ("state", "ends_in", "reason", "message", "held"),
        [
            pytest.param("planned", MINUTE, "Planned", "is not yet active", 0, id="planned"),
            pytest.param("pending", MINUTE, "Accepted", "successfully reserved", 1, id="pending"),
            pytest.param(
                "guaranteed", MINUTE, "Accepted", "successfully reserved", 1, id="guaranteed"
            ),
            pytest.param(
                "confirmed", MINUTE, "Accepted", "successfully reserved", 1, id="confirmed"
            ),
            pytest.param(
                "superseded", MINUTE, "superseded", "is no longer active", 0, id="superseded"
            ),
            pytest.param("expired", MINUTE, "expired", "is no longer active", 0, id="expired"),
            pytest.param(
                "planned", -SECOND, "expired", "is no longer active", 0, id="planned, over"
            ),
            pytest.param(
                "pending", -SECOND, "expired", "is no longer active", 0, id="pending, over"
            ),
            pytest.param(
                "guaranteed", -SECOND, "expired", "is no longer active", 0, id="guaranteed, over"
            ),
            pytest.param(
                "confirmed", -SECOND, "expired", "is no longer active", 0, id="confirmed, over"
            ),
        ],
    )
    def test_state_and_end_decide(
        self, state: str, ends_in: timedelta, reason: str, message: str, held: int
    ) -> None:
        due(state=state, end_time=NOW + ends_in)
        repair()
        row = Commitment.objects.get()
        assert (row.ready_status, row.ready_reason) == (reason == "Accepted", reason)
        assert row.ready_message == f"commitment {message}"
        assert row.ready_observed_generation == row.generation
        assert len(slots()) == held

    @pytest.mark.parametrize(
        ("state", "reason", "held"),
        [
            pytest.param("planned", "Planned", 0, id="confirmed to planned: released"),
            pytest.param("guaranteed", "Accepted", 1, id="confirmed to guaranteed: kept"),
        ],
    )
    def test_what_is_no_longer_promised_is_released(
        self, state: str, reason: str, held: int
    ) -> None:
        """Appendix B 15."""
        row = due()
        repair()
        slot = Reservation.objects.get()
        change_spec(row, state=state)
        repair()
        assert conditions() == [(reason == "Accepted", reason)]
        assert list(Reservation.objects.values_list("pk", flat=True)) == [slot.pk] * held
        assert_ledger_holds()

    def test_acceptance_keeps_a_copy_of_what_was_accepted(self) -> None:
        row = due(start_time=NOW - MINUTE)
        repair()
        row.refresh_from_db()
        assert row.accepted_spec == {
            "commitmentUUID": A,
            "schedulingDomain": "nova",
            "flavorGroupName": "hana_1",
            "resourceType": "memory",
            "amount": 4 * GIB,
            "availabilityZone": "az-a",
            "projectID": "alpha",
            "domainID": "",
            "startTime": (NOW - MINUTE).isoformat(),
            "endTime": (NOW + timedelta(days=1)).isoformat(),
            "state": "confirmed",
            "allowRejection": False,
        }
        assert row.accepted_at == row.confirmed_at == row.last_reconcile_at == NOW
        assert row.ready_changed_at == NOW


class TestRefusals:
    """Sections 8.3 and 8.4: an error, or too little room, where "no" may be answered and not."""

    @pytest.mark.parametrize("state", ["pending", "guaranteed", "confirmed"])
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            pytest.param({"requested_amount": 4 * GIB}, SHORT_OF_SLOTS, id="too little room"),
            pytest.param(
                {"flavor_group_name": "nosuch"}, "flavor group not found: nosuch", id="error"
            ),
        ],
    )
    @pytest.mark.parametrize("allow_rejection", [True, False], ids=["may be no", "never no"])
    @pytest.mark.usefixtures("group")
    def test_new_commitment(
        self, state: str, fields: dict[str, Any], message: str, *, allow_rejection: bool
    ) -> None:
        make_host("h1", memory_gib=2, vcpus=64)
        end = NOW + timedelta(days=1)
        due(state=state, allow_rejection=allow_rejection, end_time=end, **fields)
        repair()
        row = Commitment.objects.get()
        assert row.ready_status is False
        assert row.ready_reason == ("Rejected" if allow_rejection else "Reserving")
        assert row.ready_message == message
        assert row.next_reconcile_at == (end if allow_rejection else NOW + MINUTE)
        if allow_rejection:
            assert slots() == []

    @pytest.mark.usefixtures("group")
    def test_slot_says_that_no_host_has_room_for_it(self) -> None:
        make_host("h1", memory_gib=2, vcpus=64)
        due()
        repair()
        slot = Reservation.objects.get()
        assert (slot.is_ready, slot.ready_reason) == (False, "NoHostsFound")
        assert (slot.target_host, slot.observed_parent_generation) == (None, 1)
        assert slot.decision is not None
        assert slot.decision["host"] is None

    def test_refused_generation_is_asked_again_only_when_it_changes(
        self, group: FlavorGroup
    ) -> None:
        """Without this a commitment swings between what it asks for and what it had."""
        make_host("h1", memory_gib=4, vcpus=64)
        row = due(allow_rejection=True)
        repair()
        change_spec(row, requested_amount=8 * GIB)
        repair()
        make_host("h2", memory_gib=16, vcpus=64)
        make_all_due()
        assert repair() == RepairReport(rejected=1)
        assert slots() == [("h1", 4)]
        change_spec(row, requested_amount=12 * GIB)
        assert repair() == RepairReport(accepted=1)
        assert len(slots()) == 3

    @pytest.mark.parametrize(
        ("allow_rejection", "report", "held", "counted"),
        [
            pytest.param(True, RepairReport(rejected=1), 0, 1, id="may be no: limited"),
            pytest.param(False, RepairReport(accepted=1), 3, 0, id="never no: not limited"),
        ],
    )
    @pytest.mark.usefixtures("cloud")
    def test_number_of_new_slots(
        self,
        settings: Any,
        report: RepairReport,
        held: int,
        counted: int,
        *,
        allow_rejection: bool,
    ) -> None:
        """Section 8.6."""
        use_slot_limit(settings, 2)
        before = slot_limit_rejections()
        due(gib=12, allow_rejection=allow_rejection)
        assert repair() == report
        assert len(slots()) == held
        assert slot_limit_rejections() == before + counted
        if counted:
            assert Commitment.objects.get().ready_message == (
                "commitment would create 3 new reservation slots, exceeds limit of 2"
            )

    @pytest.mark.parametrize("allow_rejection", [True, False])
    @pytest.mark.parametrize("resource_type", ["memory", "cores"])
    @pytest.mark.usefixtures("cloud")
    def test_uuid_x_is_rejected_whatever_its_writer_took(
        self, resource_type: str, *, allow_rejection: bool
    ) -> None:
        """Section 8.11, last row, and 24: a row that the database would refuse today."""
        with connection.cursor() as cursor:
            cursor.execute(
                "ALTER TABLE commitments_commitment"
                " DROP CONSTRAINT commitments_commitment_uuid_valid"
            )
        due("x", resource_type=resource_type, allow_rejection=allow_rejection)
        due(B)
        assert repair() == RepairReport(accepted=1, invalid=1)
        row = Commitment.objects.get(commitment_uuid="x")
        assert (row.ready_status, row.ready_reason) == (False, "Rejected")
        assert row.ready_message == "unexpected commitment format"
        assert row.next_reconcile_at == NOW + timedelta(minutes=30)
        assert not Reservation.objects.filter(commitment=row).exists()
        make_all_due()
        repair()
        assert CommitmentEvent.objects.filter(commitment_uuid="x").count() == 1


class TestRetries:
    """Sections 2.7 and 8.9 where rows are written."""

    @pytest.mark.usefixtures("group")
    def test_new_generation_starts_with_the_shortest_delay(self) -> None:
        make_host("h1", memory_gib=2, vcpus=64)
        row = due()
        repair()
        late = NOW + timedelta(minutes=20)
        make_all_due(late)
        repair(late)
        row.refresh_from_db()
        assert (row.ready_changed_at, row.next_reconcile_at) == (NOW, late + 30 * MINUTE)
        change_spec(row, late, requested_amount=8 * GIB)
        repair(late)
        row.refresh_from_db()
        assert (row.ready_changed_at, row.next_reconcile_at) == (late, late + MINUTE)

    @pytest.mark.usefixtures("group")
    def test_success_in_between_starts_over(self) -> None:
        make_host("h1", memory_gib=4, vcpus=64)
        row = due()
        repair()
        late = NOW + timedelta(minutes=20)
        Reservation.objects.all().delete()
        HostCapacity.objects.update(committed_memory_bytes=0, effective_memory_bytes=0)
        Host.objects.update(effective_memory_bytes=0)
        make_all_due(late)
        assert repair(late) == RepairReport(reserving=1)
        row.refresh_from_db()
        assert row.next_reconcile_at == late + MINUTE


ACCEPTED, REJECTED = (True, "Accepted"), (False, "Rejected")
RESERVING = (False, "Reserving")
END = NOW + timedelta(days=1)


@pytest.mark.usefixtures("cloud")
class TestCoresTable:
    """Section 8.5: rows of the table, where a commitment is decided and its timer is set."""

    @pytest.fixture(autouse=True)
    def _as_stored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Decide on the figures of the table, not on those of the hosts."""
        monkeypatch.setattr(repair_module, "ensure_totals", lambda _zone: None)

    @pytest.mark.parametrize(
        ("total", "others", "requested", "allow_rejection", "condition", "next_at"),
        [
            pytest.param(16, 0, 4, True, ACCEPTED, END, id="16 0 4, may be no"),
            pytest.param(16, 0, 4, False, ACCEPTED, END, id="16 0 4, never no"),
            pytest.param(16, 8, 8, True, ACCEPTED, END, id="exact fit, may be no"),
            pytest.param(16, 8, 8, False, ACCEPTED, END, id="exact fit, never no"),
            pytest.param(16, 8, 10, True, REJECTED, END, id="16 8 10, may be no"),
            pytest.param(16, 8, 10, False, RESERVING, NOW + MINUTE, id="16 8 10, never no"),
            pytest.param(None, 0, 4, False, RESERVING, NOW + MINUTE, id="key missing, never no"),
            pytest.param(None, 0, 4, True, RESERVING, NOW + SECOND, id="key missing, may be no"),
            pytest.param(-1, 0, 4, False, RESERVING, NOW + MINUTE, id="row missing, never no"),
            pytest.param(-1, 0, 4, True, RESERVING, NOW + SECOND, id="row missing, may be no"),
            pytest.param(0, 0, 4, True, REJECTED, END, id="key present, 0"),
        ],
    )
    def test_cores_of_a_group_and_zone(
        self,
        total: int | None,
        others: int,
        requested: int,
        condition: tuple[bool, str],
        next_at: Any,
        *,
        allow_rejection: bool,
    ) -> None:
        if total != -1:
            make_group_capacity("hana_1", total_vcpus=total)
        if others:
            make_commitment(B, resource_type="cores", requested_amount=others)
        due(resource_type="cores", requested_amount=requested, allow_rejection=allow_rejection)
        repair()
        row = Commitment.objects.get(commitment_uuid=A)
        assert (row.ready_status, row.ready_reason) == condition
        assert row.next_reconcile_at == next_at
        assert slots() == []
        if total in {None, -1}:
            assert row.ready_message == "waiting for CPU capacity data"

    def test_rejected_for_this_generation_stays_rejected(self) -> None:
        make_group_capacity("hana_1", total_vcpus=16)
        row = due(
            resource_type="cores",
            requested_amount=4,
            allow_rejection=True,
            ready_status=False,
            ready_reason="Rejected",
            ready_message="insufficient CPU cores: 2 available, 4 requested",
            ready_observed_generation=1,
            ready_changed_at=NOW - MINUTE,
        )
        assert repair() == RepairReport(rejected=1)
        after = Commitment.objects.get()
        assert (after.ready_message, after.ready_changed_at) == (
            row.ready_message,
            row.ready_changed_at,
        )

    @pytest.mark.parametrize(
        ("fields", "counts"),
        [
            pytest.param({}, True, id="confirmed"),
            pytest.param({"state": "guaranteed"}, True, id="guaranteed"),
            pytest.param({"state": "pending", "is_accepted": True}, True, id="accepted pending"),
            pytest.param({"flavor_group_name": "other"}, False, id="other group"),
            pytest.param({"zone": "az-b"}, False, id="other zone"),
            pytest.param({"resource_type": "memory"}, False, id="memory"),
            pytest.param({"is_accepted": False}, False, id="not accepted"),
            pytest.param({"state": "superseded", "is_accepted": True}, False, id="superseded"),
            pytest.param({"state": "expired", "is_accepted": True}, False, id="expired"),
            pytest.param({"end_time": NOW - SECOND}, False, id="over by the clock"),
        ],
    )
    def test_which_others_are_counted(self, fields: dict[str, Any], *, counts: bool) -> None:
        make_group_capacity("hana_1", total_vcpus=16)
        amount = GIB if fields.get("resource_type") == "memory" else 13
        make_commitment(B, **{"resource_type": "cores", "requested_amount": amount, **fields})
        due(resource_type="cores", requested_amount=4, allow_rejection=True)
        repair()
        assert Commitment.objects.get(commitment_uuid=A).ready_reason == (
            "Rejected" if counts else "Accepted"
        )

    def test_capacity_that_becomes_known_is_decided_at_once(self) -> None:
        due(resource_type="cores", requested_amount=4, allow_rejection=True)
        repair()
        make_group_capacity("hana_1", total_vcpus=3)
        assert repair(NOW + SECOND) == RepairReport(rejected=1)


class TestRollbackRows:
    """Section 8.8, steps 1 to 4."""

    @pytest.mark.parametrize(
        "spec",
        [
            pytest.param({"resourceType": "disk"}, id="unsupported resource type"),
            pytest.param({"state": "odd"}, id="unknown state"),
            pytest.param({"commitmentUUID": A, "amount": None}, id="no amount"),
        ],
    )
    def test_accepted_spec_that_does_not_convert_leaves_nothing(
        self, cloud: Host, spec: dict[str, Any]
    ) -> None:
        row = due(allow_rejection=True)
        repair()
        row.refresh_from_db()
        change_spec(
            row, accepted_spec={**(row.accepted_spec or {}), **spec}, requested_amount=400 * GIB
        )
        assert repair() == RepairReport(rejected=1)
        row.refresh_from_db()
        assert (conditions(), slots()) == ([REJECTED], [])
        assert row.accepted_amount is None
        assert_ledger_holds()

    def test_acceptance_that_ended_is_held_no_more(self, cloud: Host) -> None:
        row = due(allow_rejection=True)
        repair()
        ended = row.end_time
        assert ended is not None
        change_spec(row, requested_amount=400 * GIB, end_time=ended + timedelta(days=9))
        repair()
        row.refresh_from_db()
        assert row.accepted_amount == 4 * GIB
        repair(ended)
        row.refresh_from_db()
        assert slots() == []
        assert Commitment.objects.get().accepted_amount is None

    def test_slot_limit_does_not_hold_for_a_rollback(self, cloud: Host, settings: Any) -> None:
        row = due(gib=12, allow_rejection=True)
        repair()
        use_slot_limit(settings, 1)
        Reservation.objects.all().delete()
        HostCapacity.objects.update(committed_memory_bytes=0, committed_vcpus=0)
        change_spec(row, requested_amount=400 * GIB)
        assert repair() == RepairReport(rejected=1)
        assert slots() == [("h1", 4)] * 3
        creators = set(Reservation.objects.values_list("creator", flat=True))
        assert creators == {"committed-resource-controller-rollback"}
        assert_ledger_holds()

    def test_rollback_covers_no_running_vm(self, cloud: Host, settings: Any) -> None:
        """Section 7.3: a VM that came since is no part of what was accepted."""
        row = due(allow_rejection=True)
        repair()
        use_payg(settings)
        make_vm(host=cloud, memory_gib=4, vcpus=4, project_id="alpha")
        Reservation.objects.all().delete()
        HostCapacity.objects.update(committed_memory_bytes=0, committed_vcpus=0)
        change_spec(row, requested_amount=400 * GIB)
        assert repair() == RepairReport(rejected=1)
        slot = Reservation.objects.get()
        assert (slot.ready_reason, slot.allocations.count()) == ("ReservationActive", 0)
        assert_ledger_holds()


@pytest.mark.usefixtures("cloud")
def test_new_slot_carries_everything_of_its_commitment() -> None:
    """Section 6.6."""
    row = due(domain_id="domain-1", start_time=NOW - MINUTE, generation=7)
    repair()
    slot = Reservation.objects.get()
    assert (slot.kind, slot.scheduling_domain) == ("committed", "nova")
    assert (slot.memory_bytes, slot.vcpus, slot.resource_name) == (4 * GIB, 4, "small")
    assert (slot.project_id, slot.domain_id) == ("alpha", "domain-1")
    assert (slot.flavor_group_name, slot.zone) == ("hana_1", "az-a")
    assert (slot.start_time, slot.end_time) == (NOW - MINUTE, row.end_time)
    assert (slot.commitment, slot.slot_index) == (row, 0)
    assert (slot.parent_generation, slot.observed_parent_generation) == (7, 7)
    assert (slot.creator, slot.creator_request_id) == ("committed-resource-controller", "repair-1")
    assert not slot.allocations.exists()


@pytest.mark.usefixtures("cloud")
def test_slot_that_lost_its_host_is_placed_again_as_it_is() -> None:
    """Section 9.2, last row of the table: the run after the revocation asks the scheduler."""
    row = due()
    repair()
    slot = Reservation.objects.get()
    Reservation.objects.update(
        target_host=None,
        confirmed_host=None,
        blocked_memory_bytes=0,
        blocked_vcpus=0,
        is_ready=False,
        ready_reason="PlacementRevoked",
    )
    HostCapacity.objects.update(committed_memory_bytes=0, committed_vcpus=0)
    make_all_due()
    assert repair() == RepairReport(accepted=1)
    after = Reservation.objects.get()
    assert (after.pk, after.commitment, after.is_ready) == (slot.pk, row, True)
    assert (after.ready_reason, after.target_host, after.confirmed_host) == (
        "ReservationActive",
        slot.target_host,
        slot.target_host,
    )
    assert_ledger_holds()


@pytest.mark.usefixtures("cloud")
def test_time_that_is_over_is_no_fault_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 19: a run that is stopped leaves whole chunks, and the next one does the rest."""
    due(A, allow_rejection=True)
    due(B)
    real = repair_module.wanted_as_stored

    def stopped(row: Commitment) -> Any:
        if row.commitment_uuid == B:
            raise SoftTimeLimitExceeded
        return real(row)

    monkeypatch.setattr(repair_module, "wanted_as_stored", stopped)
    with pytest.raises(SoftTimeLimitExceeded):
        repair()
    assert set(Commitment.objects.values_list("next_reconcile_at", flat=True)) == {NOW}
    monkeypatch.setattr(repair_module, "wanted_as_stored", real)
    assert repair() == RepairReport(accepted=2)
