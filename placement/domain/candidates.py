"""The search for allocation candidates over a snapshot (spec placement, 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placement.domain.candidate_join import (
    Effort,
    Enumerated,
    JoinPlan,
    counted,
    enumerate_breadth_first,
    enumerate_depth_first,
    may_repeat,
)
from placement.domain.candidate_options import (
    GroupFilter,
    Slot,
    SlotOptions,
    group_filter,
    rows_with_room,
    slot_options,
)
from placement.domain.candidate_query import (
    UNSUFFIXED,
    CandidateQuery,
    RequestGroup,
    SearchOptions,
    Strategy,
)
from placement.domain.candidate_rules import has_parents, rules_of
from placement.domain.fair_shares import fair_order, too_held_trees
from placement.domain.snapshot import Int32Column, Int64Column, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Candidates as columns; row ``i`` of every column is the same candidate.

    Attributes:
        slots: Parts of the request.
        columns: int32[M] for each slot, rows of the providers that serve it.
        is_cut: Whether the search stopped because too much was tried, so that there may be others.
        is_turn: Whether others are shown in the next turn.
    """

    slots: tuple[Slot, ...]
    columns: tuple[Int32Column, ...]
    is_cut: bool = False
    is_turn: bool = False

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.columns[0]) if self.columns else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupPart:
    """A slot with the group it belongs to and the filter of its providers."""

    group: RequestGroup
    slot: Slot
    passing: GroupFilter


_DEFAULT = SearchOptions()


def find_candidates(
    snapshot: Snapshot, query: CandidateQuery, options: SearchOptions = _DEFAULT
) -> Candidates:
    """Return the candidates of a request, at most as many as it wants.

    Source: spec placement, sections 6.4 (what they are) and 6.5 (their order).
    """
    random = None if options.seed is None else np.random.default_rng(options.seed)
    limit = _least(query.limit, options.most_candidates)
    parts = query_parts(snapshot, query, options)
    slots = tuple(part.slot for part in parts)
    if len(parts) == 1 and snapshot.is_flat and not len(parts[0].passing.shared):
        rows = _flat_rows(snapshot, parts[0], options, random)
        fair = _fair_order(snapshot, query, snapshot.trees[rows], limit, options)
        chosen = rows[:limit] if fair is None else rows[fair[:limit]]
        return Candidates(slots=slots, columns=(chosen,), is_turn=fair is not None)
    nothing = Candidates(slots=slots, columns=tuple(np.zeros(0, dtype=np.int32) for _ in slots))
    found: list[SlotOptions] = []
    for part in parts:
        is_only = len(parts) == 1
        one = slot_options(
            snapshot,
            part.slot,
            part.passing,
            is_only=is_only,
            hides_fully_held=options.hides_fully_held,
            random=random,
        )
        if not len(one.rows):
            return nothing
        found.append(one)
    found.sort(key=_binding_order(snapshot, query))
    anchors = common_anchors(snapshot, query, found)
    if not len(anchors):
        return nothing
    if random is not None:
        anchors = random.permutation(anchors)
    places = limit if options.strategy is Strategy.BREADTH_FIRST or not limit else 1
    fair = _fair_order(snapshot, query, anchors, places, options)
    if fair is not None:
        anchors = anchors[fair]
    plan = JoinPlan(
        snapshot=snapshot, options=found, rules=rules_of(snapshot, query, found), anchors=anchors
    )
    effort = Effort(options.most_tried)
    enumerated = _enumerated(plan, limit, options.strategy, effort)
    ordered = _ordered(plan, enumerated, limit, options.strategy)
    return replace(ordered, is_cut=effort.is_spent, is_turn=fair is not None)


def _fair_order(
    snapshot: Snapshot,
    query: CandidateQuery,
    trees: Int32Column,
    places: int | None,
    options: SearchOptions,
) -> Int64Column | None:
    """Return the order of trees in which those are first that a limit shows in this turn.

    None where it shows all of them, or where holds leave enough everywhere.
    """
    if not places or len(trees) <= places:
        return None
    held = too_held_trees(snapshot, query)
    if held is None or not (is_held := held[trees]).any():
        return None
    return fair_order(is_held, places, options.turn)


def query_parts(
    snapshot: Snapshot, query: CandidateQuery, options: SearchOptions
) -> Sequence[GroupPart]:
    """Return the slots of a request, those of the unsuffixed group first.

    The unsuffixed group has one slot per class, except where trees have a single provider and none
    is shared, so that it can only be whole.
    """
    parts: list[GroupPart] = []
    for group in query.groups:
        if group.suffix != UNSUFFIXED:
            passing = group_filter(snapshot, group, query.root, options, is_whole=True)
            slot = Slot(suffix=group.suffix, resources=group.resources)
            parts.append(GroupPart(group=group, slot=slot, passing=passing))
            continue
        is_whole = len(group.resources) == 1 or (
            snapshot.is_flat
            and (group.filter.in_tree is not None or not _is_shared(snapshot, group))
        )
        passing = group_filter(snapshot, group, query.root, options, is_whole=is_whole)
        wanted = group.resources.items()
        shares = [dict(wanted)] if is_whole else [{name: amount} for name, amount in wanted]
        parts += [
            GroupPart(group=group, slot=Slot(suffix=UNSUFFIXED, resources=share), passing=passing)
            for share in shares
        ]
    return parts


