from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from capacity.models import FlavorGroup, FlavorGroupMember, HostCapacity, Reservation
from commitments.models import Commitment, CommitmentEvent
from commitments.services.info import StaleVersion
from journal.errors import InvalidInput, NotReady
from scheduling.resources import GIB
from tests.commitments.change_requests import CORES, NOW, RAM, change, decide, decide_ram
from tests.factories import make_group, make_group_capacity, make_host, make_vm

pytestmark = pytest.mark.django_db

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
C = "cccccccc-0000-4000-8000-000000000003"


@pytest.fixture
def cloud() -> None:
    """One group of a 1 GiB flavor, one host of 10 slots in az-a, one in az-b."""
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_host("h1", zone="az-a", memory_gib=10, vcpus=40)
    make_host("h2", zone="az-b", memory_gib=10, vcpus=40)
    make_group_capacity("hana_1", "az-a", total_vcpus=16)


def slots_of(uuid: str) -> list[tuple[str, int]]:
    rows = Reservation.objects.filter(commitment__commitment_uuid=uuid).order_by("slot_index")
    return [(row.target_host.name if row.target_host else "", row.memory_bytes) for row in rows]


def assert_rooms_add_up() -> None:
    for room in HostCapacity.objects.all():
        held = Reservation.objects.filter(target_host=room.host_id)
        assert room.committed_memory_bytes == sum(row.blocked_memory_bytes for row in held)
        assert room.committed_vcpus == sum(row.blocked_vcpus for row in held)
        taken = room.allocated_memory_bytes + room.committed_memory_bytes
        assert taken <= room.effective_memory_bytes


