"""A pending commitment that was never accepted holds all its slots or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.groups.flavor_groups import FlavorGroupDef
from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.slot_room import SlotRoom
from commitments.domain.statuses import CommitmentStatus, Ruling
from scheduling.table import HostTable
from tests.domain.commitments.test_admission import (
    LARGE,
    NOW,
    SMALL,
    gib,
    host,
    slot,
    state,
    target,
)

ONE_SIZE = FlavorGroupDef(name="g", flavors=(SMALL,), ram_core_ratio_mib=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A commitment of slots of 1 GiB, some of which are on the first host already."""

    amount_gib: int
    is_pending: bool
    stored: int = 0


batches = st.lists(
    st.builds(
        lambda amount_gib, is_pending, part: Asked(
            amount_gib=amount_gib, is_pending=is_pending, stored=part * amount_gib // 4
        ),
        st.integers(min_value=1, max_value=9),
        st.booleans(),
        st.sampled_from((0, 0, 1, 2, 3)),
    ),
    max_size=6,
)


def held_by_counting(batch: Sequence[Asked], free_gib: int) -> list[int]:
    """Return what each holds after all had their turn: slots of one size fit wherever is room."""
    held = []
    for asked in batch:
        missing = asked.amount_gib - asked.stored
        if asked.is_pending and missing > free_gib:
            free_gib += asked.stored
            held.append(0)
        else:
            placed = min(missing, free_gib)
            free_gib -= placed
            held.append(asked.stored + placed)
    return held


def as_target(asked: Asked, number: int, *, first_slot_id: int) -> CommitmentTarget:
    uuid = f"c-{number}"
    status = CommitmentStatus.PENDING if asked.is_pending else CommitmentStatus.CONFIRMED
    slots = [slot(first_slot_id + n, uuid) for n in range(asked.stored)]
    wanted = target(state(uuid, asked.amount_gib, status), slots=slots)
    return replace(wanted, holds_all_or_nothing=asked.is_pending)


def planned(batch: Sequence[Asked], rooms_gib: Sequence[int]) -> AdmissionPlan:
    stored = sum(asked.stored for asked in batch)
    hosts = [host(n + 1, room_gib) for n, room_gib in enumerate(rooms_gib)]
    hosts[0] = host(1, rooms_gib[0] + stored, committed=gib(stored))
    targets, first = [], 1
    for number, asked in enumerate(batch):
        targets.append(as_target(asked, number, first_slot_id=first))
        first += asked.stored
    snapshot = AdmissionSnapshot(
        hosts=HostTable.from_rows(hosts),
        groups={"g": ONE_SIZE},
        rooms={n: SlotRoom(host_ids=(1,), blocked=gib(1)) for n in range(1, stored + 1)},
    )
    return plan_admission(snapshot, targets, may_reject=False, now=NOW)


def held_by_plan(batch: Sequence[Asked], plan: AdmissionPlan) -> list[int]:
    released = set(plan.released_slot_ids)
    return [
        sum(one.slot_id not in released for one in decision.target.slots)
        + sum(placement.host_id is not None for placement in decision.placements)
        for decision in plan.decisions
    ]


@given(
    batch=batches,
    rooms_gib=st.lists(st.integers(min_value=0, max_value=7), min_size=1, max_size=4),
)
def test_batch_holds_what_counting_gives(batch: list[Asked], rooms_gib: list[int]) -> None:
    plan = planned(batch, rooms_gib)
    held = held_by_plan(batch, plan)
    assert held == held_by_counting(batch, sum(rooms_gib))
    for asked, decision, held_gib in zip(batch, plan.decisions, held, strict=True):
        is_whole = held_gib == asked.amount_gib
        assert (decision.outcome is Ruling.ACCEPTED) is is_whole
        assert is_whole or held_gib == 0 or not asked.is_pending
    change_gib = sum(held) - sum(asked.stored for asked in batch)
    taken = sum(delta.memory_bytes for delta in plan.block_deltas.values())
    assert taken == change_gib << 30


@pytest.mark.parametrize("with_large", [False, True])
def test_what_one_gives_up_is_there_for_the_next(*, with_large: bool) -> None:
    group = FlavorGroupDef(
        name="g", flavors=(LARGE, SMALL) if with_large else (SMALL,), ram_core_ratio_mib=1024
    )
    snapshot = AdmissionSnapshot(hosts=HostTable.from_rows([host(1, 8)]), groups={"g": group})
    too_large = replace(
        target(state("c-1", 25, CommitmentStatus.PENDING)), holds_all_or_nothing=True
    )
    plan = plan_admission(snapshot, [too_large, target(state("c-2", 8))], may_reject=False, now=NOW)
    waits, whole = plan.decisions
    assert waits.outcome is Ruling.RESERVING
    assert [placement.host_id for placement in waits.placements if placement.host_id] == []
    assert "insufficient capacity" in waits.message
    assert whole.outcome is Ruling.ACCEPTED
