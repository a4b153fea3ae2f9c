"""A mapping that is never changed in place and costs a change, not its size, to bring forward."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")
_Other = TypeVar("_Other")

_COMPACT_ABOVE = 1024
_COMPACT_SHARE = 64


class Overlaid(Mapping[_Key, _Value], Generic[_Key, _Value]):
    """A large mapping with a small one over it; the small one is worked in now and then."""

    __slots__ = ("_base", "_overlay", "_size")

    def __init__(
        self,
        base: Mapping[_Key, _Value],
        overlay: Mapping[_Key, _Value | None] | None = None,
        size: int | None = None,
    ) -> None:
        self._base = base
        self._overlay: Mapping[_Key, _Value | None] = overlay or {}
        self._size = len(base) if size is None else size

    def __getitem__(self, key: _Key) -> _Value:
        if key in self._overlay:
            found = self._overlay[key]
            if found is None:
                raise KeyError(key)
            return found
        return self._base[key]

    @overload
    def get(self, key: _Key, /) -> _Value | None: ...
    @overload
    def get(self, key: _Key, /, default: _Value | _Other) -> _Value | _Other: ...
    def get(self, key: _Key, /, default: Any = None) -> Any:
        """Return the value of a key; asked a thousand times for one decision."""
        if key in self._overlay:
            found = self._overlay[key]
            return default if found is None else found
        return self._base.get(key, default)

    def __contains__(self, key: object) -> bool:
        overlay = self._overlay
        if key in overlay:
            return overlay[key] is not None  # type: ignore[index]  # it is in there
        return key in self._base

    def __iter__(self) -> Iterator[_Key]:
        overlay = self._overlay
        for key in self._base:
            if key not in overlay or overlay[key] is not None:
                yield key
        for key, found in overlay.items():
            if found is not None and key not in self._base:
                yield key

    def __len__(self) -> int:
        return self._size

    def changed(self, changes: Mapping[_Key, _Value | None]) -> Overlaid[_Key, _Value]:
        """Return the mapping after some keys got another value, or None to drop them."""
        if not changes:
            return self
        size = changed_size(self, changes)
        overlay = {**self._overlay, **changes}
        if len(overlay) <= max(_COMPACT_ABOVE, len(self._base) // _COMPACT_SHARE):
            return Overlaid(self._base, overlay, size)
        merged = {**self._base, **overlay}
        return Overlaid({key: found for key, found in merged.items() if found is not None})


def changed_size(before: Mapping[_Key, object], changes: Mapping[_Key, object]) -> int:
    """Return how many keys a mapping has after some got another value, or None to drop them."""
    return len(before) + sum(
        (found is not None) - (key in before) for key, found in changes.items()
    )
