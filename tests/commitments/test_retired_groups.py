"""Commitments of flavor groups that are gone (decisions, retired flavor groups)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from capacity.groups.refreshing import refresh_flavor_groups
from capacity.models import (
    FlavorGroup,
    FlavorGroupMember,
    FlavorGroupSettings,
    GroupCapacity,
    Reservation,
)
from commitments.domain.changeset import CommitmentChange
from commitments.models import Commitment
from commitments.services.info import current_service_info
from commitments.services.reports import report_capacity, report_usage
from commitments.services.what_if import WhatIfQuestion, prepare_what_if
from hosts.models import Flavor
from journal.errors import InvalidInput
from scheduling.resources import GIB
from tests.commitments.change_requests import ACTOR, CORES, NOW, RAM, change, decide, request
from tests.factories import make_group, make_group_capacity, make_host, make_vm

pytestmark = pytest.mark.django_db

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
C = "cccccccc-0000-4000-8000-000000000003"
Changes = Mapping[str, Mapping[str, Sequence[CommitmentChange]]]


@pytest.fixture(autouse=True)
def cloud() -> None:
    """A group that goes when its commitment A of 6 units, and of cores, is there; a full host."""
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_host("h1", zone="az-a", memory_gib=10, vcpus=40)
    make_group_capacity("hana_1", "az-a", total_vcpus=40)
    assert decide({"alpha": {RAM: [change(A, 6)]}}).rejection_reason == ""
    slot = Reservation.objects.order_by("pk").first()
    assert slot is not None
    make_vm(host=slot.target_host, slot=slot, memory_gib=1, vcpus=4, project_id="alpha")
    FlavorGroup.objects.update(is_retired=True)


def hosts_of(uuid: str) -> int:
    slots = Reservation.objects.filter(commitment__commitment_uuid=uuid)
    return slots.filter(target_host__isnull=False).count()


def test_they_are_split() -> None:
    split = [change(A, 6, "superseded", old="confirmed"), change(B, 2), change(C, 4)]
    outcome = decide({"alpha": {RAM: split}})
    assert (outcome.status, outcome.rejection_reason) == (200, "")
    assert (hosts_of(A), hosts_of(B), hosts_of(C)) == (0, 2, 4)


def test_they_are_transferred() -> None:
    transfer = {
        "alpha": {RAM: [change(A, 6, None, old="confirmed")]},
        "beta": {RAM: [change(A, 6, "confirmed")]},
    }
    outcome = decide(transfer)
    assert (outcome.status, outcome.rejection_reason) == (200, "")
    assert Commitment.objects.get().project_id == "beta"
    assert hosts_of(A) == 6


@pytest.mark.parametrize("amount", [6, 5])
def test_they_are_kept_and_shrunk(amount: int) -> None:
    outcome = decide({"alpha": {RAM: [change(A, amount, old="confirmed")]}})
    assert (outcome.status, outcome.rejection_reason) == (200, "")
    assert hosts_of(A) == amount


@pytest.mark.parametrize("new", [None, "superseded", "expired"])
def test_they_are_deleted_and_ended(new: str | None) -> None:
    assert decide({"alpha": {RAM: [change(A, 6, new, old="confirmed")]}}).rejection_reason == ""
    assert not Reservation.objects.exists()


GROWTH: dict[str, tuple[Changes, str]] = {
    "larger": ({"alpha": {RAM: [change(A, 7, old="confirmed")]}}, "6144 to 7168 MiB"),
    "one more": ({"alpha": {RAM: [change(B, 1)]}}, "0 to 1024 MiB"),
    "pending": ({"beta": {RAM: [change(B, 1, "pending")]}}, "0 to 1024 MiB"),
    "planned": ({"alpha": {RAM: [change(B, 1, "planned")]}}, "0 to 1024 MiB"),
    "a split that grows": (
        {"alpha": {RAM: [change(A, 6, "superseded", old="confirmed"), change(B, 7)]}},
        "6144 to 7168 MiB",
    ),
    "cores": ({"alpha": {CORES: [change(B, 4)]}}, "0 to 4 cores"),
}


@pytest.mark.parametrize(("changes", "amounts"), GROWTH.values(), ids=list(GROWTH))
def test_they_do_not_grow(changes: Changes, amounts: str) -> None:
    outcome = decide(changes)
    assert outcome.status in {200, 422}
    assert "flavor group hana_1 is retired" in outcome.rejection_reason
    assert amounts in outcome.rejection_reason
    assert list(Commitment.objects.values_list("commitment_uuid", "requested_amount")) == [
        (A, 6 << 30)
    ]
    assert hosts_of(A) == 6
    with pytest.raises(InvalidInput, match="is retired"):
        prepare_what_if(WhatIfQuestion(batch=request(changes)), now=NOW)


@pytest.mark.parametrize("mode", ["net", "exact"])
def test_a_dry_run_says_so_too(settings: Any, mode: str) -> None:
    if mode == "exact":
        liquid = settings.HEADROOM.liquid.model_copy(update={"dry_run_mode": mode})
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"liquid": liquid})
    grown = decide({"alpha": {RAM: [change(B, 1)]}}, is_dry_run=True)
    assert "dry run: flavor group hana_1 is retired" in grown.rejection_reason
    transfer = {
        "alpha": {RAM: [change(A, 6, None, old="confirmed")]},
        "beta": {RAM: [change(A, 6, "confirmed")]},
    }
    assert decide(transfer, is_dry_run=True).rejection_reason == ""


def test_cores_are_split() -> None:
    FlavorGroup.objects.update(is_retired=False)
    decide({"alpha": {CORES: [change("dddddddd-0000", 8)]}})
    FlavorGroup.objects.update(is_retired=True)
    split = [change("dddddddd-0000", 8, "superseded", old="confirmed")]
    split += [change(B, 3), change(C, 5)]
    assert decide({"alpha": {CORES: split}}).rejection_reason == ""
    assert GroupCapacity.objects.get().total_vcpus == 40


class TestRenamedGroup:
    """All flavors are of another group now; what was promised is promised in the old one."""

    @pytest.fixture(autouse=True)
    def _rename(self, cloud: None) -> None:
        for flavor in Flavor.objects.all():
            flavor.extra_specs["quota:hw_version"] = "hana_2"
            flavor.save()
        refresh_flavor_groups(actor=ACTOR, request_id="rename")
        assert not FlavorGroupMember.objects.filter(group__name="hana_1").exists()

    def test_limes_is_told_of_both(self) -> None:
        resources: Any = current_service_info().payload["resources"]
        assert {RAM, RAM.replace("hana_1", "hana_2")} <= set(resources)
        report: Any = report_capacity(["az-a"])["resources"]
        assert report[RAM]["perAZ"]["az-a"]["capacity"] == 5  # its slots, without the VM in one

    def test_the_vm_uses_the_new_one(self) -> None:
        usage: Any = report_usage("alpha", ["az-a"])["resources"]
        used = {name: usage[name]["perAZ"]["az-a"]["usage"] for name in usage}
        assert used[RAM.replace("hana_1_ram", "hana_1_instances")] == 0
        assert used[RAM.replace("hana_1_ram", "hana_2_instances")] == 1

    def test_its_commitments_are_split_and_transferred(self) -> None:
        split = [change(A, 6, "superseded", old="confirmed"), change(B, 2), change(C, 4)]
        outcome = decide({"alpha": {RAM: split}})
        assert (outcome.status, outcome.rejection_reason) == (200, "")
        assert (hosts_of(A), hosts_of(B), hosts_of(C)) == (0, 2, 4)
        given_up, taken = change(C, 4, None, old="confirmed"), change(C, 4)
        assert decide({"alpha": {RAM: [given_up]}, "beta": {RAM: [taken]}}).rejection_reason == ""
        assert hosts_of(C) == 4

    def test_they_do_not_grow(self) -> None:
        assert "is retired" in decide({"alpha": {RAM: [change(B, 1)]}}).rejection_reason


class TestUnitOfEightGib:
    """The unit was set when the group was there, and stays."""

    @pytest.fixture(autouse=True)
    def _unit(self, cloud: None) -> None:
        assert decide({"alpha": {RAM: [change(A, 6, None, old="confirmed")]}}).status == 200
        FlavorGroup.objects.update(is_retired=False)
        FlavorGroupSettings.objects.update(ram_unit_gib=8)
        make_host("h2", zone="az-a", memory_gib=48, vcpus=192)
        assert decide({"alpha": {RAM: [change(A, 6)]}}).rejection_reason == ""
        FlavorGroup.objects.update(is_retired=True)

    def test_parts_of_a_split_have_it(self) -> None:
        split = [change(A, 6, "superseded", old="confirmed"), change(B, 2), change(C, 4)]
        assert decide({"alpha": {RAM: split}}).rejection_reason == ""
        amounts = Commitment.objects.filter(state="confirmed").values_list("requested_amount")
        assert sorted(amounts) == [(16 * GIB,), (32 * GIB,)]

    def test_what_is_transferred_keeps_it(self) -> None:
        given_up, taken = change(A, 6, None, old="confirmed"), change(A, 6)
        assert decide({"alpha": {RAM: [given_up]}, "beta": {RAM: [taken]}}).rejection_reason == ""
        assert Commitment.objects.get().requested_amount == 48 * GIB
