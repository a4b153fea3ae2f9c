"""Which failover slots list a VM: nearly every VM of a region, as columns of their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any

import numpy as np

from scheduling.columns import BoolColumn, Int32Column, UInt64Column
from scheduling.overlaid import changed_size
from scheduling.table_rows import ReservationRow
from scheduling.vm_keys import (
    instance_key,
    key_columns,
    odd_uuids,
    places_of,
    sorted_keys,
    uuid_of,
)

_COMPACT_ABOVE = 1024
_COMPACT_SHARE = 8
_Slots = tuple[ReservationRow, ...]


class SlotUsers(Mapping[str, _Slots]):
    """VM uuid -> slots that list it, by key. Never changed in place.

    A VM takes 20 bytes for each of its slots; what changed since the columns were made is in a
    small mapping that wins over them. The tuples are made when asked for.
    """

    __slots__ = ("_changes", "_high", "_low", "_odd", "_places", "_size", "_slots")

    def __init__(self, slots: _Slots = ()) -> None:
        """Take all slots, by key."""
        high, low, counts = key_columns([slot.vm_uuids for slot in slots])
        numbers = np.repeat(np.arange(len(slots), dtype=np.int32), counts)
        self._high: UInt64Column
        self._low: UInt64Column
        self._places: Int32Column
        self._high, self._low, self._places = sorted_keys(high, low, numbers)
        self._slots = slots
        self._odd = odd_uuids(slot.vm_uuids for slot in slots)
        self._changes: Mapping[int, _Slots | None] = {}
        self._size = int(np.count_nonzero(self._is_first()))

    def __getitem__(self, vm_uuid: str) -> _Slots:
        slots = self.of_key(instance_key(vm_uuid))
        if not slots:
            raise KeyError(vm_uuid)
        return slots

    def get(self, vm_uuid: str, /, default: Any = None) -> Any:  # Any: as of any mapping
        """Return the slots that list a VM."""
        found = self.of_key(instance_key(vm_uuid))
        return found or default

    def of_key(self, key: int) -> _Slots:
        """Return the slots that list the VM of a number (:func:`~scheduling.vm_keys.instance_key`).

        Asked a thousand times for one decision.
        """
        if key in self._changes:
            return self._changes[key] or ()
        places = places_of(self._high, self._low, self._places, key)
        return tuple([self._slots[place] for place in places])

    def __contains__(self, vm_uuid: object) -> bool:
        return isinstance(vm_uuid, str) and self.get(vm_uuid) is not None

    def __iter__(self) -> Iterator[str]:
        first = self._is_first()
        halves = zip(self._high[first].tolist(), self._low[first].tolist(), strict=True)
        keys = [high << 64 | low for high, low in halves]
        keys = [key for key in keys if key not in self._changes]
        for key in (*keys, *(key for key, slots in self._changes.items() if slots)):
            yield self._odd.get(key) or uuid_of(key)

    def __len__(self) -> int:
        return self._size

    def changed(self, changes: Mapping[str, _Slots | None], slots: _Slots) -> SlotUsers:
        """Return the mapping after some VMs got other slots, or none.

        Args:
            changes: VM uuid -> its slots, None for none.
            slots: All slots after these changes, by key.
        """
        overlay = {
            **self._changes,
            **{instance_key(vm_uuid): listing for vm_uuid, listing in changes.items()},
        }
        if len(overlay) > max(_COMPACT_ABOVE, len(self._high) // _COMPACT_SHARE):
            return SlotUsers(slots)
        following = copy(self)
        following._odd = self._odd | odd_uuids([changes])  # noqa: SLF001 - of the same class
        following._changes = overlay  # noqa: SLF001 - of the same class
        following._size = changed_size(self, changes)  # noqa: SLF001 - of the same class
        return following

    def _is_first(self) -> BoolColumn:
        is_first: BoolColumn = np.ones(len(self._high), dtype=np.bool_)
        is_first[1:] = (self._high[1:] != self._high[:-1]) | (self._low[1:] != self._low[:-1])
        return is_first
