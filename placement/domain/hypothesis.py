"""Providers as they would be if something were allocated or gone (spec placement, 12)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from placement.domain.errors import BadRequest
from placement.domain.snapshot import NO_ROW, Snapshot
from placement.domain.snapshot_build import Names, build_snapshot
from placement.domain.snapshot_update import replace_trees, with_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposed:
    """What is supposed to be so.

    Attributes:
        allocations: Uuid of a provider -> resource class -> amount that is allocated besides; a
            negative one is given back.
        removed: Uuids of providers whose whole trees are gone.
    """

    allocations: Mapping[str, Mapping[str, int]]
    removed: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverCapacity:
    """An inventory of which more would be used than there is."""

    provider: str
    resource_class: str
    capacity: int
    used: int


def supposed_snapshot(
    snapshot: Snapshot, supposed: Supposed
) -> tuple[Snapshot, tuple[OverCapacity, ...]]:
    """Return the providers as they would be, and what would be over capacity by it.

    Raises:
        BadRequest: a provider or an inventory is unknown.
    """
    over: list[OverCapacity] = []
    provider_ids: list[int] = []
    classes: list[str] = []
    used: list[int] = []
    for uuid, amounts in supposed.allocations.items():
        row = _row_of(snapshot, uuid)
        for name, amount in amounts.items():
            capacity, before = _figures(snapshot, row, uuid, name)
            after = max(0, before + amount)
            provider_ids.append(int(snapshot.ids[row]))
            classes.append(name)
            used.append(after)
            if after > max(capacity, before):
                over.append(
                    OverCapacity(provider=uuid, resource_class=name, capacity=capacity, used=after)
                )
    if used:
        snapshot = with_usage(snapshot, provider_ids, classes, used) or snapshot
    roots = {
        int(snapshot.root_ids[snapshot.trees[_row_of(snapshot, one)]]) for one in supposed.removed
    }
    if roots:
        nothing = build_snapshot(
            [],
            [],
            Names(traits=snapshot.known_traits, classes=snapshot.known_classes),
            trait_bit=snapshot.trait_bit,
            aggregate_bit=snapshot.aggregate_bit,
        )
        snapshot = replace_trees(snapshot, sorted(roots), nothing)
    return snapshot, tuple(over)


def _row_of(snapshot: Snapshot, uuid: str) -> int:
    row = snapshot.row_of(uuid)
    if row == NO_ROW:
        raise BadRequest(f"No resource provider with uuid {uuid} found.")
    return row


def _figures(snapshot: Snapshot, row: int, uuid: str, name: str) -> tuple[int, int]:
    """Return the capacity of an inventory and how much of it is used."""
    columns = snapshot.classes.get(name)
    if columns is not None:
        at, has_class = columns.positions(np.array([row], dtype=np.int32))
        if has_class[0]:
            return int(columns.capacity[at[0]]), int(columns.used[at[0]])
    raise BadRequest(f"No inventory of class {name} for {uuid}.")