@pytest.mark.usefixtures("cloud")
class TestConfirming:
    def test_new_confirmed_commitment_holds_its_slots_on_hosts(self) -> None:
        assert decide_ram("alpha", change(A, 2)).rejection_reason == ""
        row = Commitment.objects.get()
        assert (row.requested_amount, row.state, row.allow_rejection) == (
            2 * GIB,
            "confirmed",
            True,
        )
        assert (row.ready_status, row.ready_reason) == (True, "Accepted")
        assert row.accepted_spec is not None
        assert slots_of(A) == [("h1", GIB), ("h1", GIB)]
        assert_rooms_add_up()
        event = CommitmentEvent.objects.get()
        assert event.action == "commitment_accepted"
        assert event.request_id == "committed-resource-test-request-1"

    def test_rejection_names_the_numbers_and_leaves_nothing(self) -> None:
        outcome = decide_ram("alpha", change(A, 11))
        assert outcome.rejection_reason.startswith(
            f"1 commitment(s) failed to apply:\n- commitment {A}: "
            "insufficient capacity: 10/11 reservation slots could be placed (no host has room: "
        )
        assert outcome.retry_at == NOW + timedelta(minutes=15)
        assert not Commitment.objects.exists()
        assert not Reservation.objects.exists()
        assert not CommitmentEvent.objects.exists()

    def test_partial_fit_is_counted_in_the_reason(self) -> None:
        decide_ram("beta", change(B, 7))
        outcome = decide_ram("alpha", change(A, 4))
        assert "insufficient capacity: 3/4 reservation slots" in outcome.rejection_reason
        assert_rooms_add_up()

    def test_one_rejected_commitment_rejects_the_batch(self) -> None:
        outcome = decide({"alpha": {RAM: [change(A, 2)]}, "beta": {RAM: [change(B, 9)]}})
        assert outcome.rejection_reason.startswith("1 commitment(s) failed to apply:")
        assert not Commitment.objects.exists()

    def test_rejected_growth_keeps_the_accepted_commitment(self) -> None:
        decide_ram("alpha", change(A, 1))
        before = Commitment.objects.values().get()
        outcome = decide_ram("alpha", change(A, 40, old="confirmed"), confirmed_before=1)
        assert outcome.rejection_reason
        assert Commitment.objects.values().get() == before
        assert slots_of(A) == [("h1", GIB)]

    @pytest.mark.parametrize(("first", "second"), [(1, 2), (4, 2)], ids=["grow", "shrink"])
    def test_resize_moves_the_slots_with_the_amount(self, first: int, second: int) -> None:
        decide_ram("alpha", change(A, first))
        assert (
            decide_ram(
                "alpha", change(A, second, old="confirmed"), confirmed_before=first
            ).rejection_reason
            == ""
        )
        assert Commitment.objects.get().requested_amount == second * GIB
        assert len(slots_of(A)) == second
        assert_rooms_add_up()

    def test_deleted_commitment_returns_when_the_batch_is_rejected(self) -> None:
        decide_ram("alpha", change(A, 3))
        changes = [change(A, 3, None, old="confirmed"), change(B, 11)]
        assert decide_ram("alpha", *changes).rejection_reason
        assert len(slots_of(A)) == 3

    def test_room_of_a_deleted_commitment_is_free_for_the_next_one_in_the_batch(self) -> None:
        decide_ram("alpha", change(A, 8))
        changes = [change(B, 10), change(A, 8, None, old="confirmed")]
        assert decide_ram("alpha", *changes).rejection_reason == ""
        assert not Commitment.objects.filter(commitment_uuid=A).exists()
        assert len(slots_of(B)) == 10
        assert_rooms_add_up()

    def test_same_request_twice_changes_nothing_the_second_time(self) -> None:
        decide_ram("alpha", change(A, 2))
        rows = (list(Commitment.objects.values()), list(Reservation.objects.values()))
        later = NOW + timedelta(minutes=1)
        assert decide_ram("alpha", change(A, 2), now=later).rejection_reason == ""
        assert (list(Commitment.objects.values()), list(Reservation.objects.values())) == rows
        assert CommitmentEvent.objects.count() == 1

    def test_confirmed_to_superseded_alone_releases_everything(self) -> None:
        decide_ram("alpha", change(A, 2))
        outcome = decide_ram("alpha", change(A, 2, "superseded", old="confirmed"))
        assert outcome.rejection_reason == ""
        row = Commitment.objects.get()
        assert (row.ready_status, row.ready_reason) == (False, "superseded")
        assert (row.requested_amount, slots_of(A)) == (2 * GIB, [])
        assert_rooms_add_up()

    def test_change_of_expiry_keeps_the_slots_and_moves_their_end(self) -> None:
        decide_ram("alpha", change(A, 2))
        later = NOW + timedelta(days=800)
        moved = change(
            A, 2, old="confirmed", expires_at=later, old_expires_at=NOW + timedelta(days=365)
        )
        assert decide_ram("alpha", moved).rejection_reason == ""
        assert set(Reservation.objects.values_list("end_time", "slot_index")) == {
            (later, 0),
            (later, 1),
        }

    def test_immense_amount_is_rejected_without_planning_its_slots(self) -> None:
        outcome = decide_ram("alpha", change(A, 2**33 - 1))
        assert "insufficient capacity: 0/8589934591" in outcome.rejection_reason

    def test_amount_beyond_the_ledger_is_a_structural_rejection(self) -> None:
        outcome = decide_ram("alpha", change(A, 2**63 - 1))
        assert f"commitment {A}: amount out of range" in outcome.rejection_reason
        assert outcome.retry_at is None


