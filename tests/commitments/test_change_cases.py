"""Rows of the case lists of liquid 11.3, 11.5, 11.7 and 11.9 that need several resources."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Sum

from capacity.models import FlavorGroupSettings, GroupCapacity, Reservation
from commitments.domain.changeset import CommitmentChange
from commitments.domain.state import effective_amount
from commitments.domain.statuses import CommitmentStatus
from commitments.models import Commitment
from journal.errors import Busy, HeadroomError
from scheduling.resources import GIB
from tests.commitments.change_requests import CORES, NOW, RAM, change, decide, decide_ram
from tests.factories import make_group, make_group_capacity, make_host, make_vm

pytestmark = pytest.mark.django_db

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
C = "cccccccc-0000-4000-8000-000000000003"
OTHER_RAM = "hw_version_gp_1_ram"
CONFIRMED = CommitmentStatus.CONFIRMED


@pytest.fixture(autouse=True)
def cloud() -> None:
    """Two groups of 1 and 2 GiB flavors on one host of 10 GiB in az-a."""
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_group("gp_1", flavors=[("gp-small", 2048, 4)], ram_unit_gib=1)
    make_host("h1", zone="az-a", memory_gib=10, vcpus=40)
    make_group_capacity("hana_1", "az-a", total_vcpus=16)


def slots(uuid: str) -> int:
    return Reservation.objects.filter(commitment__commitment_uuid=uuid).count()


@pytest.mark.parametrize("is_dry_run", [False, True], ids=["change", "dry run"])
def test_resource_without_commitments_needs_a_name_all_the_same(*, is_dry_run: bool) -> None:
    changes = {"alpha": {"bogus": [], RAM: [change(A, 2)]}}
    outcome = decide(changes, is_dry_run=is_dry_run)
    assert "project with unknown resource name alpha: " in outcome.rejection_reason
    assert not Commitment.objects.exists()


class TestConversion:
    """Convert 2 of 7 to another group on the same hosts (11.3)."""

    def convert(self, amount: int = 2) -> str:
        """Return the reason of the refusal; the zone is full."""
        decide_ram("alpha", change(A, 7))
        decide_ram("gamma", change("dddddddd-0000", 3))
        self.before = set(Reservation.objects.values_list("pk", flat=True))
        changes = [change(A, 7, "superseded", old="confirmed"), change(B, 5)]
        resources = {RAM: changes, OTHER_RAM: [change(C, amount)]}
        return decide({"alpha": resources}).rejection_reason

    def test_five_stay_and_two_are_placed_in_the_new_group(self) -> None:
        assert self.convert() == ""
        assert (slots(A), slots(B), slots(C)) == (0, 5, 1)
        stayed = Reservation.objects.filter(commitment__commitment_uuid=B)
        assert set(stayed.values_list("pk", flat=True)) <= self.before
        fresh = Reservation.objects.get(commitment__commitment_uuid=C)
        assert (fresh.flavor_group_name, fresh.memory_bytes) == ("gp_1", 2 * GIB)

    def test_what_does_not_fit_is_rejected_as_a_whole(self) -> None:
        assert "insufficient capacity" in self.convert(amount=4)
        assert (slots(A), slots(B), slots(C)) == (7, 0, 0)
        assert Commitment.objects.get(commitment_uuid=A).state == "confirmed"


@pytest.mark.parametrize(
    ("vms", "is_accepted"),
    [
        pytest.param(0, True, id="no VMs"),
        pytest.param(3, True, id="VMs in the three that stay"),
        pytest.param(4, False, id="one free slot"),
        pytest.param(5, False, id="VMs in all five"),
    ],
)
def test_consumption_of_another_project_in_a_full_zone(vms: int, *, is_accepted: bool) -> None:
    """Beta confirms 2 by consuming alpha's public 5, of which 3 are left over (11.3)."""
    decide_ram("alpha", change(A, 5))
    decide_ram("gamma", change("dddddddd-0000", 5))
    of_alpha = Reservation.objects.filter(commitment__commitment_uuid=A).order_by("slot_index")
    for slot in of_alpha[:vms]:
        make_vm(host=slot.target_host, slot=slot, memory_gib=1, vcpus=4, project_id="alpha")
    before = set(Reservation.objects.values_list("pk", "commitment__commitment_uuid"))
    consumed = [change(B, 3), change(A, 5, "superseded", old="confirmed")]
    outcome = decide({"alpha": {RAM: consumed}, "beta": {RAM: [change(C, 2)]}})
    assert (outcome.rejection_reason == "") is is_accepted
    if is_accepted:
        assert (slots(A), slots(B), slots(C)) == (0, 3, 2)
        assert {pk for pk, _uuid in before} == set(Reservation.objects.values_list("pk", flat=True))
    else:
        assert set(Reservation.objects.values_list("pk", "commitment__commitment_uuid")) == before


