"""Which hosts run a VM, and which VMs a host lists (spec scheduling, 14.3).

There are many more VMs than hosts, so what is kept of one is the 128 bits of its uuid, in columns:
some 28 bytes, where its text with its places in a mapping and in a list had five times as many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduling.columns import BoolColumn, Int32Column, UInt64Column, frozen
from scheduling.vm_keys import instance_key, key_columns, places_of, sorted_keys

_COMPACT_ABOVE = 1024
_WORD = (1 << 64) - 1


def _no(dtype: type[Any]) -> NDArray[Any]:  # Any: columns of several dtypes
    return frozen(np.zeros(0, dtype=dtype))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InstanceIndex:
    """Pairs of a VM and the row of a host that lists it; two for a VM while it moves.

    A change goes into small overlays, so that it costs the change and not the region. Never
    changed in place.

    Attributes:
        high: uint64[N], upper half of the key of the VM of each pair, ascending.
        low: uint64[N], its lower half, ascending where the upper ones are the same.
        rows: int32[N], the row of each pair.
        by_row: int32[N], the pairs in the order of their rows.
        rows_by_row: int32[N], the row of each of these.
        moved: Key of a VM -> rows that list it, ascending; of VMs that came, went or moved since
            the columns were made, and wins over them.
        listed: Row -> keys of the VMs that it lists; likewise.
    """

    high: UInt64Column = field(default_factory=lambda: _no(np.uint64))
    low: UInt64Column = field(default_factory=lambda: _no(np.uint64))
    rows: Int32Column = field(default_factory=lambda: _no(np.int32))
    by_row: Int32Column = field(default_factory=lambda: _no(np.int32))
    rows_by_row: Int32Column = field(default_factory=lambda: _no(np.int32))
    moved: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    listed: Mapping[int, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def build(cls, instances: Iterable[Collection[str]]) -> InstanceIndex:
        """Build the index from the lists of VMs by row."""
        return cls().updated(dict(enumerate(instances)))

    def rows_of(self, vm_uuid: str) -> tuple[int, ...]:
        """Return the rows of the hosts that list a VM, ascending."""
        return self._rows_of(instance_key(vm_uuid))

    def keys_on(self, row: int) -> frozenset[int]:
        """Return the keys of the VMs that a host lists."""
        known = self.listed.get(row)
        return self._base_keys(row) if known is None else known

    def are_listing(self, count: int) -> BoolColumn:
        """Return bool[count], the hosts that list a VM."""
        listing = np.zeros(count, dtype=np.bool_)
        listing[self.rows] = True
        for row, keys in self.listed.items():
            listing[row] = bool(keys)
        return listing

    def lists(self, row: int, vm_uuids: Iterable[str]) -> bool:
        """Return whether a host lists just these VMs."""
        return self.keys_on(row) == frozenset(map(instance_key, vm_uuids))

    def updated(self, changes: Mapping[int, Collection[str]]) -> InstanceIndex:
        """Return the index after the lists of some hosts changed.

        Args:
            changes: Row -> uuids of the VMs that it lists now.
        """
        if not len(self.rows) and not self.moved:
            return _built(changes)
        now = {
            row: (before, after)
            for row, vm_uuids in changes.items()
            if (before := self.keys_on(row)) != (after := frozenset(map(instance_key, vm_uuids)))
        }
        if not now:
            return self
        moved, listed = dict(self.moved), dict(self.listed)
        for row, (before, after) in now.items():
            listed[row] = after
            for key in before ^ after:
                rows = set(moved[key] if key in moved else self._rows_of(key))
                moved[key] = tuple(sorted(rows ^ {row}))
        following = InstanceIndex(
            high=self.high,
            low=self.low,
            rows=self.rows,
            by_row=self.by_row,
            rows_by_row=self.rows_by_row,
            moved=moved,
            listed=listed,
        )
        if len(moved) <= max(_COMPACT_ABOVE, len(self.rows) // 8):
            return following
        return following._compacted()

    def renumbered(self, rows: Sequence[int] | NDArray[np.integer]) -> InstanceIndex:
        """Return the index after hosts got other rows.

        Args:
            rows: New row of each old one, -1 for hosts that are gone.
        """
        new = np.asarray(rows, dtype=np.int32)
        whole = self._compacted() if self.moved else self
        places = new[whole.rows]
        stays = places >= 0
        return _of_pairs(whole.high[stays], whole.low[stays], places[stays])

    def misplaced(self) -> int:
        """Return how many VMs are said to be elsewhere than on the hosts that list them."""
        whole = self._compacted()
        return sum(
            whole._rows_of(key) != rows  # noqa: SLF001 - of the same class
            for key, rows in self.moved.items()
        )

    def _rows_of(self, key: int) -> tuple[int, ...]:
        known = self.moved.get(key)
        if known is not None:
            return known
        return tuple(places_of(self.high, self.low, self.rows, key))

    def _base_keys(self, row: int) -> frozenset[int]:
        wanted = np.int32(row)
        first = int(self.rows_by_row.searchsorted(wanted))
        last = int(self.rows_by_row.searchsorted(wanted, "right"))
        pairs = self.by_row[first:last]
        halves = zip(self.high[pairs].tolist(), self.low[pairs].tolist(), strict=True)
        return frozenset(high << 64 | low for high, low in halves)

    def _compacted(self) -> InstanceIndex:
        stays = ~np.isin(self.rows, np.fromiter(self.listed, dtype=np.int32))
        pairs = [(key, row) for row, keys in self.listed.items() for key in keys]
        high = np.array([key >> 64 for key, _ in pairs], dtype=np.uint64)
        low = np.array([key & _WORD for key, _ in pairs], dtype=np.uint64)
        rows = np.array([row for _, row in pairs], dtype=np.int32)
        return _of_pairs(
            np.concatenate((self.high[stays], high)),
            np.concatenate((self.low[stays], low)),
            np.concatenate((self.rows[stays], rows)),
        )


def differing_pairs(left: InstanceIndex, right: InstanceIndex) -> tuple[Int32Column, int]:
    """Return int32[K], the rows whose lists differ, and how many VMs are on other rows.

    Args:
        left: Has no overlays, as after :meth:`InstanceIndex.renumbered`.
        right: Likewise; a row means the same host in both.
    """
    high = np.concatenate((left.high, right.high))
    low = np.concatenate((left.low, right.low))
    rows = np.concatenate((left.rows, right.rows))
    order = np.lexsort((rows, low, high))
    high, low, rows = high[order], low[order], rows[order]
    is_same = (high[1:] == high[:-1]) & (low[1:] == low[:-1]) & (rows[1:] == rows[:-1])
    is_alone = np.ones(len(rows), dtype=np.bool_)
    is_alone[1:] &= ~is_same
    is_alone[:-1] &= ~is_same
    vms = np.stack((high[is_alone], low[is_alone]), axis=1)
    return np.unique(rows[is_alone]), len(np.unique(vms, axis=0))


def _built(lists: Mapping[int, Collection[str]]) -> InstanceIndex:
    high, low, counts = key_columns(lists.values())
    numbers = np.fromiter(lists, dtype=np.int32, count=len(lists))
    return _of_pairs(high, low, np.repeat(numbers, counts))


def _of_pairs(high: UInt64Column, low: UInt64Column, rows: Int32Column) -> InstanceIndex:
    high, low, ordered = sorted_keys(high, low, rows)
    by_row = np.argsort(ordered, kind="stable").astype(np.int32)
    return InstanceIndex(
        high=high,
        low=low,
        rows=ordered,
        by_row=frozen(by_row),
        rows_by_row=frozen(ordered[by_row]),
    )
