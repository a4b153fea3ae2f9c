"""Resource units of workloads, their counters and cloud units (spec hosts, B.5, B.8)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import ROUND_HALF_EVEN, Decimal
from enum import StrEnum

MIB, GIB = 1024**2, 1024**3
HOST_SHARE_BYTES = 2 * GIB
_THOUSANDTH = Decimal("0.001")
# size of a VM -> (CPUs, GiB of memory, GiB of flash)
_VM_SIZES: Mapping[int, tuple[int, int, int]] = {
    1: (1, 2, 50), 2: (2, 4, 100), 3: (2, 8, 25), 4: (2, 8, 50), 5: (2, 8, 200), 6: (4, 16, 50),
    7: (4, 16, 100), 8: (4, 16, 400), 9: (8, 32, 100), 10: (8, 32, 200), 11: (8, 32, 800),
    12: (1, 64, 200), 13: (1, 64, 400), 14: (1, 64, 800), 15: (1, 2, 25), 16: (2, 4, 50),
    17: (4, 8, 50), 18: (1, 1, 25),
}  # fmt: skip
_COUNTERS = {
    "container": "container",
    "volume": "volume",
    "network": "network",
    "network_resource": "network",
    "zdb": "zdb_namespace",
    "kubernetes": "k8s_vm",
}


class UnitsError(ValueError):
    """The data of a workload do not tell its units."""


class ResourceUnit(StrEnum):
    """What is counted of a workload."""

    CRU = "cru"  # logical CPUs
    MRU = "mru"  # memory
    HRU = "hru"  # spinning disk
    SRU = "sru"  # flash


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Amounts of each unit: CPUs, else bytes. Never negative."""

    cru: int = 0
    mru: int = 0
    hru: int = 0
    sru: int = 0

    def __add__(self, other: Units) -> Units:
        """Return both."""
        return Units(**{unit.name: _of(self, unit.name) + _of(other, unit.name) for unit in _ALL})

    def __sub__(self, other: Units) -> Units:
        """Return what is left, each unit at least 0."""
        return Units(
            **{unit.name: max(0, _of(self, unit.name) - _of(other, unit.name)) for unit in _ALL}
        )

    def to_json(self) -> dict[str, float]:
        """Return it for reports: CPUs, else GiB."""
        return {
            unit.name: _of(self, unit.name) if unit.name == "cru" else _of(self, unit.name) / GIB
            for unit in _ALL
        }


_ALL = fields(Units)


def _of(units: Units, name: str) -> int:
    amount: int = getattr(units, name)
    return amount


def units_of(kind: str, data: Mapping[str, object]) -> Units:
    """Return the units of a workload; of a type that takes nothing, none.

    Raises:
        UnitsError: ``data`` lacks a size, or names an unknown type of disk.
    """
    if kind in ("volume", "zdb"):
        disk = "type" if kind == "volume" else "disk_type"
        return _disk(data, disk, _number(data, "size") * GIB)
    if kind == "container":
        size_bytes = _number(data, "disk_size") * MIB
        stored = _disk(data, "disk_type", size_bytes) if size_bytes else Units()
        return stored + Units(cru=_number(data, "cpu"), mru=_number(data, "memory") * MIB)
    if kind == "kubernetes":
        cpus, memory_gib, flash_gib = _VM_SIZES.get(_number(data, "size"), (0, 0, 0))
        return Units(cru=cpus, mru=memory_gib * GIB, sru=flash_gib * GIB)
    return Units()


def counter_of(kind: str) -> str | None:
    """Return the name of the counter of a type's workloads, None for those not counted."""
    return _COUNTERS.get(kind)


def usable_memory_bytes(total_bytes: int) -> int:
    """Return what workloads may take: whole GiB rounded up, less the host's share."""
    return max(0, -(-total_bytes // GIB) * GIB - HOST_SHARE_BYTES)


def with_host_share(units: Units, *, cache_bytes: int, cache_is_flash: bool) -> Units:
    """Return units with what the host itself takes: memory, and its cache's file system."""
    cache = Units(sru=cache_bytes) if cache_is_flash else Units(hru=cache_bytes)
    return units + Units(mru=HOST_SHARE_BYTES) + cache


def compute_units(cpus: Decimal | int, memory_gib: Decimal | int) -> Decimal:
    """Return the cloud units of CPUs and memory."""
    return _rounded(min(Decimal(memory_gib) / 4, Decimal(cpus) / 2))


def storage_units(spinning_gib: Decimal | int, flash_gib: Decimal | int) -> Decimal:
    """Return the cloud units of disks."""
    return _rounded(Decimal(spinning_gib) / 1200 + Decimal(flash_gib) / 300)


class Counters:
    """Units and workloads that plug-ins count themselves; atomic, never below zero."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._units = Units()
        self._workloads: dict[str, int] = {}

    def increment(self, kind: str, data: Mapping[str, object]) -> None:
        """Count a workload.

        Raises:
            UnitsError: As ``units_of``; nothing is counted.
        """
        units = units_of(kind, data)
        with self._lock:
            self._units += units
            self._add(kind, 1)

    def decrement(self, kind: str, data: Mapping[str, object]) -> None:
        """Count a workload no more.

        Raises:
            UnitsError: As ``units_of``; nothing is counted.
        """
        units = units_of(kind, data)
        with self._lock:
            self._units -= units
            self._add(kind, -1)

    def current_units(self) -> Units:
        """Return the sum of what is counted."""
        with self._lock:
            return self._units

    def current_workloads(self) -> dict[str, int]:
        """Return the name of each counter -> workloads."""
        with self._lock:
            return dict(self._workloads)

    def _add(self, kind: str, difference: int) -> None:
        name = counter_of(kind)
        if name is not None:
            self._workloads[name] = max(0, self._workloads.get(name, 0) + difference)


def _disk(data: Mapping[str, object], name: str, size_bytes: int) -> Units:
    kind = str(data.get(name, "")).lower()
    if kind not in ("ssd", "hdd"):
        raise UnitsError(f"{name} must be ssd or hdd")
    return Units(sru=size_bytes) if kind == "ssd" else Units(hru=size_bytes)


def _number(data: Mapping[str, object], name: str) -> int:
    number = data.get(name, 0)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise UnitsError(f"{name} must be a whole number")
    return number


def _rounded(units: Decimal) -> Decimal:
    return units.quantize(_THOUSANDTH, rounding=ROUND_HALF_EVEN)