@pytest.mark.parametrize(
    ("resource", "wanted", "effective"),
    [
        pytest.param(RAM, change(A, 2), 2 * GIB, id="confirmed, 2"),
        pytest.param(RAM, change(A, 2, "pending"), 2 * GIB, id="pending, 2"),
        pytest.param(RAM, change(A, 2, "planned"), 0, id="planned, 2"),
        pytest.param(RAM, change(A, 1, "expired", old="confirmed"), 0, id="expired, 1"),
        pytest.param(RAM, change(A, 1, "superseded", old="confirmed"), 0, id="superseded, 1"),
        pytest.param(
            RAM,
            change(A, 2, old="confirmed", expires_at=NOW - timedelta(minutes=1)),
            0,
            id="ended a minute ago",
        ),
        pytest.param("hw_version_eight_ram", change(A, 5), 40 * GIB, id="confirmed, 5, unit 8 GiB"),
        pytest.param(CORES, change(A, 8), 8, id="cores, confirmed, 8"),
    ],
)
def test_amount_that_counts_follows_status_and_end(
    resource: str, wanted: CommitmentChange, effective: int
) -> None:
    """The table of 11.4; the amount asked for is kept whatever counts of it."""
    make_group("eight", flavors=[("eight", 8192, 4)], ram_unit_gib=8)
    make_host("h2", zone="az-a", memory_gib=40, vcpus=40)
    if wanted.old_status is not None:
        before = change(A, wanted.amount_units)
        decide({"alpha": {resource: [before]}})
    assert decide({"alpha": {resource: [wanted]}}).rejection_reason == ""
    row = Commitment.objects.get()
    claimed = effective_amount(
        requested_amount=row.requested_amount,
        status=CommitmentStatus(row.state),
        end_time=row.end_time,
        now=NOW,
    )
    unit_amount = {RAM: GIB, CORES: 1}.get(resource, 8 * GIB)
    assert (claimed, row.requested_amount) == (effective, wanted.amount_units * unit_amount)
    held = Reservation.objects.aggregate(held=Sum("memory_bytes", default=0))["held"]
    assert held == (0 if resource == CORES else effective)


def test_renewal_moves_nothing() -> None:
    decide_ram("alpha", change(A, 4))
    before = list(Reservation.objects.order_by("pk").values_list())
    again = change(B, 4, "planned", confirm_by=NOW + timedelta(days=365))
    assert decide_ram("alpha", again).rejection_reason == ""
    assert list(Reservation.objects.order_by("pk").values_list()) == before
    assert Commitment.objects.get(commitment_uuid=B).allow_rejection is False


LIVE = ("planned", "pending", "guaranteed", "confirmed")


class TestEnd:
    """What a commitment held is free again however it ends (11.4, 11.9)."""

    @pytest.mark.parametrize("old", LIVE)
    def test_delete_takes_the_row_and_its_slots(self, old: str) -> None:
        decide_ram("alpha", change(A, 2, old))
        outcome = decide_ram("alpha", change(A, 2, None, old=old))
        assert (outcome.status, outcome.rejection_reason) == (200, "")
        assert not Commitment.objects.exists()
        assert not Reservation.objects.exists()

    @pytest.mark.parametrize("old", LIVE)
    @pytest.mark.parametrize("new", ["expired", "superseded"])
    def test_final_status_holds_nothing_and_keeps_the_amount(self, old: str, new: str) -> None:
        decide_ram("alpha", change(A, 2, old))
        outcome = decide_ram("alpha", change(A, 2, new, old=old))
        assert (outcome.status, outcome.rejection_reason) == (200, "")
        row = Commitment.objects.get()
        was_promised = old in {"guaranteed", "confirmed"}
        assert row.allow_rejection is (new == "superseded" and was_promised)
        assert (row.state, row.requested_amount, slots(A)) == (new, 2 * GIB, 0)

    def test_start_is_the_wanted_one_else_now_else_unset(self) -> None:
        wanted = NOW + timedelta(days=3)
        decide_ram(
            "alpha",
            change(A, 1, "guaranteed", confirm_by=wanted),
            change(B, 1),
            change(C, 1, "planned", confirm_by=wanted),
        )
        starts = dict(Commitment.objects.values_list("commitment_uuid", "start_time"))
        assert starts == {A: wanted, B: NOW, C: None}


