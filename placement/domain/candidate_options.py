"""Providers that can serve each part of a request, by anchor (spec placement, 6.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from placement.domain.candidate_query import (
    UNSUFFIXED,
    ProviderFilter,
    RequestGroup,
    RootFilter,
    SearchOptions,
)
from placement.domain.snapshot import BoolColumn, Int32Column, Int64Column, Snapshot

_MOST_FILTERS = 1024
_MOST_SERVED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A part of a request that is whole on one provider.

    A suffixed group is one slot, the unsuffixed group one per class. Where all of the unsuffixed
    group must be on one provider, it is one slot too.
    """

    suffix: str
    resources: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotOptions:
    """Providers that can serve a slot, grouped by the tree they would serve.

    Attributes:
        rows: int32[P], rows of providers.
        starts: int64[T + 1], where the options of each tree begin in ``rows``.
        has_sharing: Whether some option is a sharing provider of another tree.
    """

    slot: Slot
    rows: Int32Column
    starts: Int64Column
    has_sharing: bool

    def counts(self) -> Int64Column:
        """Return int64[T], options of each tree."""
        return np.diff(self.starts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupFilter:
    """Which providers pass the filters of a group, whatever their room.

    Attributes:
        local: bool[N], those that may serve their own tree; None for all.
        shared: int32[K], sharing providers that may serve other trees.
        anchors: bool[T], trees that other trees' providers may serve; None for all.
    """

    local: BoolColumn | None
    shared: Int32Column
    anchors: BoolColumn | None


def group_filter(
    snapshot: Snapshot,
    group: RequestGroup,
    root: RootFilter | None,
    options: SearchOptions,
    *,
    is_whole: bool,
) -> GroupFilter:
    """Return which providers pass the filters of a group; remembered while nothing changes.

    Args:
        group: The group.
        root: What the roots of trees must be.
        options: How the site searches.
        is_whole: Whether the group is on one provider even if it is the unsuffixed one.
    """
    is_unsuffixed = group.suffix == UNSUFFIXED
    ignores_tree = options.strict_reference and not group.resources
    key = (is_unsuffixed, ignores_tree, is_whole, group.filter, root)
    known = snapshot.caches.filters.get(key)
    if known is None:
        anchors = anchors_allowed(snapshot, root)
        if is_unsuffixed:
            known = _unsuffixed_filter(snapshot, group.filter, anchors, is_whole=is_whole)
        else:
            known = _suffixed_filter(snapshot, group.filter, anchors, ignores_tree=ignores_tree)
        if len(snapshot.caches.filters) >= _MOST_FILTERS:
            snapshot.caches.filters.clear()
        snapshot.caches.filters[key] = known
    return cast("GroupFilter", known)


def anchors_allowed(snapshot: Snapshot, root: RootFilter | None) -> BoolColumn | None:
    """Return bool[T], trees whose root has the wanted traits; None for all."""
    if root is None:
        return None
    roots = snapshot.roots()
    allowed = np.ones(len(roots), dtype=np.bool_)
    for trait in root.required:
        allowed &= snapshot.has_any_trait(frozenset((trait,)))[roots]
    if root.forbidden:
        allowed &= ~snapshot.has_any_trait(root.forbidden)[roots]
    return allowed


def _suffixed_filter(
    snapshot: Snapshot, wanted: ProviderFilter, anchors: BoolColumn | None, *, ignores_tree: bool
) -> GroupFilter:
    """Return the filter of a group whose provider must meet everything itself."""
    in_tree = wanted.in_tree
    if ignores_tree:
        in_tree = None
        if not (wanted.required or wanted.member_of):
            nothing = np.zeros(len(snapshot), dtype=np.bool_)
            return GroupFilter(local=nothing, shared=snapshot.sharing[:0], anchors=anchors)
    passing = _tree_mask(snapshot, in_tree)
    for names in wanted.required:
        passing = _both(passing, snapshot.has_any_trait(names))
    passing = _both(passing, _without_traits(snapshot, wanted))
    for uuids in wanted.member_of:
        passing = _both(passing, snapshot.in_any_aggregate(uuids))
    if wanted.forbidden_aggregates:
        passing = _both(passing, ~snapshot.in_any_aggregate(wanted.forbidden_aggregates))
    shared = snapshot.sharing if passing is None else snapshot.sharing[passing[snapshot.sharing]]
    local = passing if anchors is None else _both(passing, anchors[snapshot.trees])
    return GroupFilter(local=local, shared=shared, anchors=anchors)


def _unsuffixed_filter(
    snapshot: Snapshot, wanted: ProviderFilter, anchors: BoolColumn | None, *, is_whole: bool
) -> GroupFilter:
    """Return the filter of a group that may be spread, and for which the root's aggregates count.

    Required traits are not in it, since all used providers together must have them, except where
    one provider is all that is used.
    """
    roots = snapshot.roots()
    passing = _tree_mask(snapshot, wanted.in_tree)
    passing = _both(passing, _without_traits(snapshot, wanted))
    if is_whole:
        for names in wanted.required:
            passing = _both(passing, snapshot.has_any_trait(names))
    shared = snapshot.sharing if wanted.in_tree is None else snapshot.sharing[:0]
    if passing is not None:
        shared = shared[passing[shared]]
    local = passing
    for uuids in wanted.member_of:
        members = snapshot.in_any_aggregate(uuids)
        local = _both(local, members | members[roots][snapshot.trees])
        shared = shared[members[shared]]
    if wanted.forbidden_aggregates:
        members = snapshot.in_any_aggregate(wanted.forbidden_aggregates)
        local = _both(local, ~(members | members[roots][snapshot.trees]))
        shared = shared[~members[shared]]
        anchors = _both(anchors, ~members[roots])
    if anchors is not None:
        local = _both(local, anchors[snapshot.trees])
    return GroupFilter(local=local, shared=shared, anchors=anchors)


def _tree_mask(snapshot: Snapshot, uuid: str | None) -> BoolColumn | None:
    if uuid is None:
        return None
    passing = np.zeros(len(snapshot), dtype=np.bool_)
    row = snapshot.row_of(uuid)
    if row >= 0:
        tree = snapshot.trees[row]
        passing[snapshot.starts[tree] : snapshot.starts[tree + 1]] = True
    return passing


def _without_traits(snapshot: Snapshot, wanted: ProviderFilter) -> BoolColumn | None:
    return ~snapshot.has_any_trait(wanted.forbidden) if wanted.forbidden else None


def _both(one: BoolColumn | None, other: BoolColumn | None) -> BoolColumn | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def slot_options(
    snapshot: Snapshot,
    slot: Slot,
    passing: GroupFilter,
    *,
    is_only: bool = False,
    hides_fully_held: bool = False,
    random: np.random.Generator | None = None,
) -> SlotOptions:
    """Return the providers that pass the filters of a slot and have room, by the tree they serve.

    Within a tree its own providers come first, in their order, then sharing ones of other trees.

    Args:
        slot: What is asked for.
        passing: Who may serve it.
        is_only: Whether the request has no other slot. Then it does not matter which tree a
            sharing provider serves, and each is listed once.
        hides_fully_held: Whether those are left out all of whose free room is held.
        random: Shuffles the options of each tree.
    """
    with_room = rows_with_room(snapshot, slot.resources, hides_fully_held=hides_fully_held)
    local = with_room if passing.local is None else with_room[passing.local[with_room]]
    rows, anchors = local, snapshot.trees[local]
    shared_rows, shared_anchors = _shared_pairs(snapshot, with_room, passing)
    if is_only and len(shared_rows):
        shared_rows, first = np.unique(shared_rows, return_index=True)
        is_new = ~np.isin(shared_rows, local)
        shared_rows, shared_anchors = shared_rows[is_new], shared_anchors[first[is_new]]
    if len(shared_rows):
        rows = np.concatenate((rows, shared_rows))
        anchors = np.concatenate((anchors, shared_anchors))
    if random is not None:
        order = random.permutation(len(rows))
        rows, anchors = rows[order], anchors[order]
    if random is not None or len(shared_rows):
        order = np.argsort(anchors, kind="stable")
        rows, anchors = rows[order], anchors[order]
    starts = np.zeros(snapshot.tree_count + 1, dtype=np.int64)
    np.cumsum(np.bincount(anchors, minlength=snapshot.tree_count), out=starts[1:])
    return SlotOptions(slot=slot, rows=rows, starts=starts, has_sharing=len(shared_rows) > 0)


def rows_with_room(
    snapshot: Snapshot, resources: Mapping[str, int], *, hides_fully_held: bool = False
) -> Int32Column:
    """Return int32[K], providers with room for every amount; all of them when nothing is asked."""
    if not resources:
        return np.arange(len(snapshot), dtype=np.int32)
    if not resources.keys() <= snapshot.classes.keys():
        return np.zeros(0, dtype=np.int32)
    owners, places = _common_owners(snapshot, tuple(resources))
    passing: BoolColumn | None = None
    for (name, amount), at in zip(resources.items(), places, strict=True):
        fits = snapshot.classes[name].open_to(amount, hides_fully_held=hides_fully_held)
        if at is not None:
            fits = fits[at]
        passing = fits if passing is None else passing & fits
    return owners[passing]


def _common_owners(
    snapshot: Snapshot, names: tuple[str, ...]
) -> tuple[Int32Column, Sequence[Int64Column | None]]:
    """Return int32[K], providers that have all of some classes, ascending, and where they are.

    The second part has int64[K] for each class, the places of those providers in its columns; None
    where these are the providers of the columns, all of them.
    """
    known = snapshot.caches.commons.get(names)
    if known is None:
        columns = [snapshot.classes[name] for name in names]
        owners = columns[0].rows
        for column in columns[1:]:
            if not np.array_equal(owners, column.rows):
                owners = np.intersect1d(owners, column.rows, assume_unique=True)
        places = tuple(
            None if len(column.rows) == len(owners) else np.searchsorted(column.rows, owners)
            for column in columns
        )
        known = snapshot.caches.commons[names] = owners, places
    return known


def _shared_pairs(
    snapshot: Snapshot, with_room: Int32Column, passing: GroupFilter
) -> tuple[Int32Column, Int32Column]:
    """Return sharing providers with room and the other trees that they can serve."""
    nothing = with_room[:0], with_room[:0]
    if not len(passing.shared):
        return nothing
    sharing = np.intersect1d(passing.shared, with_room, assume_unique=True)
    if not len(sharing):
        return nothing
    # Amounts that change leave most searches with the same sharing providers.
    key = (passing, sharing.tobytes())
    known = snapshot.caches.served.get(key)
    if known is None:
        known = _served_pairs(snapshot, sharing, passing)
        if len(snapshot.caches.served) >= _MOST_SERVED:
            snapshot.caches.served.clear()
        snapshot.caches.served[key] = known
    return known


def _served_pairs(
    snapshot: Snapshot, sharing: Int32Column, passing: GroupFilter
) -> tuple[Int32Column, Int32Column]:
    served: list[Int32Column] = []
    for row in sharing.tolist():
        anchors = snapshot.anchors_of(row)
        anchors = anchors[anchors != snapshot.trees[row]]
        served.append(anchors if passing.anchors is None else anchors[passing.anchors[anchors]])
    return np.repeat(sharing, [len(anchors) for anchors in served]), np.concatenate(served)
