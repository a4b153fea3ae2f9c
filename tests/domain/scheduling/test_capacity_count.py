from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from scheduling.capacity_count import placeable, slots_per_host
from scheduling.engine import SLOT_PIPELINE
from scheduling.request import PlacementRequest, UnplaceableRequestError
from scheduling.resources import GIB, ZERO
from scheduling.table import HostRow, HostTable

from .worlds import ask, free_of, gib, requests, roomy, verdict, worlds

STEPS = tuple(step.name for step in SLOT_PIPELINE.filters)


@pytest.mark.parametrize(
    ("memory_bytes", "vcpus", "flavor_vcpus", "slots"),
    [
        pytest.param(8 * GIB, 64, 2, 2, id="memory binds"),
        pytest.param(32 * GIB, 3, 2, 1, id="cores bind"),
        pytest.param(8 * GIB, 4, 2, 2, id="both bind"),
        pytest.param(8 * GIB, 0, 0, 2, id="flavor without vCPUs"),
        pytest.param(4 * GIB - 1, 64, 2, 0, id="one byte short"),
        pytest.param(32 * GIB, 1, 2, 0, id="one core short"),
        pytest.param(-8 * GIB, 64, 2, 0, id="negative memory"),
        pytest.param(8 * GIB, -64, 2, 0, id="negative cores"),
        pytest.param(8 * GIB, -64, 0, 2, id="negative cores, flavor without vCPUs"),
    ],
)
def test_slots_are_the_smaller_quotient(
    memory_bytes: int, vcpus: int, flavor_vcpus: int, slots: int
) -> None:
    counted = slots_per_host(np.array([memory_bytes]), np.array([vcpus]), 4 * GIB, flavor_vcpus)
    assert counted.tolist() == [slots]


@pytest.mark.parametrize(("memory_bytes", "vcpus"), [(0, 1), (-1, 1), (1, -1)])
def test_flavor_without_memory_cannot_be_counted(memory_bytes: int, vcpus: int) -> None:
    with pytest.raises(ValueError, match="flavor"):
        slots_per_host(np.array([1]), np.array([1]), memory_bytes, vcpus)


TOTAL = {
    "assume_empty_hosts": True,
    "ignored_kinds": frozenset({"committed", "failover"}),
}


@pytest.mark.parametrize(
    ("rows", "total", "now"),
    [
        pytest.param(
            [roomy("host-1", effective=gib(4, 64)), roomy("host-2", effective=gib(8, 64))],
            (2, 3),
            (2, 3),
            id="4 GiB and 8 GiB, empty",
        ),
        pytest.param(
            [roomy("h", effective=gib(8, 64), allocated=gib(4, 1))],
            (1, 2),
            (1, 1),
            id="4 of 8 used",
        ),
        pytest.param(
            [roomy("h", effective=gib(12, 64), allocated=gib(4, 1), committed=gib(4, 1))],
            (1, 3),
            (1, 1),
            id="12 GiB, 4 allocated, 4 blocked",
        ),
        pytest.param([roomy("h", is_ready=False)], (0, 0), (0, 0), id="host not ready"),
        pytest.param([], (0, 0), (0, 0), id="no hosts"),
    ],
)
def test_probe_counts_hosts_and_slots(
    rows: list[HostRow], total: tuple[int, int], now: tuple[int, int]
) -> None:
    table = HostTable.from_rows(rows)
    assert placeable(table, ask(4, 1, **TOTAL)) == total
    assert placeable(table, ask(4, 1)) == now


def test_probe_of_a_flavor_without_vcpus_counts_memory_alone() -> None:
    table = HostTable.from_rows([roomy("h", effective=gib(8, 0))])
    assert placeable(table, ask(4, 0)) == (1, 2)


def test_probe_without_memory_fails() -> None:
    with pytest.raises(UnplaceableRequestError):
        placeable(HostTable.from_rows([roomy("h")]), ask(0, 1))


@given(rows=worlds, request=requests)
def test_probe_equals_counting_host_by_host(rows: list[HostRow], request: PlacementRequest) -> None:
    slots = []
    for row in rows:
        if all(verdict(step, row, request, ZERO) for step in STEPS):
            room = row.effective if request.assume_empty_hosts else free_of(row, request)
            slots.append(
                min(room.memory_bytes // request.memory_bytes, room.vcpus // request.vcpus)
            )
    counted = placeable(HostTable.from_rows(rows), request)
    assert counted == (sum(1 for count in slots if count > 0), sum(slots))