class TestBusyZone:
    """A zone whose lock is not free in time (11, 11.5)."""

    @pytest.fixture(autouse=True)
    def locked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: object) -> None:
            message = "zone az-a is being changed by another"
            raise Busy(message)

        monkeypatch.setattr("commitments.services.change.zone_lock", refuse)

    def test_confirming_request_is_told_to_come_back_soon(self) -> None:
        outcome = decide_ram("alpha", change(A, 1))
        assert outcome.rejection_reason == (
            "timeout reached while processing commitment changes: "
            "zone az-a is being changed by another"
        )
        assert (outcome.is_timeout, outcome.retry_at) == (True, NOW + timedelta(minutes=1))

    def test_dry_run_is_told_to_come_back_soon(self) -> None:
        outcome = decide_ram("alpha", change(A, 1), is_dry_run=True)
        assert outcome.rejection_reason.startswith("dry run: timeout: zone az-a")
        assert outcome.retry_at == NOW + timedelta(minutes=1)

    def test_non_confirming_request_fails_since_limes_would_not_hear_a_reason(self) -> None:
        with pytest.raises(Busy):
            decide_ram("alpha", change(A, 1, "planned"))


def test_guaranteed_to_confirmed_is_accepted_in_a_full_zone() -> None:
    decide_ram("beta", change(B, 10))
    outcome = decide_ram("alpha", change(A, 2, "confirmed", old="guaranteed"))
    assert (outcome.status, outcome.rejection_reason) == (200, "")
    row = Commitment.objects.get(commitment_uuid=A)
    assert (row.allow_rejection, row.ready_reason) == (False, "Reserving")


def test_unknown_group_beside_a_valid_commitment_leaves_nothing() -> None:
    outcome = decide({"alpha": {RAM: [change(A, 2)], "hw_version_nosuch_ram": [change(B, 2)]}})
    assert "flavor group not found: nosuch" in outcome.rejection_reason
    assert outcome.retry_at is None
    assert not Commitment.objects.exists()


def test_resource_that_takes_no_commitments_is_named_with_its_type() -> None:
    FlavorGroupSettings.objects.filter(group_name="hana_1").update(cores_handles_commitments=False)
    outcome = decide({"alpha": {CORES: [change(A, 2)]}})
    assert outcome.rejection_reason == (
        'flavor group "hana_1" is not configured to handle cores commitments'
    )


class TestRetryAt:
    def test_the_latest_of_several_causes_counts(self) -> None:
        GroupCapacity.objects.all().delete()
        make_group_capacity("hana_1", "az-a", total_vcpus=None)
        outcome = decide({"alpha": {RAM: [change(A, 11)], CORES: [change(B, 4)]}})
        assert "insufficient capacity" in outcome.rejection_reason
        assert outcome.retry_at == NOW + timedelta(minutes=15)

    def test_slot_limit_is_no_matter_of_time(self, settings: Any) -> None:
        liquid = settings.HEADROOM.liquid.model_copy(update={"max_slots_per_commitment": 3})
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"liquid": liquid})
        outcome = decide_ram("alpha", change(A, 4))
        assert "would create 4 new reservation slots, exceeds limit of 3" in (
            outcome.rejection_reason
        )
        assert outcome.retry_at is None


def test_existing_row_whose_update_is_never_decided_times_out_and_stays(settings: Any) -> None:
    decide_ram("alpha", change(A, 2))
    before = list(Commitment.objects.values_list("generation", "requested_amount", "ready_reason"))
    liquid = settings.HEADROOM.liquid.model_copy(update={"change_timeout_seconds": 0})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"liquid": liquid})
    outcome = decide_ram("alpha", change(A, 3, old="confirmed"), confirmed_before=2)
    assert outcome.is_timeout
    assert "timeout reached while processing commitment changes" in outcome.rejection_reason
    assert (
        list(Commitment.objects.values_list("generation", "requested_amount", "ready_reason"))
        == before
    )


class TestDryRun:
    def test_resource_without_dry_run_is_accepted_whatever_the_room(self) -> None:
        FlavorGroupSettings.objects.update(ram_handles_dry_run=False)
        assert decide_ram("alpha", change(A, 1000), is_dry_run=True).rejection_reason == ""

    def test_stale_version_is_refused_like_any_other(self) -> None:
        with pytest.raises(HeadroomError) as refused:
            decide_ram("alpha", change(A, 1), is_dry_run=True, info_version=9999)
        assert refused.value.code == "stale_info_version"

    def test_empty_request_is_accepted(self) -> None:
        assert decide({}, is_dry_run=True).rejection_reason == ""

    def test_loss_alone_is_accepted_without_probe(self) -> None:
        decide_ram("alpha", change(A, 5))
        gone = change(A, 5, None, old="confirmed")
        assert decide_ram("alpha", gone, is_dry_run=True).rejection_reason == ""
        assert slots(A) == 5

    def test_each_resource_that_grows_has_a_probe_of_its_own(self) -> None:
        resources = {RAM: [change(A, 40)], OTHER_RAM: [change(B, 20)]}
        outcome = decide({"alpha": resources}, is_dry_run=True)
        assert outcome.rejection_reason.startswith("dry run: 2 probe(s) rejected:\n- dryrun-")
        assert outcome.rejection_reason.count("insufficient capacity") == 2
        assert not Commitment.objects.exists()
        assert not Reservation.objects.exists()