@pytest.mark.usefixtures("cloud")
class TestNotConfirming:
    @pytest.mark.parametrize("state", ["planned", "pending"])
    def test_new_commitment_is_stored_without_asking(self, state: str) -> None:
        assert decide_ram("alpha", change(A, 2, state)).rejection_reason == ""
        row = Commitment.objects.get()
        assert (row.allow_rejection, row.requested_amount) == (False, 2 * GIB)
        assert len(slots_of(A)) == (0 if state == "planned" else 2)

    def test_pending_that_does_not_fit_waits_with_a_growing_delay(self) -> None:
        assert decide_ram("alpha", change(A, 11, "pending")).rejection_reason == ""
        row = Commitment.objects.get()
        assert (row.ready_status, row.ready_reason) == (False, "Reserving")
        assert "insufficient capacity: 10/11" in row.ready_message
        assert row.next_reconcile_at == NOW + timedelta(minutes=1)

    def test_guaranteed_to_confirmed_is_accepted_whatever_the_room(self) -> None:
        decide_ram("alpha", change(A, 2, "guaranteed"))
        outcome = decide_ram("alpha", change(A, 2, "confirmed", old="guaranteed"))
        assert outcome.rejection_reason == ""
        assert Commitment.objects.get().allow_rejection is False

    @pytest.mark.parametrize("state", ["superseded", "expired"])
    def test_end_of_an_unknown_commitment_leaves_a_tombstone(self, state: str) -> None:
        if state == "superseded":
            decide_ram("alpha", change(B, 2))
            changes = [change(B, 2, old="confirmed", new=None), change(A, 1, state, old="planned")]
            decide_ram("alpha", *changes)
        else:
            decide_ram("alpha", change(A, 1, state, old="confirmed"))
        row = Commitment.objects.get(commitment_uuid=A)
        assert (row.state, row.ready_status) == (state, False)

    def test_delete_of_an_absent_commitment_is_accepted(self) -> None:
        assert decide_ram("alpha", change(A, 1, None, old="planned")).rejection_reason == ""

    def test_delete_works_when_the_group_is_gone(self) -> None:
        decide_ram("alpha", change(A, 2))
        FlavorGroupMember.objects.all().delete()
        FlavorGroup.objects.all().delete()
        assert decide_ram("alpha", change(A, 2, None, old="confirmed")).rejection_reason == ""
        assert not Commitment.objects.exists()
        assert_rooms_add_up()

    def test_structural_problem_is_unprocessable(self) -> None:
        outcome = decide_ram("alpha", change("x" * 50, 1, "planned"))
        assert outcome.status == 422
        assert "unexpected commitment format" in outcome.rejection_reason

    def test_past_end_holds_nothing(self) -> None:
        decide_ram("alpha", change(A, 2))
        ended = change(A, 2, old="confirmed", expires_at=NOW - timedelta(minutes=1))
        assert decide_ram("alpha", ended).rejection_reason == ""
        assert slots_of(A) == []
        assert Commitment.objects.get().ready_reason == "expired"


@pytest.mark.usefixtures("cloud")
class TestStructure:
    @pytest.mark.parametrize(
        ("resource", "reason"),
        [
            ("hw_version_nosuch_ram", "flavor group not found: nosuch"),
            ("bogus", "project with unknown resource name alpha: "),
            ("hw_version_hana_1_instances", "project with unknown resource name alpha: "),
        ],
    )
    def test_first_failure_is_the_reason(self, resource: str, reason: str) -> None:
        outcome = decide({"alpha": {resource: [change(A, 1)]}, "beta": {RAM: [change(B, 1)]}})
        assert (outcome.status, outcome.retry_at) == (200, None)
        assert reason in outcome.rejection_reason
        assert not Commitment.objects.exists()

    def test_resource_without_commitments_is_named(self) -> None:
        make_group("gp", flavors=[("tiny", 512, 1)], handles=())
        outcome = decide({"alpha": {"hw_version_gp_ram": [change(A, 1)]}})
        assert outcome.rejection_reason == (
            'flavor group "gp" is not configured to handle memory commitments'
        )

    def test_uuid_of_fifty_characters_is_refused(self) -> None:
        outcome = decide_ram("alpha", change("x" * 50, 1))
        assert "unexpected commitment format" in outcome.rejection_reason

    def test_stale_version_comes_before_contradictions(self) -> None:
        with pytest.raises(StaleVersion):
            decide_ram("alpha", change(A, 1, None), info_version=9999)
        with pytest.raises(InvalidInput):
            decide_ram("alpha", change(A, 1, None))

    def test_empty_request_is_accepted(self) -> None:
        assert decide({}).rejection_reason == ""

    def test_no_time_left_is_a_timeout(self, settings: Any) -> None:
        liquid = settings.HEADROOM.liquid.model_copy(update={"change_timeout_seconds": 0})
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"liquid": liquid})
        outcome = decide_ram("alpha", change(A, 1))
        assert outcome.rejection_reason.startswith(
            "timeout reached while processing commitment changes: "
        )
        assert outcome.is_timeout
        assert not Commitment.objects.exists()


def test_groups_not_extracted_yet_is_not_ready() -> None:
    with pytest.raises(NotReady):
        decide_ram("alpha", change(A, 1), info_version=1)
    outcome = decide_ram("alpha", change(A, 1), info_version=1, is_dry_run=True)
    assert outcome.rejection_reason == "dry run: caches not ready, please retry later"


