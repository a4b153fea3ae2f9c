"""Cores that commitments may promise (spec commitments, 8.5; liquid, 20 row 21)."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.cores_account import CoresHolding, CoresLedger
from commitments.domain.statuses import CommitmentStatus, ResourceType, Ruling
from commitments.domain.timeline import CoresRelease, Sweep, Timeline
from scheduling.table import HostTable
from tests.domain.commitments.test_admission import GROUP, NOW, state, target

KEY = ("g", "az")


def holding(vcpus: int, project: str) -> CoresHolding | None:
    if not vcpus:
        return None
    return CoresHolding(project_id=project, flavor_group_name="g", zone="az", vcpus=vcpus)


def ended(uuid: str, accepted: int, *, project: str = "p") -> CommitmentTarget:
    return CommitmentTarget(
        commitment_uuid=uuid,
        desired=None,
        is_holding=False,
        held_cores=holding(accepted, project),
    )


def cores(
    uuid: str,
    vcpus: int,
    *,
    project: str = "p",
    accepted: int = 0,
    status: CommitmentStatus = CommitmentStatus.CONFIRMED,
) -> CommitmentTarget:
    desired = state(uuid, vcpus, status, ResourceType.CORES, project_id=project)
    asked = target(desired)
    return CommitmentTarget(
        commitment_uuid=uuid,
        desired=asked.desired,
        is_holding=True,
        accepted_cores=accepted,
        held_cores=holding(accepted, project),
        previous_project_id=project if accepted else "",
    )


def snapshot(ledger: CoresLedger) -> AdmissionSnapshot:
    return AdmissionSnapshot(
        hosts=HostTable.from_rows([]), groups={"g": GROUP}, cores={KEY: ledger}
    )


def plan(ledger: CoresLedger, *targets: CommitmentTarget, may_reject: bool = True) -> AdmissionPlan:
    return plan_admission(snapshot(ledger), targets, may_reject=may_reject, now=NOW)


@pytest.mark.parametrize(
    ("running", "held", "asked", "available"),
    [
        pytest.param({}, {}, 16, 16, id="nothing runs"),
        pytest.param({"q": 6}, {}, 10, 10, id="VMs of another project"),
        pytest.param({"q": 6}, {"q": 4}, 10, 10, id="of which its commitments cover some"),
        pytest.param({"q": 6}, {"q": 9}, 7, 7, id="and cover more than runs"),
        pytest.param({"p": 6}, {}, 16, 16, id="VMs of the project itself"),
        pytest.param({"p": 6, "q": 3, "r": 2}, {"r": 5}, 8, 8, id="several projects"),
        pytest.param({"q": 20}, {}, 0, -4, id="more runs than there is"),
    ],
)
def test_running_cores_that_no_commitment_covers_lessen_the_headroom_of_others(
    running: dict[str, int], held: dict[str, int], asked: int, available: int
) -> None:
    ledger = CoresLedger(
        total_vcpus=16,
        held_vcpus=sum(held.values()),
        running_by_project=running,
        held_by_project=held,
    )
    if asked:
        assert not plan(ledger, cores("c-1", asked)).rejections
    (refused,) = plan(ledger, cores("c-1", asked + 1)).rejections
    assert refused.message == (
        f"insufficient CPU cores: {available} available, {asked + 1} requested"
    )


def test_commitments_of_one_batch_cover_running_vms_for_those_after_them() -> None:
    ledger = CoresLedger(total_vcpus=16, running_by_project={"q": 10})
    both = plan(ledger, cores("c-1", 10, project="q"), cores("c-2", 6))
    assert not both.rejections
    assert plan(ledger, cores("c-2", 7)).rejections


def test_a_commitment_that_ends_leaves_running_vms_uncommitted() -> None:
    ledger = CoresLedger(
        total_vcpus=16,
        held_vcpus=12,
        running_by_project={"q": 5},
        held_by_project={"q": 12},
    )
    tomorrow = NOW + timedelta(days=1)
    ends = CoresRelease(moment=0, flavor_group_name="g", zone="az", vcpus=12, project_id="q")
    after = Sweep(snapshot(ledger), Timeline(moments=(tomorrow,), cores=(ends,))).snapshot_at(0)
    assert not plan_admission(after, [cores("c-1", 11)], may_reject=True, now=NOW).rejections
    assert plan_admission(after, [cores("c-1", 12)], may_reject=True, now=NOW).rejections


@pytest.mark.parametrize("first", [True, False], ids=["new one first", "new one last"])
@pytest.mark.parametrize("wanted", [10, 12], ids=["unchanged", "growing in vain"])
def test_what_a_commitment_of_the_batch_keeps_is_given_to_no_other(
    *, first: bool, wanted: int
) -> None:
    """A no in the background leaves what was accepted before, whoever is asked first."""
    ledger = CoresLedger(total_vcpus=12)
    old, new = cores("c-old", wanted, project="q", accepted=10), cores("c-new", 4)
    decided = plan(ledger, *([new, old] if first else [old, new]), may_reject=False)
    outcomes = {one.target.commitment_uuid: one.outcome for one in decided.decisions}
    assert outcomes["c-new"] is Ruling.RESERVING
    assert outcomes["c-old"] is Ruling.ACCEPTED


def test_what_is_kept_needs_no_ledger() -> None:
    bare = AdmissionSnapshot(hosts=HostTable.from_rows([]), groups={"g": GROUP})
    decided = plan_admission(bare, [cores("c-1", 4, accepted=4)], may_reject=True, now=NOW)
    assert decided.decisions[0].outcome is Ruling.ACCEPTED


projects = st.sampled_from("pqr")
commitments = st.lists(st.tuples(projects, st.integers(0, 9), st.integers(0, 6)), max_size=6)
running = st.dictionaries(projects, st.integers(0, 12))


@given(st.integers(0, 40), running, st.dictionaries(projects, st.integers(0, 12)), commitments)
def test_no_batch_promises_more_than_is_left_beside_what_runs(
    total: int,
    running: dict[str, int],
    held: dict[str, int],
    wanted: list[tuple[str, int, int]],
) -> None:
    """The oracle adds up, per project, the larger of what runs and what is committed.

    Each yes to more cores leaves that sum within the total, if the project's own VMs alone are not
    to blame: those are there already.
    """
    ledger = CoresLedger(
        total_vcpus=total,
        held_vcpus=sum(held.values()),
        running_by_project=running,
        held_by_project=held,
    )
    targets = [
        cores(f"c-{number}", accepted + growth, project=project, accepted=accepted)
        for number, (project, accepted, growth) in enumerate(wanted)
        if accepted + growth
    ]
    decided = plan(ledger, *targets, may_reject=False)
    committed: defaultdict[str, int] = defaultdict(int, held)
    for one in targets:
        assert one.desired is not None
        committed[one.desired.project_id] += min(one.accepted_cores, one.desired.requested_amount)
    for decision in decided.decisions:
        desired = decision.target.desired
        assert desired is not None
        grown = desired.requested_amount - decision.target.accepted_cores
        others = {*running, *committed} - {desired.project_id}
        beside = sum(max(running.get(name, 0), committed[name]) for name in others)
        fits = beside + committed[desired.project_id] + grown <= total
        assert (decision.outcome is Ruling.ACCEPTED) == (fits or grown <= 0)
        if decision.outcome is Ruling.ACCEPTED and grown > 0:
            committed[desired.project_id] += grown


changed = st.lists(
    st.tuples(
        projects,
        st.integers(0, 6),
        st.integers(0, 6),
        st.sampled_from([CommitmentStatus.CONFIRMED, CommitmentStatus.PENDING]),
    ),
    max_size=6,
)


@given(st.integers(0, 30), st.integers(0, 12), changed)
def test_who_gives_up_as_much_as_he_takes_is_never_refused(
    total: int, held: int, rows: list[tuple[str, int, int, CommitmentStatus]]
) -> None:
    """Whatever the zone has left, and in whatever order the commitments of the plan are asked.

    What is held afterwards is no more than there is, or than was held before.
    """
    targets = [
        cores(f"c-{number}", after, project=project, accepted=before, status=status)
        if after
        else ended(f"c-{number}", before, project=project)
        for number, (project, before, after, status) in enumerate(rows)
    ]
    ledger = CoresLedger(total_vcpus=total, held_vcpus=held)
    decided = plan(ledger, *targets, may_reject=False)
    outcomes = [decision.outcome for decision in decided.decisions]
    for project in {row[0] for row in rows}:
        own = [number for number, row in enumerate(rows) if row[0] == project]
        if sum(rows[number][2] for number in own) <= sum(rows[number][1] for number in own):
            assert Ruling.RESERVING not in {outcomes[number] for number in own}
    kept = sum(
        after if outcome is Ruling.ACCEPTED else min(before, after)
        for (_, before, after, _), outcome in zip(rows, outcomes, strict=True)
    )
    assert held + kept <= max(total, held + sum(before for _, before, _, _ in rows))


def test_a_split_is_accepted_where_more_is_promised_than_there_is() -> None:
    ledger = CoresLedger(total_vcpus=6)
    decided = plan(ledger, cores("c-3", 3), cores("c-5", 5), ended("c-8", 8))
    assert not decided.rejections
