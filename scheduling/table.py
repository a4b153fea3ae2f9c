"""Immutable columnar snapshot of the hosts (spec scheduling, 6 and 14.3)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduling.columns import (
    BIT_COLUMNS,
    CAPACITY_COLUMNS,
    CODE_COLUMNS,
    BoolColumn,
    Int16Column,
    Int32Column,
    Int64Column,
    UInt64Column,
    bit_words,
    capacity_columns,
    extended_bits,
    extended_codes,
    frozen,
    text_hash,
    word_count,
)
from scheduling.host_names import HostNames, NameIndex
from scheduling.instances import InstanceIndex
from scheduling.reservations import NO_RESERVATIONS, ReservationIndex
from scheduling.table_rows import HostRow

_STATIC_COLUMNS: tuple[str, ...] = (
    "is_known",
    "state_ok",
    "takes_slots",
    *CODE_COLUMNS,
    *BIT_COLUMNS,
)
_IDENTITY_COLUMNS: tuple[str, ...] = ("host_ids", "name_hashes")
_EFFECTIVE_COLUMNS: tuple[str, ...] = ("eff_memory_bytes", "eff_vcpus")
_OTHERS_LEFT = "others_left"
_ALL_COLUMNS: tuple[str, ...] = (
    *_IDENTITY_COLUMNS,
    *_STATIC_COLUMNS,
    *CAPACITY_COLUMNS,
    _OTHERS_LEFT,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostTable:
    """All hosts as columns; row ``i`` of every column is the same host. Never changed in place.

    Arrays are not writeable. Memory is in bytes. The mask cache holds masks that depend on the
    static columns only, so tables that differ in capacity columns share it.

    Attributes:
        names: Host names by row.
        host_ids: int64[N], database keys.
        row_of: Host name -> row.
        is_known: bool[N], false for hosts that only a request names.
        zone: int16[N], codes into ``zones``; the empty zone means that the host has none.
        zones: Zone names by code.
        state_ok: bool[N], whether the host's conditions allow placement.
        takes_slots: bool[N], whether new slots may come; VMs go on either way.
        hypervisor_type: int16[N], codes into ``hypervisor_types``.
        hypervisor_types: Normalised hypervisor types by code.
        cpu_arch: int16[N], codes into ``cpu_archs``.
        cpu_archs: CPU architectures by code.
        building_block: int16[N], codes into ``building_blocks``.
        building_blocks: Racks by code.
        maintenance: int16[N], codes into ``maintenance_modes``.
        maintenance_modes: Maintenance modes by code.
        eff_memory_bytes: int64[N], effective capacity; likewise ``eff_vcpus``.
        alloc_memory_bytes: int64[N], allocated to VMs; likewise ``alloc_vcpus``.
        committed_memory_bytes: int64[N], blocked by committed slots; likewise vCPUs.
        failover_memory_bytes: int64[N], blocked by failover slots; likewise vCPUs.
        in_flight_memory_bytes: int64[N], blocked by in-flight placements; likewise vCPUs.
        others_left: int64[N, 3], what slots may take of network, disk I/O and GPUs.
        traits: uint64[N, W], bit sets; ``aggregates``, ``features``, ``cpu_modes`` and ``devices``
            likewise, each with its own number of words.
        trait_bit: Trait name -> bit number in a row of ``traits``; the other bit columns have
            ``aggregate_bit`` (by uuid), ``feature_bit``, ``cpu_mode_bit`` and ``device_bit``.
        tenant_class: int32[N], index into ``tenant_classes``.
        tenant_classes: Sets of allowed projects; the empty set is open to all.
        aggregate_tenant_class: int32[N], index into ``aggregate_tenant_classes``.
        aggregate_tenant_classes: Sets of projects named by aggregates; the empty set is open.
        name_hashes: uint64[N], stable hashes of the names for tie-breaks.
        instance_index: Which VMs each host lists.
        reservations: Side tables of the reservations; their sums are in the blocked columns.
        mask_cache: Masks of static filters by (filter name, key); filled by the engine.
        slot_cache: Reservations, and the names looked up last, as columns of row numbers; filled
            by the engine.
    """

    names: tuple[str, ...]
    host_ids: Int64Column
    row_of: Mapping[str, int]
    is_known: BoolColumn
    zone: Int16Column
    zones: tuple[str, ...]
    state_ok: BoolColumn
    takes_slots: BoolColumn
    hypervisor_type: Int16Column
    hypervisor_types: tuple[str, ...]
    cpu_arch: Int16Column
    cpu_archs: tuple[str, ...]
    building_block: Int16Column
    building_blocks: tuple[str, ...]
    maintenance: Int16Column
    maintenance_modes: tuple[str, ...]
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
    others_left: Int64Column
    traits: UInt64Column
    trait_bit: Mapping[str, int]
    aggregates: UInt64Column
    aggregate_bit: Mapping[str, int]
    features: UInt64Column
    feature_bit: Mapping[str, int]
    cpu_modes: UInt64Column
    cpu_mode_bit: Mapping[str, int]
    devices: UInt64Column
    device_bit: Mapping[str, int]
    tenant_class: Int32Column
    tenant_classes: tuple[frozenset[str], ...]
    aggregate_tenant_class: Int32Column
    aggregate_tenant_classes: tuple[frozenset[str], ...]
    name_hashes: UInt64Column
    instance_index: InstanceIndex = field(default_factory=InstanceIndex)
    reservations: ReservationIndex = NO_RESERVATIONS
    mask_cache: dict[tuple[str, Hashable], BoolColumn] = field(default_factory=dict, repr=False)
    slot_cache: dict[Hashable, Any] = field(  # Any: columns with what they were made from
        default_factory=dict, repr=False
    )

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
        return _with_instances(_with_encoded(table, target_rows, changed), changed)

    def replace_columns(
        self, rows: Sequence[int] | Int64Column, columns: Mapping[str, Sequence[int] | Int64Column]
    ) -> HostTable:
        """Return a table with new capacity figures in some rows; the cheapest kind of change.

        Args:
            rows: Row numbers, each at most once.
            columns: Name of a capacity column, or ``others_left`` -> new figures, one or three for
                each of ``rows``.

        Raises:
            ValueError: If a name is not one of ``CAPACITY_COLUMNS``, nor ``others_left``.
        """
        unknown = sorted(set(columns) - {*CAPACITY_COLUMNS, _OTHERS_LEFT})
        if unknown:
            raise ValueError(f"not a capacity column: {', '.join(unknown)}")
        targets = np.asarray(rows, dtype=np.int64)
        fresh = {name: np.asarray(figures, dtype=np.int64) for name, figures in columns.items()}
        return _scattered(self, targets, fresh, {})

    def with_copies(
        self, rows: Sequence[int], *, names: Sequence[str], host_ids: Sequence[int]
    ) -> HostTable:
        """Return a table with more hosts: empty ones, otherwise like existing ones.

        Args:
            rows: Row of the host that each new one is like.
            host_ids: Their keys; negative for hosts that exist in no database.

        Raises:
            ValueError: If a name is taken, or occurs twice.
        """
        if len(set(names)) < len(names) or any(name in self.row_of for name in names):
            raise ValueError("a host of this name exists")
        table = _with_new_names(self, names)
        likes = np.asarray(rows, dtype=np.int64)
        columns: dict[str, Any] = {}  # Any: columns of several dtypes
        for column_name in (*_STATIC_COLUMNS, *_EFFECTIVE_COLUMNS, _OTHERS_LEFT):
            column = getattr(table, column_name).copy()
            column[len(self) :] = column[likes]
            columns[column_name] = frozen(column)
        hashes = [text_hash(name) for name in names]
        for column_name, figures in (("host_ids", host_ids), ("name_hashes", hashes)):
            column = getattr(table, column_name).copy()
            column[len(self) :] = figures
            columns[column_name] = frozen(column)
        return replace(table, **columns)

    def with_reservations(self, reservations: ReservationIndex) -> HostTable:
        """Return a table with other reservation side tables; the blocked columns stay."""
        return replace(self, reservations=reservations)

    def rows_of(self, names: Collection[str]) -> Int64Column:
        """Return int64[K], the row of each name in its place, -1 for a name without row.

        Those of a tuple and of a call are looked up once, however many ask, and also when the next
        caller brings the same ones.
        """
        if not isinstance(names, (tuple, HostNames)):
            return self._looked_up(names)
        known: tuple[Collection[str], Int64Column] | None = self.slot_cache.get(_LAST_NAMES)
        if known is not None and (known[0] is names or known[0] == names):
            return known[1]
        found = self._found(names) if isinstance(names, HostNames) else self._looked_up(names)
        self.slot_cache[_LAST_NAMES] = (names, frozen(found))
        return found

    def _looked_up(self, names: Collection[str]) -> Int64Column:
        rows = map(self.row_of.get, names, repeat(-1))
        return np.fromiter(rows, dtype=np.int64, count=len(names))

    def _found(self, names: HostNames) -> Int64Column:
        index: NameIndex | None = self.slot_cache.get(_NAME_INDEX)
        if index is None:
            index = self.slot_cache[_NAME_INDEX] = NameIndex(self.names)
        rows = index.rows_of(names)
        for place in np.flatnonzero(rows < 0).tolist():
            rows[place] = self.row_of.get(names[place], -1)
        return rows

    def with_unknown(self, names: Collection[str]) -> HostTable:
        """Return a table that also has rows for hosts that no loader knows.

        Such a host has no zone, no traits, no capacity and is not ready; what becomes of it is
        each filter's business (spec scheduling, 7.1).
        """
        if (self.rows_of(names) >= 0).all():
            return self
        new_names = sorted({name for name in names if name not in self.row_of})
        table = _with_new_names(self, new_names)
        target_rows = np.arange(len(self), len(table), dtype=np.int64)
        return _with_encoded(table, target_rows, (_UNKNOWN_HOST,), names=new_names)


_LAST_NAMES = "last names"
_NAME_INDEX = "index of names"  # of the first rows, where hosts came after it was made
_UNKNOWN_HOST = HostRow(name="", host_id=0, is_ready=False, hypervisor_type="", is_known=False)


def _without(table: HostTable, gone: frozenset[str]) -> HostTable:
    keep = np.array([name not in gone for name in table.names], dtype=np.bool_)
    names = tuple(name for name in table.names if name not in gone)
    columns: dict[str, Any] = {  # Any: columns of several dtypes
        name: frozen(getattr(table, name)[keep]) for name in _ALL_COLUMNS
    }
    rows = np.where(keep, np.cumsum(keep) - 1, -1)
    return replace(
        table,
        names=names,
        row_of=_row_index(names),
        instance_index=table.instance_index.renumbered(rows),
        mask_cache={},
        slot_cache={},
        **columns,
    )


def _with_new_names(table: HostTable, new_names: Sequence[str]) -> HostTable:
    if not new_names:
        return table
    names = (*table.names, *new_names)
    columns: dict[str, Any] = {}  # Any: columns of several dtypes
    for column_name in _ALL_COLUMNS:
        old: NDArray[Any] = getattr(table, column_name)
        added = np.zeros((len(new_names), *old.shape[1:]), dtype=old.dtype)
        columns[column_name] = frozen(np.concatenate((old, added)))
    return replace(
        table,
        names=names,
        row_of=_row_index(names),
        mask_cache={},
        slot_cache={key: kept for key, kept in table.slot_cache.items() if key == _NAME_INDEX},
        **columns,
    )


def _with_encoded(
    table: HostTable,
    target_rows: Int64Column,
    rows: Sequence[HostRow],
    *,
    names: Sequence[str] | None = None,
) -> HostTable:
    """Write rows into the table; with ``names`` the only row is written for every name."""
    vocabulary: dict[str, Any] = {}  # Any: fields of several types
    fresh: dict[str, NDArray[Any]] = {  # Any: columns of several dtypes
        "host_ids": np.array([row.host_id for row in rows], dtype=np.int64),
        "is_known": np.array([row.is_known for row in rows], dtype=np.bool_),
        "state_ok": np.array([row.is_ready for row in rows], dtype=np.bool_),
        "takes_slots": np.array([row.takes_slots for row in rows], dtype=np.bool_),
        **capacity_columns(rows),
        _OTHERS_LEFT: np.array([row.others_left for row in rows], dtype=np.int64).reshape(-1, 3),
    }
    base = table
    for column_name, (words_name, dtype, word_of) in CODE_COLUMNS.items():
        words, codes = extended_codes(getattr(table, words_name), [word_of(row) for row in rows])
        vocabulary[words_name] = words
        fresh[column_name] = np.array(codes, dtype=dtype)
    for column_name, (bits_name, members_of) in BIT_COLUMNS.items():
        members = [members_of(row) for row in rows]
        bits = extended_bits(getattr(table, bits_name), members)
        vocabulary[bits_name] = bits
        base = _with_words(base, column_name, word_count(bits))
        fresh[column_name] = bit_words(members, bits, getattr(base, column_name).shape[1])
    if names is not None:
        fresh = {name: np.repeat(column, len(names), axis=0) for name, column in fresh.items()}
    row_names = names if names is not None else [row.name for row in rows]
    fresh["name_hashes"] = np.array([text_hash(name) for name in row_names], dtype=np.uint64)
    return _scattered(base, target_rows, fresh, vocabulary)


def _with_words(table: HostTable, column_name: str, words: int) -> HostTable:
    column: UInt64Column = getattr(table, column_name)
    missing = words - column.shape[1]
    if missing <= 0:
        return table
    wider: dict[str, Any] = {  # Any: one field by its name
        column_name: frozen(np.pad(column, ((0, 0), (0, missing))))
    }
    return replace(table, **wider)


def _with_instances(table: HostTable, rows: Sequence[HostRow]) -> HostTable:
    index = table.instance_index.updated({table.row_of[row.name]: row.instances for row in rows})
    return table if index is table.instance_index else replace(table, instance_index=index)


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
        changes[column_name] = frozen(column)
        keeps_masks = keeps_masks and column_name not in _STATIC_COLUMNS
    if not keeps_masks:
        changes["mask_cache"] = {}
    return replace(table, **changes)


def _row_index(names: Sequence[str]) -> Mapping[str, int]:
    return MappingProxyType({name: row for row, name in enumerate(names)})


def _empty_table() -> HostTable:
    columns: dict[str, Any] = {  # Any: columns of several dtypes
        **dict.fromkeys((*CAPACITY_COLUMNS, "host_ids"), frozen(np.zeros(0, dtype=np.int64))),
        **dict.fromkeys(
            ("is_known", "state_ok", "takes_slots"), frozen(np.zeros(0, dtype=np.bool_))
        ),
        "name_hashes": frozen(np.zeros(0, dtype=np.uint64)),
        _OTHERS_LEFT: frozen(np.zeros((0, 3), dtype=np.int64)),
    }
    for column_name, (words_name, dtype, _) in CODE_COLUMNS.items():
        columns |= {column_name: frozen(np.zeros(0, dtype=dtype)), words_name: ()}
    for column_name, (bits_name, _) in BIT_COLUMNS.items():
        columns[column_name] = frozen(np.zeros((0, 1), dtype=np.uint64))
        columns[bits_name] = MappingProxyType({})
    return HostTable(names=(), row_of=_row_index(()), **columns)
