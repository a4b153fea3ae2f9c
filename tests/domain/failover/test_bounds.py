from __future__ import annotations

import sys
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import exact_bound as exact_module
from benchmarks.exact_bound import (
    BoundVM,
    ExactBound,
    SolverMissingError,
    ZoneTooLargeError,
    exact_bound,
)
from failover.domain.bounds import LowerBounds, lower_bounds
from failover.domain.drill_state import DrillHost, DrillSlot, DrillState, DrillVM
from scheduling.resources import GIB, ResourceVector
from tests.domain.failover.drill_worlds import rules_hold

Vms = list[tuple[str, int]]
needs_solver = pytest.mark.skipif(
    not exact_module.has_solver(), reason="highspy is not installed: the exact bound is untested"
)


def bounds_of(vms: Vms, *, required: int, hosts: int) -> LowerBounds:
    names = sorted({host for host, _ in vms})
    return lower_bounds(
        np.array([names.index(host) for host, _ in vms], dtype=np.int64),
        np.array([size for _, size in vms], dtype=np.int64),
        np.full(len(vms), required, dtype=np.int64),
        host_count=hosts,
    )


@pytest.mark.parametrize(
    ("vms", "required", "hosts", "expected"),
    [
        pytest.param([], 2, 5, (0, 0, 0), id="no VMs"),
        pytest.param([("a", 8)], 0, 5, (0, 0, 0), id="nothing is owed"),
        pytest.param([("a", 8)], 1, 5, (8, 8, 2), id="one VM, one slot"),
        pytest.param([("a", 8)], 2, 5, (16, 16, 8), id="one VM, two slots"),
        pytest.param(
            [("a", 4), ("a", 4), ("b", 8)], 1, 3, (8, 12, 8), id="ranks beat the fullest host"
        ),
        pytest.param(
            [(host, 10) for host in "abcde"], 2, 6, (20, 20, 40), id="few hosts limit sharing"
        ),
    ],
)
def test_lower_bounds(vms: Vms, required: int, hosts: int, expected: tuple[int, int, int]) -> None:
    bounds = bounds_of(vms, required=required, hosts=hosts)

    assert (bounds.fullest_host, bounds.ranked, bounds.shared) == expected
    assert bounds.best == max(expected)


def test_synthetic_model_of_the_specification_has_its_bound_of_slots() -> None:
    """100 hosts, 20 uniform VMs each, n = 1: the table gives 20.2 slots as the bound."""
    vms = [(f"h{n % 100}", 1_000_000) for n in range(2000)]

    assert bounds_of(vms, required=1, hosts=100).shared / 1_000_000 == pytest.approx(20.2, abs=0.01)


