"""Rows of liquid 11.1 to 11.9: order of checks, ends, moves, rollback, dry runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from capacity.figures.group_capacity import ensure_totals
from capacity.models import (
    FlavorGroup,
    FlavorGroupMember,
    FlavorGroupSettings,
    Reservation,
    ReservationAllocation,
)
from commitments.domain.changeset import ChangeRequest, CommitmentChange
from commitments.models import Commitment, InstanceAssignment
from commitments.services.change import ChangeOutcome, change_commitments
from commitments.services.usage import reconcile_project_usage
from hosts.models import Host
from journal.errors import Busy, InvalidInput
from scheduling.resources import GIB
from tests.commitments.change_requests import (
    ACTOR,
    CORES,
    NOW,
    RAM,
    change,
    decide,
    decide_ram,
    request,
)
from tests.factories import make_group, make_host, make_vm
from tests.ledger import assert_rooms_add_up, database_fingerprint, unchanged_since

pytestmark = pytest.mark.django_db

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
C = "cccccccc-0000-4000-8000-000000000003"
D = "dddddddd-0000-4000-8000-000000000004"
OTHER_RAM = "hw_version_gp_1_ram"
UNKNOWN = "hw_version_nosuch_ram"
LONG = "x" * 50

Changes = Mapping[str, Mapping[str, Sequence[CommitmentChange]]]


@pytest.fixture(autouse=True)
def cloud() -> None:
    """Two groups of 1 and 2 GiB flavors on one host of 10 GiB in az-a."""
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_group("gp_1", flavors=[("gp-small", 2048, 4)], ram_unit_gib=1)
    make_host("h1", zone="az-a", memory_gib=10, vcpus=40)
    ensure_totals("az-a")
    decide({})  # settles the info version


def slots(uuid: str) -> list[Reservation]:
    return list(Reservation.objects.filter(commitment__commitment_uuid=uuid).order_by("slot_index"))


def ask(wanted: ChangeRequest, request_id: str = "test-request-1") -> ChangeOutcome:
    return change_commitments(wanted, actor=ACTOR, request_id=request_id, now=NOW)


def with_domains(wanted: ChangeRequest) -> ChangeRequest:
    """Give every project a domain of its own."""
    projects = {
        name: replace(project, domain_id=f"domain-of-{name}", domain_name=f"Domain of {name}")
        for name, project in wanted.by_project.items()
    }
    return replace(wanted, by_project=projects)


# 11.2: the first failure in processing order is the reason, whatever order the request has.


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param(
            {"beta": {"bogus": [change(A, 1)]}, "alpha": {UNKNOWN: [change(B, 1)]}},
            "flavor group not found: nosuch",
            id="projects ascending, not as given",
        ),
        pytest.param(
            {"alpha": {RAM: [change(LONG, 1)], OTHER_RAM: [change("short", 1)]}},
            "commitment short: unexpected commitment format",
            id="resources ascending, not as given",
        ),
        pytest.param(
            {"alpha": {RAM: [change(B, 1), change("zz", 1), change("aa", 1)]}},
            "commitment zz: unexpected commitment format",
            id="commitments as given",
        ),
        pytest.param(
            {"alpha": {UNKNOWN: [change(LONG, 1)]}},
            "flavor group not found: nosuch",
            id="group before uuid",
        ),
        pytest.param(
            {"alpha": {"hw_version_nosuch_disks": [change(LONG, 1)]}},
            "project with unknown resource name alpha: ",
            id="name before uuid",
        ),
        pytest.param(
            {"alpha": {RAM: [change(A, 1000)]}, "beta": {RAM: [change(LONG, 1)]}},
            f"commitment {LONG}: unexpected commitment format",
            id="structure before capacity",
        ),
    ],
)
def test_first_failure_in_processing_order_is_the_reason(changes: Changes, reason: str) -> None:
    outcome = decide(changes)
    assert outcome.rejection_reason.startswith(reason)
    assert (outcome.status, outcome.retry_at) == (200, None)
    assert not Commitment.objects.exists()


# 11.2, relaxations: what ends must be able to end.


def lose_groups() -> None:
    FlavorGroupMember.objects.all().delete()
    FlavorGroup.objects.all().delete()
    FlavorGroupSettings.objects.all().delete()


def switch_off() -> None:
    FlavorGroupSettings.objects.update(
        ram_handles_commitments=False, cores_handles_commitments=False
    )


@pytest.mark.parametrize("happens", [lose_groups, switch_off])
@pytest.mark.parametrize("new", [None, "superseded", "expired"], ids=["delete", "sup", "exp"])
@pytest.mark.parametrize("resource", [RAM, CORES], ids=["memory", "cores"])
def test_commitment_ends_when_group_or_flag_are_gone(
    resource: str, new: str | None, happens: Callable[[], None]
) -> None:
    assert decide({"alpha": {resource: [change(A, 4)]}}).rejection_reason == ""
    happens()
    outcome = decide({"alpha": {resource: [change(A, 4, new, old="confirmed")]}})
    assert (outcome.status, outcome.rejection_reason) == (200, "")
    states = list(Commitment.objects.values_list("state", "accepted_amount"))
    assert states == ([] if new is None else [(new, None)])
    assert not Reservation.objects.exists()
    assert_rooms_add_up()


@pytest.mark.parametrize("happens", [lose_groups, switch_off])
@pytest.mark.parametrize(
    ("new", "status"), [("confirmed", 200), ("planned", 422)], ids=["confirming", "not confirming"]
)
def test_commitment_that_stays_live_needs_group_and_flag(
    new: str, status: int, happens: Callable[[], None]
) -> None:
    decide_ram("alpha", change(A, 2, "planned"))
    happens()
    before = database_fingerprint()
    outcome = decide_ram("alpha", change(A, 2, new, old="planned"))
    assert outcome.status == status
    words = "flavor group not found" if happens is lose_groups else "is not configured to handle"
    assert words in outcome.rejection_reason
    assert outcome.retry_at is None
    after = database_fingerprint()
    assert {name for name in before if before[name] != after[name]} <= {
        "commitments_serviceinfoversion",  # the groups changed, so did the version
        "commitments_publishedserviceinfo",
        "commitments_publishedserviceinfo_id_seq",
        "commitments_refusedchange",  # what was refused stays on record
        "commitments_refusedchange_id_seq",
    }


# 11.3: moves, conversions, contradictions.


@pytest.mark.parametrize(
    ("source", "target"), [("alpha", "beta"), ("beta", "alpha")], ids=["forth", "back"]
)
@pytest.mark.parametrize("status", ["planned", "pending", "guaranteed", "confirmed"])
def test_move_changes_project_and_domain_of_the_one_row(
    source: str, target: str, status: str
) -> None:
    ask(with_domains(request({source: {RAM: [change(A, 4, status)]}})))
    pk = Commitment.objects.get().pk
    outcome = ask(
        with_domains(
            request(
                {
                    source: {RAM: [change(A, 4, None, old=status)]},
                    target: {RAM: [change(A, 4, status)]},
                }
            )
        )
    )
    assert (outcome.status, outcome.rejection_reason) == (200, "")
    row = Commitment.objects.get()
    assert (row.pk, row.project_id, row.domain_id) == (pk, target, f"domain-of-{target}")
    held = {(slot.project_id, slot.domain_id) for slot in slots(A)}
    assert held == (set() if status == "planned" else {(target, f"domain-of-{target}")})
    assert_rooms_add_up()


def test_decision_about_a_move_is_reported_under_the_receiver() -> None:
    decide_ram("zeta", change(A, 4))
    for slot in slots(A):
        make_vm(host=slot.target_host, slot=slot, memory_gib=1, vcpus=4, project_id="zeta")
    decide_ram("gamma", change(D, 6))
    before = database_fingerprint()
    changes = {"zeta": {RAM: [change(A, 4, None, old="confirmed")]}, "beta": {RAM: [change(A, 4)]}}
    reason = decide(changes).rejection_reason
    assert reason.startswith(f"1 commitment(s) failed to apply:\n- commitment {A}: insufficient")
    assert unchanged_since(before)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param((RAM, 4), (OTHER_RAM, 4), id="memory to another group"),
        pytest.param((OTHER_RAM, 4), (RAM, 4), id="memory back"),
        pytest.param((RAM, 4), (CORES, 8), id="memory to cores"),
        pytest.param((CORES, 8), (RAM, 4), id="cores to memory"),
    ],
)
def test_conversion_in_place_keeps_the_row_in_a_full_zone(
    old: tuple[str, int], new: tuple[str, int]
) -> None:
    decide({"alpha": {old[0]: [change(A, old[1])]}})
    decide_ram("gamma", change(D, 6))
    pk = Commitment.objects.get(commitment_uuid=A).pk
    gone, arrives = change(A, old[1], None, old="confirmed"), change(A, new[1])
    outcome = decide({"alpha": {old[0]: [gone], new[0]: [arrives]}})
    assert outcome.rejection_reason == ""
    row = Commitment.objects.get(commitment_uuid=A)
    wanted = {
        RAM: ("hana_1", "memory", 4 * GIB),
        OTHER_RAM: ("gp_1", "memory", 4 * GIB),
        CORES: ("hana_1", "cores", 8),
    }[new[0]]
    assert (row.pk, row.flavor_group_name, row.resource_type, row.accepted_amount) == (pk, *wanted)
    sizes = {RAM: [GIB] * 4, OTHER_RAM: [2 * GIB] * 2, CORES: []}[new[0]]
    assert [slot.memory_bytes for slot in slots(A)] == sizes
    assert {slot.flavor_group_name for slot in slots(A)} <= {wanted[0]}
    assert_rooms_add_up()


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([("alpha", RAM, change(A, 1, None))], id="both null"),
        pytest.param([("alpha", RAM, change(A, 1, "expired"))], id="final without old"),
        pytest.param(
            [("alpha", RAM, change(A, 1)), ("beta", RAM, change(A, 1))], id="two arrivals"
        ),
        pytest.param(
            [
                ("alpha", RAM, change(A, 1, None, old="confirmed")),
                ("beta", RAM, change(A, 1)),
                ("gamma", RAM, change(A, 1)),
            ],
            id="three times",
        ),
    ],
)
@pytest.mark.parametrize("is_dry_run", [False, True], ids=["change", "dry run"])
def test_contradiction_is_refused_and_writes_nothing(
    entries: list[tuple[str, str, CommitmentChange]], *, is_dry_run: bool
) -> None:
    decide_ram("alpha", change(A, 1))
    before = database_fingerprint()
    changes = {project: {resource: [one]} for project, resource, one in entries}
    with pytest.raises(InvalidInput, match=A):
        decide(changes, is_dry_run=is_dry_run)
    assert unchanged_since(before)


@pytest.mark.parametrize("stored", [None, "planned", "pending", "guaranteed", "confirmed"])
@pytest.mark.parametrize("believed", [None, "planned", "pending", "guaranteed", "confirmed"])
def test_stored_state_need_not_be_what_limes_believes(
    stored: str | None, believed: str | None
) -> None:
    if stored is not None:
        decide_ram("alpha", change(A, 2, stored))
    outcome = decide_ram("alpha", change(A, 3, "confirmed", old=believed))
    assert (outcome.status, outcome.rejection_reason) == (200, "")
    row = Commitment.objects.get()
    assert (row.state, row.accepted_amount, len(slots(A))) == ("confirmed", 3 * GIB, 3)


@pytest.mark.parametrize("new_first", [True, False], ids=["new first", "old first"])
@pytest.mark.parametrize("status", ["guaranteed", "confirmed"])
def test_split_in_a_full_zone_keeps_vms_in_their_slots(status: str, *, new_first: bool) -> None:
    """Split 10 -> 3 + 7 (11.3): the same slots on the same hosts, with the VMs that are in them."""
    decide_ram("alpha", change(A, 10, status))
    host = Host.objects.get()
    for slot in slots(A)[2:8]:
        make_vm(host=host, slot=slot, memory_gib=1, vcpus=4, project_id="alpha")
    before = sorted(Reservation.objects.values_list("pk", "target_host", "blocked_memory_bytes"))
    inside = sorted(ReservationAllocation.objects.values_list("reservation_id", "vm_uuid", "since"))
    old = [change(A, 10, "superseded", old=status)]
    pieces = [change(B, 3, status), change(C, 7, status)]
    outcome = decide_ram("alpha", *(pieces + old if new_first else old + pieces))
    assert (outcome.status, outcome.rejection_reason) == (200, "")
    assert slots(A) == []
    assert [slot.slot_index for slot in slots(B)] == list(range(3))
    assert [slot.slot_index for slot in slots(C)] == list(range(7))
    assert (
        sorted(Reservation.objects.values_list("pk", "target_host", "blocked_memory_bytes"))
        == before
    )
    found = sorted(ReservationAllocation.objects.values_list("reservation_id", "vm_uuid", "since"))
    assert found == inside
    assert_rooms_add_up()


# 11.4: what is written; state and action.


def test_row_says_who_wrote_it_and_for_which_scheduler() -> None:
    ask(request({"alpha": {RAM: [change(A, 2), change(B, 1, "planned")]}}), request_id="limes-7")
    rows = Commitment.objects.values_list("creator_request_id", "scheduling_domain", "end_time")
    end = NOW + timedelta(days=365)
    assert list(rows) == [("committed-resource-limes-7", "nova", end)] * 2


def test_pending_beside_a_confirming_change_is_rejected_with_it() -> None:
    before = database_fingerprint()
    outcome = decide_ram("alpha", change(A, 2), change(B, 9, "pending"))
    assert outcome.rejection_reason.startswith(
        f"1 commitment(s) failed to apply:\n- commitment {B}: "
        "insufficient capacity: 8/9 reservation slots could be placed"
    )
    assert unchanged_since(before)


def test_planned_beside_a_confirming_change_counts_as_success() -> None:
    assert decide_ram("alpha", change(A, 10), change(B, 1000, "planned")).rejection_reason == ""
    assert Commitment.objects.get(commitment_uuid=B).ready_reason == "Planned"


# 11.5: composition of the reason.


def test_rejected_commitments_are_listed_in_write_order() -> None:
    """The example of 11.5: one line per refused commitment, none for those that fit."""
    decide_ram("gamma", change(D, 9))
    decide({"gamma": {CORES: [change(C, 34)]}})
    changes = {"alpha": {RAM: [change(A, 4)]}, "beta": {CORES: [change(B, 8)]}}
    lines = decide(changes).rejection_reason.split("\n")
    assert lines[0] == "2 commitment(s) failed to apply:"
    placed = f"- commitment {A}: insufficient capacity: 1/4 reservation slots could be placed"
    assert lines[1].startswith(placed)
    assert lines[2].startswith(
        f"- commitment {B}: insufficient CPU cores: 6 available, 8 requested"
    )
    assert len(lines) == 3


@pytest.mark.parametrize("kind", ["structural", "capacity"])
@pytest.mark.parametrize("is_confirming", [True, False], ids=["confirming", "not confirming"])
def test_refusal_of_each_kind_of_request(kind: str, *, is_confirming: bool) -> None:
    """The table at the end of 11.5."""
    before = database_fingerprint()
    uuid, amount = (LONG, 1) if kind == "structural" else (A, 11)
    outcome = decide_ram("alpha", change(uuid, amount, "confirmed" if is_confirming else "pending"))
    is_stored = kind == "capacity" and not is_confirming
    assert outcome.status == (422 if kind == "structural" and not is_confirming else 200)
    assert (outcome.rejection_reason == "") is is_stored
    if is_stored:
        assert Commitment.objects.get().ready_reason == "Reserving"
    else:
        assert unchanged_since(before)


# 11.6: a refused batch leaves nothing at all.


TOO_MUCH = change(D, 40)
REFUSED: dict[str, Changes] = {
    "new": {"alpha": {RAM: [TOO_MUCH]}},
    "growth": {"alpha": {RAM: [change(A, 40, old="confirmed")]}},
    "A ok, B rejected": {"alpha": {RAM: [change(C, 1), TOO_MUCH]}},
    "A deleted, B rejected": {"alpha": {RAM: [change(A, 4, None, old="confirmed"), TOO_MUCH]}},
    "A superseded, B rejected": {
        "alpha": {RAM: [change(A, 4, "superseded", old="confirmed"), TOO_MUCH]}
    },
    "A split, D rejected": {
        "alpha": {
            RAM: [
                change(A, 4, "superseded", old="confirmed"),
                change(B, 1),
                change(C, 3),
                TOO_MUCH,
            ]
        }
    },
    "A moved, D rejected": {
        "alpha": {RAM: [change(A, 4, None, old="confirmed")]},
        "beta": {RAM: [change(A, 4), TOO_MUCH]},
    },
    "A shrunk, D rejected": {"alpha": {RAM: [change(A, 1, old="confirmed"), TOO_MUCH]}},
    "A to cores, D rejected": {
        "alpha": {
            RAM: [change(A, 4, None, old="confirmed"), TOO_MUCH],
            CORES: [change(A, 4)],
        }
    },
    "A renewed, cores rejected": {
        "alpha": {RAM: [change(B, 4, "planned")], CORES: [change(C, 41)]}
    },
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=list(REFUSED))
def test_refused_batch_leaves_the_whole_database_as_it_was(changes: Changes) -> None:
    decide_ram("alpha", change(A, 4))
    for slot in slots(A)[:2]:
        make_vm(host=slot.target_host, slot=slot, memory_gib=1, vcpus=4, project_id="alpha")
    reconcile_project_usage("alpha", actor=ACTOR, request_id="usage")
    assert InstanceAssignment.objects.count() == 2
    before = database_fingerprint()
    held = 4 if changes is REFUSED["growth"] else None
    assert "failed to apply" in decide(changes, confirmed_before=held).rejection_reason
    assert unchanged_since(before)


def test_nothing_is_asked_of_workers_before_the_commit(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    """11.6, steps 4 and 5: repair is nudged once the rows are there, and never when refused."""
    sent: list[tuple[str, int]] = []

    def hint(name: str) -> None:
        sent.append((name, Commitment.objects.count()))

    monkeypatch.setattr("commitments.services.change.hint_worker", hint)
    with django_capture_on_commit_callbacks() as refused:
        decide_ram("alpha", change(A, 11))
    assert refused == []
    with django_capture_on_commit_callbacks() as accepted:
        decide_ram("alpha", change(A, 11, "pending"))
    assert sent == []
    for callback in accepted:
        callback()
    assert {("commitments.dispatch_due", 1), ("commitments.reconcile_changed_usage", 1)} == set(
        sent
    )


# 11.7: dry runs.


class TestDryRun:
    def test_probe_asks_for_what_all_projects_grow_by_together(self) -> None:
        """A +5, B -3: a probe of 2, whatever the amounts of the commitments are."""
        decide_ram("gamma", change(D, 9))
        changes = {
            "alpha": {RAM: [change(A, 5)]},
            "beta": {RAM: [change(B, 3, None, old="confirmed")]},
        }
        reason = decide(changes, is_dry_run=True).rejection_reason
        assert "insufficient capacity: 1/2 reservation slots" in reason

    def test_loss_of_one_resource_does_not_pay_for_another(self) -> None:
        """Resource 1: +5 -5, resource 2: +3: one probe of 3, here slots of 2 and 1 GiB."""
        decide_ram("gamma", change(D, 9))
        gone = change(B, 5, None, old="confirmed")
        changes = {
            "alpha": {RAM: [change(A, 5)]},
            "beta": {RAM: [gone], OTHER_RAM: [change(C, 3)]},
        }
        reason = decide(changes, is_dry_run=True).rejection_reason
        assert reason.startswith("dry run: 1 probe(s) rejected:\n- dryrun-test-req-0: insuff")
        assert "insufficient capacity: 1/2 reservation slots" in reason

    def test_probes_are_sorted_by_group_then_type(self) -> None:
        resources = {RAM: [change(A, 40)], CORES: [change(B, 41)], OTHER_RAM: [change(C, 41)]}
        reason = decide({"alpha": resources}, is_dry_run=True).rejection_reason
        lines = reason.split("\n")
        assert lines[0] == "dry run: 3 probe(s) rejected:"
        wanted = ["insufficient capacity: 5/", "insufficient CPU cores", "insufficient capacity: "]
        assert [line.split(" (")[0].partition(": ")[0] for line in lines[1:]] == [
            f"- dryrun-test-req-{index}" for index in range(3)
        ]
        assert all(words in line for words, line in zip(wanted, lines[1:], strict=True)), lines

    def test_probe_stands_for_the_first_project_and_its_domain(self) -> None:
        Host.objects.update(allowed_projects=["beta"])
        changes = {"beta": {RAM: [change(B, 1)]}, "gamma": {RAM: [change(C, 1)]}}
        assert decide(changes, is_dry_run=True).rejection_reason == ""
        changes["alpha"] = {RAM: [change(A, 1, "planned")]}
        assert "insufficient capacity: 0/2" in decide(changes, is_dry_run=True).rejection_reason

    @pytest.mark.parametrize(
        "off",
        ["ram_handles_commitments", "ram_handles_dry_run"],
    )
    def test_resource_that_is_not_checked_is_accepted(self, off: str) -> None:
        FlavorGroupSettings.objects.update(**{off: False})
        assert decide_ram("alpha", change(A, 1000), is_dry_run=True).rejection_reason == ""

    def test_amounts_of_commitments_play_no_role(self) -> None:
        wanted = request({"alpha": {RAM: [change(A, 1000)]}}, is_dry_run=True)
        project = wanted.by_project["alpha"]
        totals = replace(project.by_resource[RAM], total_confirmed_after=10)
        assert (
            ask(replace(wanted, by_project={"alpha": replace(project, by_resource={RAM: totals})}))
            == ChangeOutcome()
        )

    def test_guaranteed_amounts_count_like_confirmed_ones(self) -> None:
        reason = decide_ram("alpha", change(A, 11, "guaranteed"), is_dry_run=True).rejection_reason
        assert "insufficient capacity: 10/11" in reason

    def test_unit_of_the_group_makes_the_amount(self) -> None:
        FlavorGroupSettings.objects.filter(group_name="hana_1").update(ram_unit_gib=4)
        assert decide_ram("alpha", change(A, 2), is_dry_run=True).rejection_reason == ""
        reason = decide_ram("alpha", change(A, 3), is_dry_run=True).rejection_reason
        assert "insufficient capacity: 10/12" in reason


# 11.9: rows that stood for themselves nowhere.


def test_older_acceptance_is_no_answer_to_a_new_question(settings: Any) -> None:
    """Existing row with an older "accepted", update never decided: a timeout, not accepted."""
    decide_ram("alpha", change(A, 2))
    before = database_fingerprint()
    liquid = settings.HEADROOM.liquid.model_copy(update={"change_timeout_seconds": 0})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"liquid": liquid})
    outcome = decide_ram("alpha", change(A, 3, old="confirmed"), confirmed_before=2)
    assert outcome.is_timeout
    assert outcome.retry_at == NOW + timedelta(minutes=1)
    assert unchanged_since(before)


def test_create_then_delete_leaves_no_reservation() -> None:
    decide_ram("alpha", change(A, 4))
    assert len(slots(A)) == 4
    decide_ram("alpha", change(A, 4, None, old="confirmed"))
    assert not Reservation.objects.exists()
    assert_rooms_add_up()


def test_deadline_that_passes_while_planning_undoes_everything() -> None:
    before = database_fingerprint()
    ticks = iter([0.0, 0.0, 1e9, 1e9, 1e9])
    outcome = decide_ram("alpha", change(A, 2), clock=lambda: next(ticks))
    assert outcome.rejection_reason.startswith(
        "timeout reached while processing commitment changes: "
    )
    assert (outcome.is_timeout, outcome.retry_at) == (True, NOW + timedelta(minutes=1))
    assert unchanged_since(before)


def test_missing_cores_figure_is_asked_for_again_soon() -> None:
    outcome = decide({"alpha": {CORES: [change(A, 1)]}}, zone="az-without-hosts")
    assert outcome.retry_at == NOW + timedelta(minutes=1)
    assert not Commitment.objects.exists()


def test_lock_that_is_not_free_is_told_by_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        message = "zone az-a is being changed by another"
        raise Busy(message)

    monkeypatch.setattr("commitments.services.change.zone_lock", refuse)
    assert decide_ram("alpha", change(A, 1)).retry_at == NOW + timedelta(minutes=1)
    with pytest.raises(Busy):
        decide_ram("alpha", change(A, 1, None, old="confirmed"))
