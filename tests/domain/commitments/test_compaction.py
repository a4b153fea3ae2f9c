"""Releases of whole hosts, against packing one slot after the other and against every choice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.compaction import (
    CompactionPlan,
    CompactionState,
    SlotKind,
    plan_compaction,
)

NO_LIMIT = 10_000
EVERYWHERE = object()


def state_of(
    hosts: list[tuple[int, int, str]],
    slots: list[tuple[int, int]],
    kinds: list[tuple[int, int, Any]],  # Any: EVERYWHERE or hosts
    preference: list[float] | None = None,
) -> CompactionState:
    """Return a zone.

    Args:
        hosts: Memory, vCPUs taken by others than the slots, and whose they are: ``slots`` for a
            host with slots alone, ``vms`` for one with VMs too; 10 vCPUs each.
        slots: Host and kind of each.
        kinds: Memory, vCPUs and hosts that may take it.
        preference: Score of each host.
    """
    count = len(hosts)
    total_memory = np.array([memory for memory, _, _ in hosts], dtype=np.int64)
    total_vcpus = np.full(count, 10, dtype=np.int64)
    used_memory = np.array([used for _, used, _ in hosts], dtype=np.int64)
    free_memory = total_memory - used_memory
    free_vcpus = total_vcpus.copy()
    made = tuple(
        SlotKind(
            memory_bytes=memory,
            vcpus=vcpus,
            passing=np.array(
                [where is EVERYWHERE or host in where for host in range(count)], dtype=np.bool_
            ),
            preference=np.array(preference or [0.0] * count, dtype=np.float64),
        )
        for memory, vcpus, where in kinds
    )
    for host, kind in slots:
        free_memory[host] -= made[kind].memory_bytes
        free_vcpus[host] -= made[kind].vcpus
    has_slots = np.zeros(count, dtype=np.bool_)
    has_slots[[host for host, _ in slots]] = True
    has_vms = np.array([whose == "vms" for _, _, whose in hosts], dtype=np.bool_)
    return CompactionState(
        free_memory_bytes=free_memory,
        free_vcpus=free_vcpus,
        total_memory_bytes=total_memory,
        total_vcpus=total_vcpus,
        is_closed=~has_slots & ~has_vms,
        is_source=has_slots & ~has_vms,
        slot_host=np.array([host for host, _ in slots], dtype=np.int64),
        slot_kind=np.array([kind for _, kind in slots], dtype=np.int64),
        kinds=made,
    )


def places(state: CompactionState, plan: CompactionPlan) -> dict[int, int]:
    """Return the host of each slot after a plan."""
    where = dict(enumerate(state.slot_host.tolist()))
    for release in plan.releases:
        where.update(release.moves)
    return where


def after(state: CompactionState, plan: CompactionPlan) -> CompactionState:
    """Return the zone after a plan, checking every step of it in the order given."""
    free_memory, free_vcpus = state.free_memory_bytes.copy(), state.free_vcpus.copy()
    is_closed, is_source = state.is_closed.copy(), state.is_source.copy()
    slot_host = state.slot_host.copy()
    for release in plan.releases:
        on_it = np.flatnonzero(slot_host == release.host).tolist()
        assert is_source[release.host]
        assert release.moves
        assert sorted(slot for slot, _ in release.moves) == on_it
        for slot, host in release.moves:
            kind = state.kinds[int(state.slot_kind[slot])]
            assert kind.passing[host]
            assert not is_closed[host]
            assert host != release.host
            slot_host[slot] = host
            free_memory[release.host] += kind.memory_bytes
            free_vcpus[release.host] += kind.vcpus
            free_memory[host] -= kind.memory_bytes
            free_vcpus[host] -= kind.vcpus
            assert free_memory[host] >= 0
            assert free_vcpus[host] >= 0
        assert free_memory[release.host] == state.total_memory_bytes[release.host]
        before = int(is_closed.sum())
        is_closed[release.host], is_source[release.host] = True, False
        assert int(is_closed.sum()) == before + 1
    return replace(
        state,
        free_memory_bytes=free_memory,
        free_vcpus=free_vcpus,
        is_closed=is_closed,
        is_source=is_source,
        slot_host=slot_host,
    )


HALF = (4, 4, EVERYWHERE)
CASES = {
    "nothing to do without slots": ([(8, 3, "vms")], [], [HALF], {}),
    "one host into one with VMs": ([(8, 0, "slots"), (8, 3, "vms")], [(0, 0)], [HALF], {0: 1}),
    "no host has room": ([(8, 0, "slots"), (8, 5, "vms")], [(0, 0)], [HALF], {}),
    "an empty host is no gain": ([(8, 0, "slots"), (8, 0, "slots")], [(0, 0)], [HALF], {}),
    "two halves share a host": (
        [(8, 0, "slots"), (8, 0, "slots")], [(0, 0), (1, 0)], [HALF], {0: 1},
    ),
    "not all slots of a host fit": (
        [(8, 0, "slots"), (8, 3, "vms")], [(0, 0), (0, 0)], [HALF], {},
    ),
    "slots spread over two hosts": (
        [(8, 0, "slots"), (8, 3, "vms"), (8, 4, "vms")], [(0, 0), (0, 0)], [HALF], {0: 2, 1: 1},
    ),
    "a filter keeps the host away": (
        [(8, 0, "slots"), (8, 3, "vms")], [(0, 0)], [(4, 4, {0})], {},
    ),
    "vCPUs are counted too": (
        [(8, 0, "slots"), (80, 3, "vms")], [(0, 0), (0, 0), (1, 0)], [(4, 4, EVERYWHERE)], {},
    ),
    "the tightest host is filled": (
        [(8, 0, "slots"), (8, 1, "vms"), (8, 4, "vms")], [(0, 0)], [HALF], {0: 2},
    ),
    "the host with least is freed": (
        [(8, 0, "slots"), (8, 0, "slots")], [(0, 0), (1, 1)], [(2, 2, EVERYWHERE), HALF], {0: 1},
    ),
    "a host with VMs is never emptied": (
        [(8, 1, "vms"), (8, 1, "vms")], [(0, 0)], [HALF], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("hosts", "slots", "kinds", "moves"), CASES.values(), ids=CASES)
def test_what_moves(hosts: Any, slots: Any, kinds: Any, moves: dict[int, int]) -> None:
    plan = plan_compaction(state_of(hosts, slots, kinds), most_moves=NO_LIMIT)
    assert {slot: host for release in plan.releases for slot, host in release.moves} == moves


def test_weights_decide_between_hosts_that_are_equally_tight() -> None:
    hosts = [(8, 0, "slots"), (8, 3, "vms"), (8, 3, "vms"), (8, 3, "vms")]
    for best in (1, 2, 3):
        preference = [0.0] * 4
        preference[best] = 1.0
        state = state_of(hosts, [(0, 0)], [HALF], preference)
        assert places(state, plan_compaction(state, most_moves=NO_LIMIT)) == {0: best}


def test_limit_takes_whole_hosts_or_none() -> None:
    hosts = [(8, 0, "slots"), (8, 0, "slots"), (80, 1, "vms")]
    slots = [(0, 0), (0, 0), (1, 0)]
    kinds = [(2, 1, EVERYWHERE)]
    plans = [plan_compaction(state_of(hosts, slots, kinds), most_moves=n) for n in range(4)]
    assert [[release.host for release in plan.releases] for plan in plans] == [[], [1], [1], [1, 0]]
    assert [plan.not_tried for plan in plans] == [2, 1, 1, 0]


def test_hosts_that_cannot_be_freed_are_told_from_those_not_tried() -> None:
    hosts = [(8, 0, "slots"), (8, 0, "slots"), (8, 5, "vms")]
    state = state_of(hosts, [(0, 0), (1, 0), (1, 0)], [HALF])
    plan = plan_compaction(state, most_moves=NO_LIMIT)
    assert (len(plan.releases), plan.no_room, plan.not_tried) == (0, 2, 0)


@st.composite
def zones(draw: st.DrawFn, most_hosts: int = 9, most_slots: int = 24) -> CompactionState:
    count = draw(st.integers(1, most_hosts))
    sizes = st.integers(1, 6)
    some_hosts = st.one_of(
        st.just(EVERYWHERE), st.sets(st.integers(0, count - 1), min_size=1, max_size=count)
    )
    kinds = draw(st.lists(st.tuples(sizes, sizes, some_hosts), min_size=1, max_size=5))
    hosts = draw(
        st.lists(
            st.tuples(
                st.sampled_from((8, 12, 16)), st.integers(0, 8), st.sampled_from(("vms", "slots"))
            ),
            min_size=count,
            max_size=count,
        )
    )
    hosts = [(memory, used if whose == "vms" else 0, whose) for memory, used, whose in hosts]
    room = [[memory - used, 10] for memory, used, _ in hosts]
    slots = []
    wish = st.tuples(st.integers(0, count - 1), st.integers(0, len(kinds) - 1))
    for host, kind in draw(st.lists(wish, max_size=most_slots)):
        memory, vcpus, _ = kinds[kind]
        if room[host][0] >= memory and room[host][1] >= vcpus:
            room[host][0] -= memory
            room[host][1] -= vcpus
            slots.append((host, kind))
    preference = draw(st.lists(st.sampled_from((0.0, 0.5)), min_size=count, max_size=count))
    return state_of(hosts, slots, kinds, preference)


@given(state=zones(), most_moves=st.integers(0, 30))
def test_every_step_frees_a_host_and_keeps_every_slot(
    state: CompactionState, most_moves: int
) -> None:
    plan = plan_compaction(state, most_moves=most_moves)
    later = after(state, plan)
    assert plan.moves <= most_moves
    moved = Counter(slot for release in plan.releases for slot, _ in release.moves)
    assert set(moved.values()) <= {1}
    assert int(later.is_closed.sum()) == int(state.is_closed.sum()) + len(plan.releases)
    taken = Counter(later.slot_host.tolist())
    assert not any(taken[release.host] for release in plan.releases)
    assert plan_compaction(state, most_moves=most_moves) == plan


@given(state=zones())
def test_plan_for_the_outcome_of_a_plan_is_empty(state: CompactionState) -> None:
    plan = plan_compaction(state, most_moves=NO_LIMIT)
    assert plan_compaction(after(state, plan), most_moves=NO_LIMIT).releases == ()


@given(state=zones(), order=st.randoms(use_true_random=False))
def test_releases_can_be_carried_out_in_any_order_and_left_out(
    state: CompactionState, order: Any
) -> None:
    plan = plan_compaction(state, most_moves=NO_LIMIT)
    chosen = [release for release in plan.releases if order.random() < 0.7]
    order.shuffle(chosen)
    after(state, replace(plan, releases=tuple(chosen)))


@given(state=zones(), most_moves=st.integers(0, 9))
def test_limited_plans_end_where_an_unlimited_one_stops(
    state: CompactionState, most_moves: int
) -> None:
    plan = plan_compaction(state, most_moves=most_moves)
    while plan.releases:
        state = after(state, plan)
        plan = plan_compaction(state, most_moves=most_moves)
    rest = plan_compaction(state, most_moves=NO_LIMIT)
    assert not rest.releases or rest.moves > most_moves


@given(state=zones(most_hosts=4, most_slots=6))
def test_never_more_than_the_best_of_all_choices_and_something_if_one_slot_can_free_a_host(
    state: CompactionState,
) -> None:
    plan = plan_compaction(state, most_moves=NO_LIMIT)
    assert len(plan.releases) <= _best_of_all(state)
    if not plan.releases:
        assert not any(
            _one_slot_frees(state, host) for host in np.flatnonzero(state.is_source).tolist()
        )


def _best_of_all(state: CompactionState) -> int:
    """Return the most hosts that any placement of the movable slots frees."""
    movable = [n for n, host in enumerate(state.slot_host.tolist()) if state.is_source[host]]
    usable = np.flatnonzero(~state.is_closed).tolist()
    best = 0
    for choice in product(usable, repeat=len(movable)):
        memory, vcpus = state.free_memory_bytes.copy(), state.free_vcpus.copy()
        fits = True
        for slot, host in zip(movable, choice, strict=True):
            kind, before = state.kinds[int(state.slot_kind[slot])], int(state.slot_host[slot])
            fits = fits and (host == before or bool(kind.passing[host]))
            memory[before] += kind.memory_bytes
            vcpus[before] += kind.vcpus
            memory[host] -= kind.memory_bytes
            vcpus[host] -= kind.vcpus
        if fits and (memory >= 0).all() and (vcpus >= 0).all():
            emptied = set(np.flatnonzero(state.is_source).tolist()) - set(choice)
            best = max(best, len(emptied))
    return best


def _one_slot_frees(state: CompactionState, host: int) -> bool:
    slots = np.flatnonzero(state.slot_host == host)
    if len(slots) != 1:
        return False
    kind = state.kinds[int(state.slot_kind[slots[0]])]
    return any(
        other != host
        and not state.is_closed[other]
        and bool(kind.passing[other])
        and state.free_memory_bytes[other] >= kind.memory_bytes
        and state.free_vcpus[other] >= kind.vcpus
        for other in range(len(state.is_closed))
    )


@given(state=zones())
def test_single_host_is_packed_as_by_one_slot_after_the_other(state: CompactionState) -> None:
    sources = np.flatnonzero(state.is_source)
    if len(sources) == 0:
        return
    alone = sources == sources[0]
    is_source = np.zeros_like(state.is_source)
    is_source[sources[alone]] = True
    state = replace(state, is_source=is_source)
    plan = plan_compaction(state, most_moves=NO_LIMIT)
    wanted = _packed_slowly(state, int(sources[0]))
    found = None
    if plan.releases:
        found = Counter((int(state.slot_kind[slot]), host) for slot, host in plan.releases[0].moves)
    assert found == wanted


def _packed_slowly(state: CompactionState, source: int) -> Counter[tuple[int, int]] | None:
    """Return how many slots of each kind go where, placing one slot after the other."""
    mean_memory = float(state.total_memory_bytes.sum()) / len(state.is_closed)
    mean_vcpus = float(state.total_vcpus.sum()) / len(state.is_closed)
    memory, vcpus = state.free_memory_bytes.tolist(), state.free_vcpus.tolist()
    numbers = [
        int(state.slot_kind[n]) for n, host in enumerate(state.slot_host.tolist()) if host == source
    ]
    numbers.sort(
        key=lambda n: (
            -max(
                state.kinds[n].memory_bytes / mean_memory,
                state.kinds[n].vcpus / mean_vcpus,
            ),
            int(state.kinds[n].passing.sum()),
            n,
        )
    )
    found: Counter[tuple[int, int]] = Counter()
    for number in numbers:
        kind = state.kinds[number]
        choices = [
            (
                ((memory[host] - kind.memory_bytes) / mean_memory) ** 2
                + ((vcpus[host] - kind.vcpus) / mean_vcpus) ** 2,
                -float(kind.preference[host]),
                host,
            )
            for host in range(len(memory))
            if host != source
            and not state.is_closed[host]
            and kind.passing[host]
            and memory[host] >= kind.memory_bytes
            and vcpus[host] >= kind.vcpus
        ]
        if not choices:
            return None
        host = min(choices)[2]
        memory[host] -= kind.memory_bytes
        vcpus[host] -= kind.vcpus
        found[number, host] += 1
    return found