@given(
    vms=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9)), max_size=12),
    required=st.integers(0, 3),
    hosts=st.integers(4, 9),
)
def test_lower_bounds_equal_the_formulas_written_out(vms: Vms, required: int, hosts: int) -> None:
    ranks = Counter[int]()
    totals = Counter[str]()
    for host in "abcd":
        sizes = sorted((size for place, size in vms if place == host), reverse=True)
        totals[host] = sum(sizes)
        for rank, size in enumerate(sizes):
            ranks[rank] = max(ranks[rank], size)
    total = sum(size for _, size in vms)

    bounds = bounds_of(vms, required=required, hosts=hosts)

    assert bounds.fullest_host == required * max(totals.values(), default=0)
    assert bounds.ranked == required * sum(ranks.values())
    assert bounds.shared == -(-(required**2) * total // (hosts - 1))
    assert bounds.ranked >= bounds.fullest_host


def test_required_counts_of_their_own_are_counted_one_by_one() -> None:
    bounds = lower_bounds(
        np.array([0, 0, 1], dtype=np.int64),
        np.array([8, 4, 6], dtype=np.int64),
        np.array([2, 1, 3], dtype=np.int64),
        host_count=5,
    )

    assert bounds.fullest_host == 2 * 8 + 4
    assert bounds.ranked == 8 + 8 + 6
    assert bounds.shared == -(-(4 * 8 + 4 + 9 * 6) // 4)


def bound_vms(vms: Vms, required: int) -> list[BoundVM]:
    return [
        BoundVM(uuid=f"v{n}", host=host, memory_bytes=size, required_count=required)
        for n, (host, size) in enumerate(vms)
    ]


def solved(vms: Vms, *, required: int, hosts: str, room: int | None = None) -> ExactBound:
    return exact_bound(bound_vms(vms, required), dict.fromkeys(hosts, room))


@needs_solver
@pytest.mark.parametrize(
    ("vms", "required", "hosts", "room", "expected"),
    [
        pytest.param([], 2, "ab", None, 0, id="no VMs"),
        pytest.param([("a", 8)], 1, "ab", None, 8, id="one VM"),
        pytest.param([("a", 8)], 2, "ab", None, None, id="too few hosts"),
        pytest.param([("a", 8), ("b", 4)], 1, "abc", None, 8, id="two share one slot"),
        pytest.param([("a", 8), ("b", 4)], 1, "ab", None, 12, id="no third host, no sharing"),
        pytest.param([("a", 8), ("a", 4)], 1, "abc", None, 12, id="one host never shares"),
        pytest.param([("a", 8), ("b", 4)], 1, "abc", 7, None, id="no room"),
        pytest.param(
            [("a", 8), ("b", 8)], 2, "abcde", None, 24, id="a pair may share one slot, not two"
        ),
        pytest.param(
            [("a", 8 * GIB), ("b", 4 * GIB)], 1, "abc", None, 8 * GIB, id="bytes of real VMs"
        ),
    ],
)
def test_exact_bound(
    vms: Vms, required: int, hosts: str, room: int | None, expected: int | None
) -> None:
    answer = solved(vms, required=required, hosts=hosts, room=room)

    assert answer.is_feasible == (expected is not None)
    if expected is not None:
        assert (answer.is_optimal, answer.bound_bytes) == (True, expected)


def cheapest_by_brute_force(vms: Vms, required: int, hosts: str) -> int | None:
    """Try every set of slot hosts for every VM and every way to share on each host."""
    choices = [
        list(combinations([host for host in hosts if host != place], required)) for place, _ in vms
    ]
    best: int | None = None
    for chosen in product(*choices):
        on_host = {host: [n for n, picked in enumerate(chosen) if host in picked] for host in hosts}
        for parts in product(*(list(partitions(on_host[host])) for host in hosts)):
            slots = [
                (host, group) for host, groups in zip(hosts, parts, strict=True) for group in groups
            ]
            cost = sum(max(vms[n][1] for n in group) for _, group in slots)
            if (best is None or cost < best) and rules_hold(state_of(vms, slots, hosts)):
                best = cost
    return best


def partitions(members: list[int]) -> list[list[list[int]]]:
    if not members:
        return [[]]
    first, rest = members[0], members[1:]
    found = []
    for parts in partitions(rest):
        found.append([[first], *parts])
        found.extend([*parts[:n], [first, *parts[n]], *parts[n + 1 :]] for n in range(len(parts)))
    return found


def state_of(vms: Vms, slots: list[tuple[str, list[int]]], hosts: str) -> DrillState:
    size = ResourceVector(memory_bytes=1, vcpus=1)
    return DrillState.of(
        (DrillHost(name=host, zone="z") for host in hosts),
        (DrillVM(uuid=f"v{n}", host=place, size=size) for n, (place, _) in enumerate(vms)),
        (
            DrillSlot(name=f"r{n}", host=host, size=size, users=tuple(f"v{one}" for one in group))
            for n, (host, group) in enumerate(slots)
        ),
    )


@needs_solver
@settings(max_examples=25)
@given(
    vms=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), min_size=1, max_size=4),
    required=st.integers(1, 2),
    hosts=st.sampled_from(("abc", "abcd")),
)
def test_exact_bound_equals_brute_force_and_is_above_the_lower_bounds(
    vms: Vms, required: int, hosts: str
) -> None:
    expected = cheapest_by_brute_force(vms, required, hosts)

    answer = solved(vms, required=required, hosts=hosts)

    assert answer.is_feasible == (expected is not None)
    if expected is not None:
        assert (answer.bound_bytes, answer.best_bytes) == (expected, expected)
        assert bounds_of(vms, required=required, hosts=len(hosts)).best <= expected
        numbered = [(slot.host, [int(user[1:]) for user in slot.users]) for slot in answer.slots]
        assert rules_hold(state_of(vms, numbered, hosts))


@needs_solver
def test_bound_is_still_valid_when_time_runs_out() -> None:
    vms = [(f"{n % 6}", 1 + n % 3) for n in range(18)]
    answer = exact_bound(bound_vms(vms, 2), dict.fromkeys("0123456", None), seconds=0.01)

    assert answer.is_feasible
    assert answer.best_bytes is None or answer.bound_bytes <= answer.best_bytes


@needs_solver
def test_zone_that_is_too_large_is_refused() -> None:
    vms = [(f"{n % 40}", 1) for n in range(400)]

    with pytest.raises(ZoneTooLargeError, match="400 VMs on 40 hosts"):
        exact_bound(bound_vms(vms, 2), {str(n): None for n in range(40)})


def test_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_module, "find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "highspy", None)

    with pytest.raises(SolverMissingError, match="highspy"):
        solved([("a", 8)], required=1, hosts="ab")
