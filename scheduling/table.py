"""Immutable columnar snapshot of the hosts (spec scheduling, 6 and 14.3)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduling.resources import ZERO, ResourceVector

BoolColumn: TypeAlias = NDArray[np.bool_]
Int64Column: TypeAlias = NDArray[np.int64]
Int32Column: TypeAlias = NDArray[np.int32]
Int16Column: TypeAlias = NDArray[np.int16]
UInt64Column: TypeAlias = NDArray[np.uint64]
FloatColumn: TypeAlias = NDArray[np.float64]

_Word = TypeVar("_Word", bound=Hashable)

_BITS_PER_WORD = 64

CAPACITY_COLUMNS: tuple[str, ...] = (
    "eff_memory_bytes",
    "eff_vcpus",
    "alloc_memory_bytes",
    "alloc_vcpus",
    "committed_memory_bytes",
    "committed_vcpus",
    "failover_memory_bytes",
    "failover_vcpus",
    "in_flight_memory_bytes",
    "in_flight_vcpus",
)
_STATIC_COLUMNS: tuple[str, ...] = (
    "zone",
    "state_ok",
    "hypervisor_type",
    "traits",
    "tenant_class",
)
_IDENTITY_COLUMNS: tuple[str, ...] = ("host_ids", "name_hashes")


def normalized_hypervisor_type(name: str) -> str:
    """Return the hypervisor type in lower case with ``kvm`` written as ``qemu``.

    Source: spec scheduling, 7.6 (product rule).
    """
    lowered = name.strip().lower()
    return "qemu" if lowered == "kvm" else lowered


def text_hash(text: str) -> int:
    """Return a stable unsigned 64-bit hash of a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """One host as a loader hands it over.

    Attributes:
        name: Compute host name, unique in a table.
        host_id: Database key of the host.
        zone: Availability zone; empty when the host has none.
        is_ready: Whether its conditions allow placement, see
            :func:`scheduling.filters.conditions_allow_placement`.
        hypervisor_type: Domain type of the host (``ch``, ``kvm``, ``qemu``), any case.
        traits: Applied and custom traits together.
        allowed_projects: Projects that may use the host; empty means all.
        effective: Effective capacity, zero where it is not known.
        allocated: Sum over the VMs on the host.
        committed: What committed slots still block.
        failover: What failover slots block.
        in_flight: What in-flight placements block.
    """

    name: str
    host_id: int
    zone: str = ""
    is_ready: bool = True
    hypervisor_type: str = "qemu"
    traits: Collection[str] = ()
    allowed_projects: Collection[str] = ()
    effective: ResourceVector = ZERO
    allocated: ResourceVector = ZERO
    committed: ResourceVector = ZERO
    failover: ResourceVector = ZERO
    in_flight: ResourceVector = ZERO


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostTable:
    """All hosts as columns; row ``i`` of every column is the same host. Never changed in place.

    Arrays are not writeable. Memory is in bytes. The mask cache holds masks that depend on the
    static columns only, so tables that differ in capacity columns share it.

    Attributes:
        names: Host names by row.
        host_ids: int64[N], database keys.
        row_of: Host name -> row.
        zone: int16[N], codes into ``zones``; the empty zone means that the host has none.
        zones: Zone names by code.
        state_ok: bool[N], whether the host's conditions allow placement.
        hypervisor_type: int16[N], codes into ``hypervisor_types``.
        hypervisor_types: Normalised hypervisor types by code.
        eff_memory_bytes: int64[N], effective capacity; likewise ``eff_vcpus``.
        alloc_memory_bytes: int64[N], allocated to VMs; likewise ``alloc_vcpus``.
        committed_memory_bytes: int64[N], blocked by committed slots; likewise vCPUs.
        failover_memory_bytes: int64[N], blocked by failover slots; likewise vCPUs.
        in_flight_memory_bytes: int64[N], blocked by in-flight placements; likewise vCPUs.
        traits: uint64[N, W], bit sets.
        trait_bit: Trait name -> bit number in a row of ``traits``.
        tenant_class: int32[N], index into ``tenant_classes``.
        tenant_classes: Sets of allowed projects; the empty set is open to all.
        name_hashes: uint64[N], stable hashes of the names for tie-breaks.
        mask_cache: Masks of static filters by (filter name, key); filled by the engine.
    """

    names: tuple[str, ...]
    host_ids: Int64Column
    row_of: Mapping[str, int]
    zone: Int16Column
    zones: tuple[str, ...]
    state_ok: BoolColumn
    hypervisor_type: Int16Column
    hypervisor_types: tuple[str, ...]
    eff_memory_bytes: Int64Column
    eff_vcpus: Int64Column
    alloc_memory_bytes: Int64Column
    alloc_vcpus: Int64Column
    committed_memory_bytes: Int64Column
    committed_vcpus: Int64Column
    failover_memory_bytes: Int64Column
    failover_vcpus: Int64Column
    in_flight_memory_bytes: Int64Column
    in_flight_vcpus: Int64Column
    traits: UInt64Column
    trait_bit: Mapping[str, int]
    tenant_class: Int32Column
    tenant_classes: tuple[frozenset[str], ...]
    name_hashes: UInt64Column
    mask_cache: dict[tuple[str, Hashable], BoolColumn] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_rows(cls, rows: Iterable[HostRow]) -> HostTable:
        """Build a table with the hosts in the given order.

        Raises:
            ValueError: If a name occurs twice.
        """
        return _empty_table().replace_rows(rows)

    def free_memory_bytes(self) -> Int64Column:
        """Return effective minus allocated minus all blocks per host, negative if over-used."""
        return (
            self.eff_memory_bytes
            - self.alloc_memory_bytes
            - self.committed_memory_bytes
            - self.failover_memory_bytes
            - self.in_flight_memory_bytes
        )

    def free_vcpus(self) -> Int64Column:
        """Return effective minus allocated minus all blocks per host, negative if over-used."""
        return (
            self.eff_vcpus
            - self.alloc_vcpus
            - self.committed_vcpus
            - self.failover_vcpus
            - self.in_flight_vcpus
        )

    def replace_rows(self, rows: Iterable[HostRow], *, removed: Collection[str] = ()) -> HostTable:
        """Return a table with some hosts changed, added or removed.

        Only the columns that really change are copied. Known hosts keep their row unless hosts
        are removed, new ones are appended in the given order. Codes of zones, traits and
        tenant classes that no host has any more stay: a full rebuild now and then drops them.

        Args:
            rows: New state of changed and added hosts.
            removed: Names of hosts to drop; unknown names are ignored.

        Raises:
            ValueError: If a name occurs twice, or both in ``rows`` and in ``removed``.
        """
        changed = tuple(rows)
        gone = frozenset(removed)
        changed_names = [row.name for row in changed]
        if len(set(changed_names)) != len(changed_names):
            raise ValueError("a host name occurs twice")
        if gone.intersection(changed_names):
            raise ValueError("a host is both changed and removed")
        table = _without(self, gone) if any(name in self.row_of for name in gone) else self
        table = _with_new_names(table, [name for name in changed_names if name not in table.row_of])
        if not changed:
            return table
        target_rows = np.array([table.row_of[name] for name in changed_names], dtype=np.int64)
        return _with_encoded(table, target_rows, changed)

    def replace_columns(
        self, rows: Sequence[int] | Int64Column, columns: Mapping[str, Sequence[int] | Int64Column]
    ) -> HostTable:
        """Return a table with new capacity figures in some rows; the cheapest kind of change.

        Args:
            rows: Row numbers, each at most once.
            columns: Name of a capacity column -> new figures, one for each of ``rows``.

        Raises:
            ValueError: If a name is not one of ``CAPACITY_COLUMNS``.
        """
        unknown = sorted(set(columns) - set(CAPACITY_COLUMNS))
        if unknown:
            raise ValueError(f"not a capacity column: {', '.join(unknown)}")
        targets = np.asarray(rows, dtype=np.int64)
        fresh = {name: np.asarray(figures, dtype=np.int64) for name, figures in columns.items()}
        return _scattered(self, targets, fresh, {})


