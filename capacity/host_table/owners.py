"""Which row a child row belongs to, remembered for children that move or go away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_COMPACT_ABOVE = 1024


def _no_keys() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnerMap:
    """Child key -> owner key, as two sorted columns and a small overlay. Never changed in place.

    The deletion log names only the key of a deleted row; this says whose list it was in.

    Attributes:
        children: int64[N], keys in ascending order.
        owners: int64[N], the owner of each.
        overlay: What changed since the columns were made; None means that there is no owner.
    """

    children: NDArray[np.int64] = field(default_factory=_no_keys)
    owners: NDArray[np.int64] = field(default_factory=_no_keys)
    overlay: Mapping[int, int | None] = field(default_factory=dict)

    @classmethod
    def from_pairs(cls, pairs: Iterable[NDArray[np.int64]]) -> OwnerMap:
        """Build a map.

        Args:
            pairs: int64[K, 2] each, child and owner, each child once.
        """
        both = np.concatenate((np.zeros((0, 2), dtype=np.int64), *pairs))
        ordered = both[np.argsort(both[:, 0], kind="stable")]
        return cls(
            children=np.ascontiguousarray(ordered[:, 0]),
            owners=np.ascontiguousarray(ordered[:, 1]),
        )

    def owner_of(self, child: int) -> int | None:
        """Return the owner of a child, None if it has none."""
        if child in self.overlay:
            return self.overlay[child]
        position = int(np.searchsorted(self.children, child))
        if position < len(self.children) and self.children[position] == child:
            return int(self.owners[position])
        return None

    def owners_elsewhere(self, pairs: NDArray[np.int64]) -> frozenset[int]:
        """Return the owners of those pairs whose child has another owner here, or none.

        Args:
            pairs: int64[K, 2], child and owner, any number.
        """
        asked, owners = pairs[:, 0], pairs[:, 1]
        agrees = np.zeros(len(pairs), dtype=np.bool_)
        if len(self.children):
            at = np.minimum(np.searchsorted(self.children, asked), len(self.children) - 1)
            agrees = (self.children[at] == asked) & (self.owners[at] == owners)
        if self.overlay:
            changed = np.fromiter(self.overlay, dtype=np.int64, count=len(self.overlay))
            agrees &= ~np.isin(asked, changed)
        return frozenset(
            owner for child, owner in pairs[~agrees].tolist() if self.owner_of(child) != owner
        )

    def updated(self, changes: Mapping[int, int | None]) -> OwnerMap:
        """Return the map after some children changed owner, appeared or went away (None)."""
        if not changes:
            return self
        overlay = {**self.overlay, **changes}
        if len(overlay) <= max(_COMPACT_ABOVE, len(self.children) // 8):
            return OwnerMap(children=self.children, owners=self.owners, overlay=overlay)
        touched = np.fromiter(overlay, dtype=np.int64, count=len(overlay))
        stays = ~np.isin(self.children, touched)
        kept = np.stack((self.children[stays], self.owners[stays]), axis=1)
        changed = [(child, owner) for child, owner in overlay.items() if owner is not None]
        return OwnerMap.from_pairs((kept, np.array(changed, dtype=np.int64).reshape(-1, 2)))