@pytest.mark.usefixtures("cloud")
class TestCores:
    def test_cores_are_counted_against_the_capacity_row(self) -> None:
        assert decide({"alpha": {CORES: [change(A, 8)]}}).rejection_reason == ""
        assert decide({"alpha": {CORES: [change(B, 8)]}}).rejection_reason == ""
        outcome = decide({"beta": {CORES: [change(C, 1)]}})
        assert outcome.rejection_reason.endswith(
            f"- commitment {C}: insufficient CPU cores: 0 available, 1 requested"
        )
        assert not Reservation.objects.exists()

    def test_two_commitments_of_one_batch_share_the_headroom(self) -> None:
        outcome = decide({"alpha": {CORES: [change(A, 10), change(B, 10)]}})
        assert f"commitment {B}: insufficient CPU cores: 6 available" in outcome.rejection_reason
        assert A not in outcome.rejection_reason

    def test_repeating_an_accepted_batch_is_accepted_again(self) -> None:
        decide({"alpha": {CORES: [change(A, 16)]}})
        assert decide({"alpha": {CORES: [change(A, 16)]}}).rejection_reason == ""

    def test_cores_of_a_zone_are_counted_when_they_are_asked_for_first(self) -> None:
        assert decide({"alpha": {CORES: [change(A, 40)]}}, zone="az-b").rejection_reason == ""
        outcome = decide({"alpha": {CORES: [change(B, 1)]}}, zone="az-b")
        assert "insufficient CPU cores: 0 available, 1 requested" in outcome.rejection_reason

    @pytest.mark.parametrize("new", [None, "superseded", "expired"])
    def test_cores_of_a_commitment_that_ends_are_free_again(self, new: str | None) -> None:
        decide({"alpha": {CORES: [change(A, 16)]}})
        assert decide({"beta": {CORES: [change(B, 1)]}}).rejection_reason
        assert decide({"alpha": {CORES: [change(A, 16, new, old="confirmed")]}}).status == 200
        assert decide({"beta": {CORES: [change(B, 16)]}}).rejection_reason == ""

    def test_refused_growth_keeps_the_cores_that_were_accepted(self) -> None:
        decide({"alpha": {CORES: [change(A, 12)]}})
        grown = {"alpha": {CORES: [change(A, 17, old="confirmed")]}}
        reason = decide(grown, confirmed_before=12).rejection_reason
        assert "insufficient CPU cores: 16 available, 17 requested" in reason
        assert Commitment.objects.get().accepted_amount == 12
        reason = decide({"beta": {CORES: [change(B, 5)]}}).rejection_reason
        assert "insufficient CPU cores: 4 available, 5 requested" in reason

    def test_unknown_cores_are_asked_for_again_soon(self) -> None:
        outcome = decide({"alpha": {CORES: [change(A, 1)]}}, zone="az-9")
        assert "waiting for CPU capacity data" in outcome.rejection_reason
        assert outcome.retry_at == NOW + timedelta(minutes=1)


