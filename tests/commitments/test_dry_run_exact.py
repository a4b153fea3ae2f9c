"""Dry runs that simulate the whole changeset, ``dry_run_mode = exact`` (spec liquid, 11.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from capacity.models import FlavorGroupSettings, HostCapacity, Reservation
from commitments.domain.changeset import CommitmentChange
from commitments.models import Commitment, CommitmentEvent
from tests.commitments.change_requests import CORES, NOW, RAM, change, decide, decide_ram
from tests.factories import make_group, make_group_capacity, make_host, make_vm
from tests.ledger import database_fingerprint

pytestmark = pytest.mark.django_db

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
C = "cccccccc-0000-4000-8000-000000000003"
TABLES = (Commitment, Reservation, HostCapacity, CommitmentEvent)

Changes = Mapping[str, Mapping[str, Sequence[CommitmentChange]]]
Setup = Callable[[], object]


@pytest.fixture(autouse=True)
def cloud() -> None:
    """One group of a 1 GiB flavor on one host of 10 slots."""
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_host("h1", zone="az-a", memory_gib=10, vcpus=40)
    make_group_capacity("hana_1", "az-a", total_vcpus=16)


@pytest.fixture
def dry_run_mode(settings: Any) -> Callable[[str], None]:
    def choose(mode: str) -> None:
        liquid = settings.HEADROOM.liquid.model_copy(update={"dry_run_mode": mode})
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"liquid": liquid})

    return choose


def nothing() -> None:
    """Leave the zone empty."""


def full_of_alpha() -> None:
    assert decide_ram("alpha", change(A, 10)).rejection_reason == ""


def full_of_alphas_vms() -> None:
    full_of_alpha()
    for slot in Reservation.objects.order_by("pk"):
        make_vm(host=slot.target_host, slot=slot, memory_gib=1, vcpus=4, project_id="alpha")


def guaranteed() -> None:
    assert decide_ram("alpha", change(A, 10, "guaranteed")).rejection_reason == ""


def ram(**changes: list[CommitmentChange]) -> Changes:
    return {project: {RAM: listed} for project, listed in changes.items()}


def consumed(amount: int = 10) -> Changes:
    return ram(alpha=[change(A, 10, "superseded", old="confirmed")], beta=[change(B, amount)])


ENDED = NOW - timedelta(minutes=1)
CASES: dict[str, tuple[Setup, Changes, bool, bool]] = {
    "empty request": (nothing, {}, True, True),
    "new, fits": (nothing, ram(alpha=[change(A, 10)]), True, True),
    "new, does not fit": (nothing, ram(alpha=[change(A, 11)]), False, False),
    "loss alone": (full_of_alpha, ram(alpha=[change(A, 10, None, old="confirmed")]), True, True),
    "A +10, B -10, empty slots": (full_of_alpha, consumed(), True, True),
    "A +10, B -10, slots full of VMs": (full_of_alphas_vms, consumed(), True, False),
    "A +11, B -10": (full_of_alpha, consumed(11), False, False),
    "split": (
        full_of_alphas_vms,
        ram(alpha=[change(A, 10, "superseded", old="confirmed"), change(B, 3), change(C, 7)]),
        True,
        True,
    ),
    "transfer of empty slots": (
        full_of_alpha,
        ram(alpha=[change(A, 10, None, old="confirmed")], beta=[change(A, 10)]),
        True,
        True,
    ),
    "transfer of slots full of VMs": (
        full_of_alphas_vms,
        ram(alpha=[change(A, 10, None, old="confirmed")], beta=[change(A, 10)]),
        True,
        False,
    ),
    "pending waits for room": (nothing, ram(alpha=[change(A, 11, "pending")]), True, True),
    "planned": (nothing, ram(alpha=[change(A, 1000, "planned")]), True, True),
    "guaranteed to confirmed": (
        guaranteed,
        ram(alpha=[change(A, 10, "confirmed", old="guaranteed")]),
        True,
        True,
    ),
    "end in the past": (nothing, ram(alpha=[change(A, 11, expires_at=ENDED)]), False, False),
    "cores, fit": (nothing, {"alpha": {CORES: [change(A, 16)]}}, True, True),
    "cores, do not fit": (nothing, {"alpha": {CORES: [change(A, 17)]}}, False, False),
}


@pytest.mark.parametrize(
    ("setup", "changes", "fits_by_net", "fits_exactly"), CASES.values(), ids=list(CASES)
)
def test_exact_dry_run_answers_as_the_change_itself_and_writes_nothing(
    dry_run_mode: Callable[[str], None],
    setup: Setup,
    changes: Changes,
    *,
    fits_by_net: bool,
    fits_exactly: bool,
) -> None:
    setup()
    before = [list(table.objects.order_by("pk").values()) for table in TABLES]
    dry_run_mode("net")
    assert (decide(changes, is_dry_run=True).rejection_reason == "") is fits_by_net
    dry_run_mode("exact")
    assert (decide(changes, is_dry_run=True).rejection_reason == "") is fits_exactly
    assert [list(table.objects.order_by("pk").values()) for table in TABLES] == before
    assert (decide(changes).rejection_reason == "") is fits_exactly


@pytest.mark.parametrize("mode", ["net", "exact"])
@pytest.mark.parametrize(
    ("changes", "zone", "words"),
    [
        pytest.param(ram(alpha=[change(A, 10)]), "az-a", "", id="accepted"),
        pytest.param(ram(alpha=[change(A, 11)]), "az-a", "insufficient capacity", id="refused"),
        pytest.param({"alpha": {CORES: [change(A, 16)]}}, "az-a", "", id="cores"),
        pytest.param({"alpha": {CORES: [change(A, 40)]}}, "az-b", "", id="cores never counted"),
        pytest.param(
            {"alpha": {CORES: [change(A, 41)]}},
            "az-b",
            "insufficient CPU cores: 40 available, 41 requested",
            id="cores never counted, refused",
        ),
        pytest.param(
            {"alpha": {CORES: [change(A, 1)]}}, "az-x", "waiting for CPU", id="cores of no zone"
        ),
    ],
)
def test_dry_run_leaves_the_whole_database_as_it_was(
    dry_run_mode: Callable[[str], None], mode: str, changes: Changes, zone: str, words: str
) -> None:
    make_host("h2", zone="az-b", memory_gib=10, vcpus=40)
    dry_run_mode(mode)
    decide({}, is_dry_run=True)
    before = database_fingerprint()
    reason = decide(changes, zone=zone, is_dry_run=True).rejection_reason
    assert (reason == "", words in reason) == (words == "", True)
    assert database_fingerprint() == before


def test_reason_names_the_commitment_and_says_when_to_ask_again(
    dry_run_mode: Callable[[str], None],
) -> None:
    dry_run_mode("exact")
    outcome = decide_ram("alpha", change(A, 2), change(B, 11), is_dry_run=True)
    assert outcome.rejection_reason.startswith(
        f"dry run: 1 probe(s) rejected:\n- {B}: insufficient capacity: 8/11 reservation slots"
    )
    assert outcome.retry_at == NOW + timedelta(minutes=15)


def test_resource_without_dry_run_is_accepted_whatever_the_room(
    dry_run_mode: Callable[[str], None],
) -> None:
    dry_run_mode("exact")
    FlavorGroupSettings.objects.update(ram_handles_dry_run=False)
    resources = {RAM: [change(A, 11)], CORES: [change(B, 17)]}
    reason = decide({"alpha": resources}, is_dry_run=True).rejection_reason
    assert (A in reason, B in reason) == (False, True)
    assert decide_ram("alpha", change(A, 11), is_dry_run=True).rejection_reason == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param(
            {"alpha": {"hw_version_nosuch_ram": [change(A, 1)]}},
            "dry run: flavor group not found: nosuch",
            id="unknown group",
        ),
        pytest.param(
            ram(alpha=[change("x" * 50, 1, "planned")]),
            f"dry run: commitment {'x' * 50}: unexpected commitment format",
            id="uuid",
        ),
        pytest.param(
            ram(alpha=[change(A, 2**62)]),
            f"dry run: commitment {A}: amount out of range",
            id="amount",
        ),
    ],
)
def test_structural_problem_is_a_reason_and_no_status(
    dry_run_mode: Callable[[str], None], changes: Changes, reason: str
) -> None:
    dry_run_mode("exact")
    outcome = decide(changes, is_dry_run=True)
    assert (outcome.status, outcome.retry_at) == (200, None)
    assert outcome.rejection_reason.startswith(reason)


@pytest.mark.parametrize("mode", ["net", "exact"])
def test_no_time_left_is_a_timeout_of_a_dry_run(settings: Any, mode: str) -> None:
    update = {"change_timeout_seconds": 0, "dry_run_mode": mode}
    liquid = settings.HEADROOM.liquid.model_copy(update=update)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"liquid": liquid})
    outcome = decide_ram("alpha", change(A, 1), is_dry_run=True)
    assert outcome.rejection_reason.startswith("dry run: timeout: ")
    assert (outcome.is_timeout, outcome.retry_at) == (True, NOW + timedelta(minutes=1))
