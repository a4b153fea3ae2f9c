"""VMs as the 128 bits of their uuids: in sorted columns, and in lists of sixteen bytes a VM.

There are millions of them, each named by its host and by the reservations that it may use. The
text of a uuid takes 85 bytes and an entry of a mapping as many again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import overload

import numpy as np

from scheduling.columns import Int32Column, Int64Column, UInt64Column, frozen

_KEY_BYTES = 16
_WORD = (1 << 64) - 1
_is_uuid = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def instance_key(vm_uuid: str) -> int:
    """Return the 128-bit number of a VM: that of its uuid, of a text that is none its hash."""
    return int.from_bytes(_key_bytes(vm_uuid), "big")


def uuid_of(key: int) -> str:
    """Return the uuid whose number this is."""
    text = f"{key:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class VMUuids(Sequence[str]):
    """Uuids of VMs, kept in sixteen bytes each; texts are made when asked for.

    Equal to any sequence of the same uuids in the same order.
    """

    __slots__ = ("keys",)

    def __init__(self, keys: bytes) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys) // _KEY_BYTES

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        if isinstance(place, slice):
            return tuple(map(self._uuid_at, range(len(self))[place]))
        return self._uuid_at(range(len(self))[place])

    def __iter__(self) -> Iterator[str]:
        return map(self._uuid_at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, VMUuids):
            return self.keys == other.keys
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _uuid_at(self, place: int) -> str:
        first = place * _KEY_BYTES
        return uuid_of(int.from_bytes(self.keys[first : first + _KEY_BYTES], "big"))


def packed_uuids(vm_uuids: Iterable[str]) -> VMUuids | tuple[str, ...]:
    """Return uuids in little room; a tuple, where one is not written as everybody writes uuids."""
    listed = tuple(vm_uuids)
    if not listed or not all(map(_is_uuid, listed)):
        return listed
    return VMUuids(b"".join(map(_key_bytes, listed)))


def odd_uuids(lists: Iterable[Collection[str]]) -> dict[int, str]:
    """Return the number and text of those VMs whose uuids are not written as usual."""
    return {
        instance_key(vm_uuid): vm_uuid
        for vm_uuids in lists
        if not isinstance(vm_uuids, VMUuids)
        for vm_uuid in vm_uuids
        if not _is_uuid(vm_uuid)
    }


def key_columns(
    lists: Collection[Collection[str]],
) -> tuple[UInt64Column, UInt64Column, Int64Column]:
    """Return the VMs of all lists, one after the other, as columns.

    Returns:
        uint64[N] and uint64[N], upper and lower halves of their numbers; int64[L], the length of
        each list.
    """
    counts = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    words = np.frombuffer(b"".join(map(_keys_of, lists)), dtype=">u8").reshape(-1, 2)
    return words[:, 0].astype(np.uint64), words[:, 1].astype(np.uint64), counts


def sorted_keys(
    high: UInt64Column, low: UInt64Column, places: Int32Column
) -> tuple[UInt64Column, UInt64Column, Int32Column]:
    """Return pairs of a VM and a place by both, each pair once, in columns of their own."""
    order = np.lexsort((places, low, high))
    high, low, places = high[order], low[order], places[order]
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1]) | (places[1:] != places[:-1])
    if not is_new.all():
        high, low, places = high[is_new], low[is_new], places[is_new]
    return frozen(high), frozen(low), frozen(places.astype(np.int32, copy=False))


def places_of(high: UInt64Column, low: UInt64Column, places: Int32Column, key: int) -> list[int]:
    """Return the places of a VM in columns of :func:`sorted_keys`, ascending."""
    upper, lower = np.uint64(key >> 64), key & _WORD
    at = int(high.searchsorted(upper))
    found: list[int] = []
    while at < len(high) and high[at] == upper:
        if low.item(at) == lower:
            found.append(places.item(at))
        at += 1
    return found


def _keys_of(vm_uuids: Collection[str]) -> bytes:
    if isinstance(vm_uuids, VMUuids):
        return vm_uuids.keys
    return b"".join(map(_key_bytes, vm_uuids))


def _key_bytes(vm_uuid: str) -> bytes:
    if _is_uuid(vm_uuid):
        return bytes.fromhex(vm_uuid.replace("-", ""))
    return blake2b(vm_uuid.encode(), digest_size=_KEY_BYTES).digest()