@pytest.mark.usefixtures("cloud")
class TestHandover:
    def test_split_in_a_full_zone_keeps_the_slots_and_their_vms(self) -> None:
        decide_ram("alpha", change(A, 10))
        host = Reservation.objects.first().target_host  # type: ignore[union-attr] # slots exist
        for slot in Reservation.objects.all()[:4]:
            make_vm(host=host, slot=slot, memory_gib=1, vcpus=4, project_id="alpha")
        before = set(Reservation.objects.values_list("pk", "target_host"))
        outcome = decide_ram(
            "alpha",
            change(A, 10, "superseded", old="confirmed"),
            change(B, 3),
            change(C, 7),
        )
        assert outcome.rejection_reason == ""
        assert set(Reservation.objects.values_list("pk", "target_host")) == before
        assert (len(slots_of(A)), len(slots_of(B)), len(slots_of(C))) == (0, 3, 7)

    def test_merge_in_a_full_zone_keeps_the_slots(self) -> None:
        decide_ram("alpha", change(A, 4))
        decide_ram("alpha", change(B, 6))
        before = set(Reservation.objects.values_list("pk", "target_host"))
        outcome = decide_ram(
            "alpha",
            change(C, 10),
            change(A, 4, "superseded", old="confirmed"),
            change(B, 6, "superseded", old="confirmed"),
        )
        assert outcome.rejection_reason == ""
        assert set(Reservation.objects.values_list("pk", "target_host")) == before
        assert len(slots_of(C)) == 10
        assert_rooms_add_up()

    def test_consumption_by_another_project_takes_the_empty_slots(self) -> None:
        decide_ram("alpha", change(A, 5))
        decide_ram("gamma", change("dddddddd-0000", 5))
        outcome = decide(
            {
                "alpha": {RAM: [change(A, 5, "superseded", old="confirmed"), change(B, 3)]},
                "beta": {RAM: [change(C, 2)]},
            }
        )
        assert outcome.rejection_reason == ""
        assert (len(slots_of(B)), len(slots_of(C))) == (3, 2)
        projects = Reservation.objects.filter(commitment__commitment_uuid=C)
        assert set(projects.values_list("project_id", flat=True)) == {"beta"}
        assert_rooms_add_up()

    @pytest.mark.parametrize(
        ("source", "target"), [("alpha", "beta"), ("beta", "alpha")], ids=["forth", "back"]
    )
    def test_transfer_moves_the_row_whatever_sorts_first(self, source: str, target: str) -> None:
        decide_ram(source, change(A, 4))
        before = set(Reservation.objects.values_list("pk", "target_host"))
        outcome = decide(
            {
                source: {RAM: [change(A, 4, None, old="confirmed")]},
                target: {RAM: [change(A, 4)]},
            }
        )
        assert outcome.rejection_reason == ""
        assert Commitment.objects.get().project_id == target
        assert set(Reservation.objects.values_list("pk", "target_host")) == before
        assert set(Reservation.objects.values_list("project_id", flat=True)) == {target}
        assert_rooms_add_up()

    def test_slots_with_vms_of_the_old_project_are_placed_anew(self) -> None:
        decide_ram("alpha", change(A, 4))
        slot = Reservation.objects.get(slot_index=0)
        make_vm(host=slot.target_host, slot=slot, memory_gib=1, vcpus=4, project_id="alpha")
        outcome = decide(
            {
                "alpha": {RAM: [change(A, 4, None, old="confirmed")]},
                "beta": {RAM: [change(A, 4)]},
            }
        )
        assert outcome.rejection_reason == ""
        assert not Reservation.objects.filter(pk=slot.pk).exists()
        assert len(slots_of(A)) == 4
        assert_rooms_add_up()


@pytest.mark.usefixtures("cloud")
class TestDryRun:
    def test_probe_that_fits_is_accepted_and_leaves_nothing(self) -> None:
        outcome = decide_ram("alpha", change(A, 10), is_dry_run=True)
        assert outcome.rejection_reason == ""
        assert not Commitment.objects.exists()
        assert not Reservation.objects.exists()

    def test_probe_that_does_not_fit_is_named(self) -> None:
        outcome = decide_ram("alpha", change(A, 11), is_dry_run=True)
        assert outcome.rejection_reason.startswith(
            "dry run: 1 probe(s) rejected:\n- dryrun-test-req-0: "
            "insufficient capacity: 10/11 reservation slots could be placed (no host has room: "
        )
        assert outcome.retry_at == NOW + timedelta(minutes=15)

    def test_growth_and_loss_of_one_resource_cancel_out(self) -> None:
        decide_ram("gamma", change("dddddddd-0000", 10))
        outcome = decide(
            {
                "alpha": {RAM: [change(A, 5)]},
                "beta": {RAM: [change(B, 5, None, old="confirmed")]},
            },
            is_dry_run=True,
        )
        assert outcome.rejection_reason == ""

    def test_unknown_group_is_a_reason_even_when_nothing_grows(self) -> None:
        outcome = decide(
            {"alpha": {"hw_version_nosuch_ram": [change(A, 5, "planned")]}}, is_dry_run=True
        )
        assert outcome.rejection_reason == "dry run: flavor group not found: nosuch"

    def test_free_room_falls_by_what_was_accepted(self) -> None:
        decide_ram("alpha", change(A, 6))
        assert decide_ram("beta", change(B, 4), is_dry_run=True).rejection_reason == ""
        assert decide_ram("beta", change(B, 5), is_dry_run=True).rejection_reason