_ALL_COLUMNS: tuple[str, ...] = (*_IDENTITY_COLUMNS, *_STATIC_COLUMNS, *CAPACITY_COLUMNS)


def _without(table: HostTable, gone: frozenset[str]) -> HostTable:
    keep = np.array([name not in gone for name in table.names], dtype=np.bool_)
    names = tuple(name for name in table.names if name not in gone)
    columns: dict[str, Any] = {  # Any: columns of several dtypes
        name: _frozen(getattr(table, name)[keep]) for name in _ALL_COLUMNS
    }
    return replace(table, names=names, row_of=_row_index(names), mask_cache={}, **columns)


def _with_new_names(table: HostTable, new_names: Sequence[str]) -> HostTable:
    if not new_names:
        return table
    names = (*table.names, *new_names)
    columns: dict[str, Any] = {}  # Any: columns of several dtypes
    for column_name in _ALL_COLUMNS:
        old: NDArray[Any] = getattr(table, column_name)
        added = np.zeros((len(new_names), *old.shape[1:]), dtype=old.dtype)
        columns[column_name] = _frozen(np.concatenate((old, added)))
    return replace(table, names=names, row_of=_row_index(names), mask_cache={}, **columns)


def _with_encoded(table: HostTable, target_rows: Int64Column, rows: Sequence[HostRow]) -> HostTable:
    zones, zone_code = _extended(table.zones, [row.zone for row in rows])
    kinds, kind_code = _extended(
        table.hypervisor_types, [normalized_hypervisor_type(row.hypervisor_type) for row in rows]
    )
    classes, class_code = _extended(
        table.tenant_classes, [frozenset(row.allowed_projects) for row in rows]
    )
    trait_bit = _extended_bits(table.trait_bit, rows)
    words = max(1, -(-len(trait_bit) // _BITS_PER_WORD))  # ceil: the last word is partly used
    base = _with_trait_words(table, words)
    fresh: dict[str, NDArray[Any]] = {  # Any: columns of several dtypes
        "host_ids": np.array([row.host_id for row in rows], dtype=np.int64),
        "name_hashes": np.array([text_hash(row.name) for row in rows], dtype=np.uint64),
        "zone": np.array(zone_code, dtype=np.int16),
        "state_ok": np.array([row.is_ready for row in rows], dtype=np.bool_),
        "hypervisor_type": np.array(kind_code, dtype=np.int16),
        "tenant_class": np.array(class_code, dtype=np.int32),
        "traits": _trait_words(rows, trait_bit, words),
        **_capacity_columns(rows),
    }
    vocabulary: dict[str, Any] = {  # Any: fields of several types
        "zones": zones,
        "hypervisor_types": kinds,
        "tenant_classes": classes,
        "trait_bit": trait_bit,
    }
    return _scattered(base, target_rows, fresh, vocabulary)


def _with_trait_words(table: HostTable, words: int) -> HostTable:
    missing = words - table.traits.shape[1]
    if missing <= 0:
        return table
    return replace(table, traits=_frozen(np.pad(table.traits, ((0, 0), (0, missing)))))


def _scattered(
    table: HostTable,
    target_rows: Int64Column,
    fresh: Mapping[str, NDArray[Any]],  # Any: columns of several dtypes
    vocabulary: Mapping[str, Any],  # Any: fields of several types
) -> HostTable:
    changes: dict[str, Any] = dict(vocabulary)  # Any: fields of several types
    keeps_masks = True
    for column_name, figures in fresh.items():
        old: NDArray[Any] = getattr(table, column_name)
        if np.array_equal(old[target_rows], figures):
            continue
        column = old.copy()
        column[target_rows] = figures
        changes[column_name] = _frozen(column)
        keeps_masks = keeps_masks and column_name not in _STATIC_COLUMNS
    if not keeps_masks:
        changes["mask_cache"] = {}
    return replace(table, **changes)


def _frozen(column: NDArray[Any]) -> NDArray[Any]:  # Any: whatever dtype the column has
    column.flags.writeable = False
    return column


def _row_index(names: Sequence[str]) -> Mapping[str, int]:
    return MappingProxyType({name: row for row, name in enumerate(names)})


def _extended(
    known: tuple[_Word, ...], wanted: Sequence[_Word]
) -> tuple[tuple[_Word, ...], list[int]]:
    """Return the vocabulary with new words appended, and the code of each wanted word."""
    code_of = {word: code for code, word in enumerate(known)}
    codes = [code_of.setdefault(word, len(code_of)) for word in wanted]
    return tuple(code_of), codes


def _extended_bits(known: Mapping[str, int], rows: Sequence[HostRow]) -> Mapping[str, int]:
    new = {trait for row in rows for trait in row.traits if trait not in known}
    if not new:
        return known
    bits = dict(known)
    for trait in sorted(new):
        bits[trait] = len(bits)
    return MappingProxyType(bits)


def _trait_words(rows: Sequence[HostRow], trait_bit: Mapping[str, int], words: int) -> UInt64Column:
    bits = np.zeros((len(rows), words), dtype=np.uint64)
    for index, row in enumerate(rows):
        row_bits = 0
        for trait in row.traits:
            row_bits |= 1 << trait_bit[trait]
        for word in range(words):
            bits[index, word] = (row_bits >> (word * _BITS_PER_WORD)) & (2**_BITS_PER_WORD - 1)
    return bits


def _capacity_columns(rows: Sequence[HostRow]) -> dict[str, Int64Column]:
    figures = [
        (
            row.effective.memory_bytes,
            row.effective.vcpus,
            row.allocated.memory_bytes,
            row.allocated.vcpus,
            row.committed.memory_bytes,
            row.committed.vcpus,
            row.failover.memory_bytes,
            row.failover.vcpus,
            row.in_flight.memory_bytes,
            row.in_flight.vcpus,
        )
        for row in rows
    ]
    by_column = np.ascontiguousarray(np.array(figures, dtype=np.int64).T)
    return dict(zip(CAPACITY_COLUMNS, by_column, strict=True))


def _empty_table() -> HostTable:
    empty_int64 = _frozen(np.zeros(0, dtype=np.int64))
    capacity: dict[str, Any] = dict.fromkeys(CAPACITY_COLUMNS, empty_int64)  # Any: for ** below
    return HostTable(
        names=(),
        host_ids=empty_int64,
        row_of=_row_index(()),
        zone=_frozen(np.zeros(0, dtype=np.int16)),
        zones=(),
        state_ok=_frozen(np.zeros(0, dtype=np.bool_)),
        hypervisor_type=_frozen(np.zeros(0, dtype=np.int16)),
        hypervisor_types=(),
        traits=_frozen(np.zeros((0, 1), dtype=np.uint64)),
        trait_bit=MappingProxyType({}),
        tenant_class=_frozen(np.zeros(0, dtype=np.int32)),
        tenant_classes=(),
        name_hashes=_frozen(np.zeros(0, dtype=np.uint64)),
        **capacity,
    )
