"""NUMA cells and huge pages of a host, and what fits into its cells (spec hosts, A.3, A.14)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from headroom_host_agent.resources.facts import InstanceAllocation
from headroom_host_agent.resources.tree import (
    SYSTEM,
    names_below,
    parse_list,
    read_integer,
    read_or_none,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HugepagePool:
    """Huge pages of one size."""

    page_size_bytes: int
    total: int
    free: int

    def to_json(self) -> dict[str, int]:
        """Return it for reports; ``bytes`` is what the pool locks."""
        return {
            "page_size_bytes": self.page_size_bytes,
            "total": self.total,
            "free": self.free,
            "bytes": self.page_size_bytes * self.total,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A NUMA node: its logical CPUs that are online, memory and pools of huge pages."""

    number: int
    cpus: frozenset[int]
    memory_bytes: int
    hugepages: tuple[HugepagePool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStatus:
    """What VMs take of a cell.

    Attributes:
        pinned: CPUs that belong to one VM each.
        free_pages: Page size in bytes -> pages that neither the kernel nor a known VM holds.
        pending_cpus: CPUs for operations under way, of which nobody knows which they will be.
    """

    cell: Cell
    pinned: frozenset[int]
    free_pages: dict[int, int]
    pending_cpus: int = 0

    @property
    def free_cpus(self) -> frozenset[int]:
        """CPUs of the cell that can be pinned."""
        return self.cell.cpus - self.pinned

    @property
    def free_cpu_count(self) -> int:
        """How many CPUs of the cell can still be pinned."""
        return max(0, len(self.free_cpus) - self.pending_cpus)

    def to_json(self) -> dict[str, object]:
        """Return it for reports."""
        return {
            "cell": self.cell.number,
            "cpus": sorted(self.cell.cpus),
            "pinned_cpus": sorted(self.pinned),
            "memory_bytes": self.cell.memory_bytes,
            "hugepages": [
                pool.to_json() | {"available": self.free_pages[pool.page_size_bytes]}
                for pool in self.cell.hugepages
            ],
        }


def hugepages_of_host(sysroot: Path = SYSTEM) -> tuple[HugepagePool, ...]:
    """Return the pools of all sizes; of an old kernel that of meminfo."""
    pools = _pools(sysroot / "sys/kernel/mm/hugepages")
    return pools or _pool_of_meminfo(sysroot)


def detect_cells(sysroot: Path = SYSTEM) -> tuple[Cell, ...]:
    """Return the NUMA nodes by number; none where the kernel knows none."""
    base = sysroot / "sys/devices/system/node"
    numbers = sorted(
        int(found[1])
        for name in names_below(base)
        if (found := re.fullmatch(r"node([0-9]{1,4})", name))
    )
    return tuple(_cell(base / f"node{number}", number) for number in numbers)


def cell_statuses(
    cells: Iterable[Cell], instances: Iterable[InstanceAllocation]
) -> tuple[CellStatus, ...]:
    """Return what counted VMs leave of each cell.

    Pages count as taken when the kernel says so or a VM names them, whichever is more: a stopped
    VM keeps its pages though the kernel shows them free.
    """
    counted = tuple(instances)
    pinned = frozenset(cpu for vm in counted for cpu in vm.pinned_cpus)
    return tuple(
        CellStatus(
            cell=cell,
            pinned=cell.cpus & pinned,
            free_pages={
                pool.page_size_bytes: max(
                    0, min(pool.free, pool.total - _named(cell, pool, counted))
                )
                for pool in cell.hugepages
            },
        )
        for cell in cells
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellNeed:
    """What must come from one cell."""

    pinned_cpus: int
    page_size_bytes: int
    pages: int


def with_pending(
    statuses: Iterable[CellStatus], needs: Iterable[CellNeed]
) -> tuple[CellStatus, ...]:
    """Return the cells less what operations under way will take.

    Each takes of the first cell that ``fitting_cells`` names, the largest first; one that fits
    nowhere takes nothing.
    """
    left = {status.cell.number: status for status in statuses}
    for need in sorted(needs, key=lambda one: (-one.pinned_cpus, -one.pages)):
        cells = fitting_cells(
            left.values(),
            pinned_cpus=need.pinned_cpus,
            page_size_bytes=need.page_size_bytes,
            pages=need.pages,
        )
        if cells:
            status = left[cells[0]]
            pages = dict(status.free_pages)
            if need.pages:
                pages[need.page_size_bytes] -= need.pages
            left[cells[0]] = replace(
                status, pending_cpus=status.pending_cpus + need.pinned_cpus, free_pages=pages
            )
    return tuple(left.values())


def largest_share(statuses: Iterable[CellStatus], need: CellNeed) -> Fraction:
    """Return the share of a need, at most 1, that the best cell has."""
    return min(
        Fraction(1),
        max(
            (
                min(
                    _share(status.free_cpu_count, need.pinned_cpus),
                    _share(status.free_pages.get(need.page_size_bytes, 0), need.pages),
                )
                for status in statuses
            ),
            default=Fraction(0),
        ),
    )


def fitting_cells(
    statuses: Iterable[CellStatus], *, pinned_cpus: int, page_size_bytes: int, pages: int
) -> tuple[int, ...]:
    """Return the numbers of cells that alone hold so many pinned CPUs and huge pages.

    Least free CPUs first, then pages, then number, so that large gaps stay.
    """
    fitting = [
        status
        for status in statuses
        if status.free_cpu_count >= pinned_cpus
        and (pages == 0 or status.free_pages.get(page_size_bytes, 0) >= pages)
    ]
    fitting.sort(
        key=lambda status: (
            status.free_cpu_count,
            status.free_pages.get(page_size_bytes, 0),
            status.cell.number,
        )
    )
    return tuple(status.cell.number for status in fitting)


def _share(free: int, asked: int) -> Fraction:
    return Fraction(free, asked) if asked else Fraction(1)


def _named(cell: Cell, pool: HugepagePool, counted: tuple[InstanceAllocation, ...]) -> int:
    return sum(
        pages
        for vm in counted
        for number, size_bytes, pages in vm.hugepages
        if (number, size_bytes) == (cell.number, pool.page_size_bytes)
    )


def _cell(base: Path, number: int) -> Cell:
    try:
        cpus = parse_list(read_or_none(base / "cpulist") or "")
    except ValueError:
        cpus = frozenset()
    meminfo = read_or_none(base / "meminfo") or ""
    found = re.search(r"MemTotal:\s+([0-9]{1,15}) kB", meminfo)
    return Cell(
        number=number,
        cpus=cpus,
        memory_bytes=int(found[1]) * 1024 if found else 0,
        hugepages=_pools(base / "hugepages"),
    )


def _pools(base: Path) -> tuple[HugepagePool, ...]:
    pools = []
    for name in names_below(base):
        found = re.fullmatch(r"hugepages-([0-9]{1,12})kB", name)
        if found:
            total = read_integer(base / name / "nr_hugepages") or 0
            free = read_integer(base / name / "free_hugepages") or 0
            size_bytes = int(found[1]) * 1024
            pools.append(HugepagePool(page_size_bytes=size_bytes, total=total, free=free))
    return tuple(sorted(pools, key=lambda pool: pool.page_size_bytes))


def _pool_of_meminfo(sysroot: Path) -> tuple[HugepagePool, ...]:
    meminfo = read_or_none(sysroot / "proc/meminfo") or ""
    pattern = r"^(HugePages_Total|HugePages_Free|Hugepagesize):\s+([0-9]{1,15})"
    values = {key: int(number) for key, number in re.findall(pattern, meminfo, re.MULTILINE)}
    if not values.get("Hugepagesize"):
        return ()
    return (
        HugepagePool(
            page_size_bytes=values["Hugepagesize"] * 1024,
            total=values.get("HugePages_Total", 0),
            free=values.get("HugePages_Free", 0),
        ),
    )