def _is_shared(snapshot: Snapshot, group: RequestGroup) -> bool:
    """Return whether a sharing provider has any class of a group."""
    if not len(snapshot.sharing):
        return False
    return any(
        bool(snapshot.classes[name].positions(snapshot.sharing)[1].any())
        for name in group.resources
        if name in snapshot.classes
    )


def _flat_rows(
    snapshot: Snapshot,
    part: GroupPart,
    options: SearchOptions,
    random: np.random.Generator | None,
) -> Int32Column:
    """Return the providers that serve the only slot where every tree is a single provider."""
    rows = rows_with_room(snapshot, part.slot.resources, hides_fully_held=options.hides_fully_held)
    if part.passing.local is not None:
        rows = rows[part.passing.local[rows]]
    if random is not None:
        rows = random.permutation(rows)
    return rows


def _binding_order(
    snapshot: Snapshot, query: CandidateQuery
) -> Callable[[SlotOptions], tuple[bool, int]]:
    """Return the sort key of slots: possible ancestors of others first, then the fewest options."""
    in_terms = frozenset[str]().union(*query.same_subtree)

    def key(options: SlotOptions) -> tuple[bool, int]:
        is_above = options.slot.suffix in in_terms and has_parents(snapshot, options)
        return not is_above, len(options.rows)

    return key


def common_anchors(
    snapshot: Snapshot, query: CandidateQuery, options: Sequence[SlotOptions]
) -> Int32Column:
    """Return int32[A], trees with options for every slot that may have a candidate, ascending."""
    possible = np.ones(snapshot.tree_count, dtype=np.bool_)
    for one in options:
        possible &= one.counts() > 0
    if not possible.any():
        return np.zeros(0, dtype=np.int32)
    _require_traits_somewhere(snapshot, query, options, possible)
    _require_enough_providers(query, options, possible)
    _require_enough_room(snapshot, options, possible)
    return np.flatnonzero(possible).astype(np.int32)


def _require_traits_somewhere(
    snapshot: Snapshot,
    query: CandidateQuery,
    options: Sequence[SlotOptions],
    possible: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> None:
    """Rule out trees in which no option of the unsuffixed group has a required trait."""
    mine = [one for one in options if one.slot.suffix == UNSUFFIXED]
    group = next((group for group in query.groups if group.suffix == UNSUFFIXED), None)
    if group is None or len(mine) <= 1:
        return
    for names in group.filter.required:
        marked = snapshot.has_any_trait(names)
        somewhere = np.zeros(len(possible), dtype=np.bool_)
        for one in mine:
            trees = np.repeat(np.arange(len(possible)), one.counts())
            somewhere[trees[marked[one.rows]]] = True
        possible &= somewhere


def _require_enough_providers(
    query: CandidateQuery,
    options: Sequence[SlotOptions],
    possible: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> None:
    """Rule out trees with fewer options than alike groups that must be on different providers."""
    if not query.isolate:
        return
    alike: dict[tuple[object, ...], list[SlotOptions]] = {}
    filters = {group.suffix: group.filter for group in query.groups}
    for one in options:
        if one.slot.suffix != UNSUFFIXED:
            key = (frozenset(one.slot.resources.items()), filters[one.slot.suffix])
            alike.setdefault(key, []).append(one)
    for same in alike.values():
        possible &= same[0].counts() >= len(same)


def _require_enough_room(
    snapshot: Snapshot,
    options: Sequence[SlotOptions],
    possible: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> None:
    """Rule out trees whose options have less in sum than all slots ask for of a class."""
    for name in sorted({name for one in options for name in one.slot.resources}):
        asking = [one for one in options if name in one.slot.resources]
        if len(asking) == 1:
            continue
        every = np.arange(len(possible), dtype=np.int64)
        pairs = [np.repeat(every, one.counts()) * len(snapshot) + one.rows for one in asking]
        trees, rows = np.divmod(np.unique(np.concatenate(pairs)), len(snapshot))
        room = snapshot.classes[name].free_at(rows)
        sums = np.bincount(trees, weights=room, minlength=len(possible))
        possible &= sums >= sum(one.slot.resources[name] for one in asking)


def _enumerated(
    plan: JoinPlan, limit: int | None, strategy: Strategy, effort: Effort
) -> Enumerated:
    if strategy is Strategy.DEPTH_FIRST:
        return enumerate_depth_first(plan, limit, effort)
    if may_repeat(plan.options) or not all(rules.is_empty() for rules in plan.rules):
        return enumerate_breadth_first(plan, limit, effort)
    return counted(plan, limit)


def _ordered(
    plan: JoinPlan, found: Enumerated, limit: int | None, strategy: Strategy
) -> Candidates:
    """Return the candidates in the order of the strategy, cut at the limit."""
    columns = found.columns
    if len(found.ranks) and found.ranks.max() > 0:
        place = np.zeros(plan.snapshot.tree_count, dtype=np.int64)
        place[plan.anchors] = np.arange(len(plan.anchors))
        keys: tuple[Int64Column, Int64Column] = (place[found.anchors], found.ranks)
        if strategy is Strategy.DEPTH_FIRST:
            keys = (keys[1], keys[0])
        order = np.lexsort(keys)[:limit]
        columns = tuple(column[order] for column in columns)
    elif limit is not None:
        columns = tuple(column[:limit] for column in columns)
    return Candidates(slots=tuple(one.slot for one in plan.options), columns=columns)


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
