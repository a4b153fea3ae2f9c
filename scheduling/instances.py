"""Which hosts run a VM: the inverted instance lists of the hosts (spec scheduling, 14.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_COMPACT_ABOVE = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InstanceIndex:
    """VM uuid -> rows of the hosts that list it; two while a VM moves.

    A change goes into a small overlay, so that it costs the change and not the region.

    Attributes:
        base: Index of the last full build.
        overlay: What changed since; wins over ``base``, an empty entry hides one.
    """

    base: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    overlay: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def rows_of(self, vm_uuid: str) -> tuple[int, ...]:
        """Return the rows of the hosts that list a VM, ascending."""
        rows = self.overlay.get(vm_uuid)
        return self.base.get(vm_uuid, ()) if rows is None else rows

    @classmethod
    def build(cls, instances: Iterable[Sequence[str]]) -> InstanceIndex:
        """Build the index from the instance lists by row."""
        index: dict[str, tuple[int, ...]] = {}
        for row, vm_uuids in enumerate(instances):
            for vm_uuid in vm_uuids:
                index[vm_uuid] = (*index.get(vm_uuid, ()), row)
        return cls(base=index)

    def updated(
        self, changes: Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]]
    ) -> InstanceIndex:
        """Return the index after some hosts' lists changed.

        Args:
            changes: Row -> (list before, list after).
        """
        if not self.base and not self.overlay:
            return InstanceIndex(base=_inverted(changes))
        overlay = dict(self.overlay)
        for row, (before, after) in changes.items():
            for vm_uuid in set(before) ^ set(after):
                rows = set(overlay.get(vm_uuid, self.base.get(vm_uuid, ())))
                overlay[vm_uuid] = tuple(sorted(rows ^ {row}))
        if len(overlay) <= max(_COMPACT_ABOVE, len(self.base) // 8):
            return InstanceIndex(base=self.base, overlay=overlay)
        merged = {**self.base, **overlay}
        return InstanceIndex(base={vm_uuid: rows for vm_uuid, rows in merged.items() if rows})


def _inverted(
    changes: Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]],
) -> Mapping[str, tuple[int, ...]]:
    index: dict[str, tuple[int, ...]] = {}
    for row in sorted(changes):
        own = (row,)
        for vm_uuid in changes[row][1]:
            index[vm_uuid] = (*index[vm_uuid], row) if vm_uuid in index else own
    return index
