"""NUMA cells and huge pages (spec hosts, A.3, A.14)."""

from __future__ import annotations

from pathlib import Path

import pytest
from headroom_host_agent.resources.admission import AllocationRequest, InsufficientCapacityError
from headroom_host_agent.resources.facts import InstanceAllocation, ListerFailedError
from headroom_host_agent.resources.numa import (
    Cell,
    CellNeed,
    HugepagePool,
    cell_statuses,
    detect_cells,
    fitting_cells,
    hugepages_of_host,
    with_pending,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.resources.hosts import Told, manager
from tests.agent.resources.hosts import vm as facts_of
from tests.agent.trees import plant

MIB, GIB = 1024**2, 1024**3


def node(number: int, cpus: str, *, huge: int, free: int) -> dict[str, str]:
    base = f"sys/devices/system/node/node{number}"
    return {
        f"{base}/cpulist": cpus + "\n",
        f"{base}/meminfo": f"Node {number} MemTotal:       1048576 kB\n",
        f"{base}/hugepages/hugepages-1048576kB/nr_hugepages": f"{huge}\n",
        f"{base}/hugepages/hugepages-1048576kB/free_hugepages": f"{free}\n",
    }


def test_cells_have_cpus_memory_and_pools(tmp_path: Path) -> None:
    plant(
        tmp_path,
        node(10, "8-15", huge=4, free=4)
        | node(2, "0-7", huge=8, free=6)
        | {"sys/devices/system/node/online": "2,10\n"},
    )

    second, tenth = detect_cells(tmp_path)

    assert (second.number, tenth.number) == (2, 10)
    assert second.cpus == frozenset(range(8))
    assert second.memory_bytes == GIB
    assert second.hugepages == (HugepagePool(page_size_bytes=GIB, total=8, free=6),)


def test_a_host_without_nodes_has_no_cells(tmp_path: Path) -> None:
    assert detect_cells(tmp_path) == ()


def test_an_old_kernels_pool_is_that_of_meminfo(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {"proc/meminfo": "HugePages_Total: 3\nHugePages_Free: 1\nHugepagesize: 2048 kB\n"},
    )

    assert hugepages_of_host(tmp_path) == (HugepagePool(page_size_bytes=2 * MIB, total=3, free=1),)


def vm(
    name: str, *, pinned: set[int], pages: tuple[tuple[int, int, int], ...] = ()
) -> InstanceAllocation:
    return InstanceAllocation(
        id=name,
        name=name,
        vcpus=len(pinned),
        memory_bytes=0,
        state="Running",
        pinned_cpus=frozenset(pinned),
        hugepages=pages,
    )


def cell(number: int, cpus: range, *, total: int, free: int) -> Cell:
    pool = HugepagePool(page_size_bytes=GIB, total=total, free=free)
    return Cell(number=number, cpus=frozenset(cpus), memory_bytes=64 * GIB, hugepages=(pool,))


CELLS = (cell(0, range(8), total=16, free=16), cell(1, range(8, 16), total=16, free=4))


def test_what_vms_hold_is_taken_from_their_cell() -> None:
    first, second = cell_statuses(
        CELLS, [vm("a", pinned={0, 1, 8}, pages=((0, GIB, 10), (1, GIB, 2)))]
    )

    assert (first.pinned, second.pinned) == (frozenset({0, 1}), frozenset({8}))
    assert first.free_pages == {GIB: 6}  # a stopped VM's pages, which the kernel shows free
    assert second.free_pages == {GIB: 4}  # the kernel knows of more than VMs name
    assert len(first.free_cpus) == 6


@pytest.mark.parametrize(
    ("cpus", "pages", "cells"),
    [
        (0, 0, (0, 1)),
        (6, 6, (0,)),
        (7, 0, (1,)),
        (7, 5, ()),
        (1, 4, (0, 1)),
        (8, 0, ()),
        (0, 7, ()),
    ],
)
def test_a_vm_fits_into_one_cell_or_none(cpus: int, pages: int, cells: tuple[int, ...]) -> None:
    statuses = cell_statuses(CELLS, [vm("a", pinned={0, 1, 8}, pages=((0, GIB, 10), (1, GIB, 2)))])

    assert fitting_cells(statuses, pinned_cpus=cpus, page_size_bytes=GIB, pages=pages) == cells


def test_pages_of_an_unknown_size_fit_nowhere() -> None:
    statuses = cell_statuses(CELLS, [])

    assert fitting_cells(statuses, pinned_cpus=0, page_size_bytes=2 * MIB, pages=1) == ()


def asked(cpus: int, pages: int = 0) -> AllocationRequest:
    return AllocationRequest(pinned_cpus=cpus, hugepages=pages, hugepage_size_bytes=GIB)


def test_admission_wants_one_cell_for_pinned_cpus_and_pages(tmp_path: Path) -> None:
    plant(tmp_path, node(0, "0-7", huge=8, free=8) | node(1, "8-11", huge=16, free=16))
    host = manager(tmp_path, Told(vms=[facts_of("a", pinned_cpus=frozenset({0, 1}))]))

    host.reserve_allocation("fits the first", asked(6, 8))
    with pytest.raises(InsufficientCapacityError) as caught:
        host.reserve_allocation("fits no more", asked(5, 1))

    assert str(caught.value) == "cpu: no NUMA cell has 5 CPUs to pin and 1 pages of 1024.0 MB"
    assert caught.value.failures[0].available == 4
    assert caught.value.largest_fit is None  # no page is left of four fifths of one
    host.reserve_allocation("fits the second", asked(4, 16))
    host.finish_allocation("fits the first")
    host.reserve_allocation("fits again", asked(5, 1))


def test_what_fits_into_a_cell_is_smaller_by_one_factor(tmp_path: Path) -> None:
    plant(tmp_path, node(0, "0-7", huge=6, free=6))
    host = manager(tmp_path)

    with pytest.raises(InsufficientCapacityError) as caught:
        host.reserve_allocation("a", asked(0, 12))

    assert caught.value.failures[0].to_json()["resource"] == "memory"
    assert caught.value.failures[0].available == 6 * GIB
    assert caught.value.largest_fit == asked(0, 6)


def test_cells_are_not_given_away_unseen(tmp_path: Path) -> None:
    plant(tmp_path, node(0, "0-7", huge=6, free=6))
    told = Told()
    host = manager(tmp_path, told)
    told.fails.add("instances")

    with pytest.raises(ListerFailedError, match="numa"):
        host.reserve_allocation("a", asked(1))


@given(cpus=st.lists(st.integers(0, 6), max_size=5), pages=st.lists(st.integers(0, 6), max_size=5))
def test_operations_under_way_never_take_more_than_there_is(
    cpus: list[int], pages: list[int]
) -> None:
    needs = [
        CellNeed(pinned_cpus=some, page_size_bytes=GIB, pages=others)
        for some, others in zip(cpus, pages, strict=False)
    ]

    left = with_pending(cell_statuses(CELLS, []), needs)

    assert [status.cell.number for status in left] == [0, 1]
    for status in left:
        assert 0 <= status.pending_cpus <= len(status.cell.cpus)
        assert all(free >= 0 for free in status.free_pages.values())
    taken = sum(status.pending_cpus for status in left)
    assert taken == sum(need.pinned_cpus for need in needs) or any(
        not fitting_cells(left, pinned_cpus=need.pinned_cpus, page_size_bytes=GIB, pages=need.pages)
        for need in needs
    )
