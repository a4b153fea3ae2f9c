"""Conditions between the parts of one candidate (spec placement, 6.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placement.domain.candidate_options import SlotOptions
from placement.domain.candidate_query import UNSUFFIXED, CandidateQuery
from placement.domain.snapshot import BoolColumn, ClassColumns, Int32Column, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MergedAmount:
    """A class that several slots ask for, whose amounts add up where they meet on a provider.

    Attributes:
        columns: Inventories of the class.
        amounts: Slot number -> amount, slots that are bound before and with this one.
    """

    columns: ClassColumns
    amounts: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotRules:
    """What a candidate must meet once a slot is bound, given those bound before.

    Attributes:
        unlike: Slots that must be on other providers.
        other_trees: Slots that must be on the same provider or in another tree.
        merged: Amounts that add up.
        subtrees: Slots, this one among them, one of whose providers must be above all the others.
        any_of: Slots and bool[N]: one of their providers must be among those marked.
    """

    unlike: tuple[int, ...] = ()
    other_trees: tuple[int, ...] = ()
    merged: tuple[MergedAmount, ...] = ()
    subtrees: tuple[tuple[int, ...], ...] = ()
    any_of: tuple[tuple[tuple[int, ...], BoolColumn], ...] = ()

    def is_empty(self) -> bool:
        """Return whether anything is allowed."""
        return not (self.unlike or self.other_trees or self.merged or self.subtrees or self.any_of)

    def allowed(self, snapshot: Snapshot, columns: Sequence[Int32Column]) -> BoolColumn:
        """Return bool[M], partial candidates that meet the rules.

        Args:
            columns: int32[M] for each bound slot, rows of the providers; the last is the new one.
        """
        last = columns[-1]
        allowed = np.ones(len(last), dtype=np.bool_)
        for number in self.unlike:
            allowed &= columns[number] != last
        for number in self.other_trees:
            allowed &= (columns[number] == last) | (
                snapshot.trees[columns[number]] != snapshot.trees[last]
            )
        for merged in self.merged:
            asked = np.zeros(len(last), dtype=np.int64)
            for number, amount in merged.amounts.items():
                asked += np.where(columns[number] == last, amount, 0)
            allowed &= asked <= merged.columns.top_at(last)
        for numbers in self.subtrees:
            lowest = np.minimum.reduce([columns[number] for number in numbers])
            highest = np.maximum.reduce([columns[number] for number in numbers])
            allowed &= snapshot.ends[lowest] > highest
        for numbers, marked in self.any_of:
            allowed &= np.logical_or.reduce([marked[columns[number]] for number in numbers])
        return allowed


def rules_of(
    snapshot: Snapshot, query: CandidateQuery, options: Sequence[SlotOptions]
) -> tuple[SlotRules, ...]:
    """Return the rules of each slot.

    Args:
        options: Of each slot, in the order in which they are bound.
    """
    suffixes = [option.slot.suffix for option in options]
    return tuple(
        SlotRules(
            unlike=_earlier_groups(suffixes, number) if query.isolate else (),
            other_trees=_earlier_uses(options, number) if query.one_provider_per_tree else (),
            merged=_merged_amounts(snapshot, options, number),
            subtrees=_subtrees(snapshot, query, options, number),
            any_of=_any_of(snapshot, query, suffixes, number),
        )
        for number in range(len(options))
    )


def _earlier_groups(suffixes: Sequence[str], number: int) -> tuple[int, ...]:
    if suffixes[number] == UNSUFFIXED:
        return ()
    return tuple(at for at in range(number) if suffixes[at] != UNSUFFIXED)


def _earlier_uses(options: Sequence[SlotOptions], number: int) -> tuple[int, ...]:
    """Return the slots bound before whose providers are used, if that of this one is."""
    if not options[number].slot.resources:
        return ()
    return tuple(at for at in range(number) if options[at].slot.resources)


def _merged_amounts(
    snapshot: Snapshot, options: Sequence[SlotOptions], number: int
) -> tuple[MergedAmount, ...]:
    merged = []
    for name in options[number].slot.resources:
        amounts = {
            at: options[at].slot.resources[name]
            for at in range(number + 1)
            if name in options[at].slot.resources
        }
        if len(amounts) > 1:
            merged.append(MergedAmount(columns=snapshot.classes[name], amounts=amounts))
    return tuple(merged)


def _subtrees(
    snapshot: Snapshot, query: CandidateQuery, options: Sequence[SlotOptions], number: int
) -> tuple[tuple[int, ...], ...]:
    """Return the terms that can be judged with this slot.

    A term can be judged before all of its slots are bound if those that are missing have only
    providers without children, which are above nothing.
    """
    found = []
    for term in query.same_subtree:
        numbers = [at for at, option in enumerate(options) if option.slot.suffix in term]
        bound = tuple(at for at in numbers if at <= number)
        missing = [options[at] for at in numbers if at > number]
        if number not in bound or len(bound) == 1:
            continue
        if not any(has_parents(snapshot, option) for option in missing):
            found.append(bound)
    return tuple(found)


def has_parents(snapshot: Snapshot, options: SlotOptions) -> bool:
    """Return whether some option of a slot has children."""
    return bool((snapshot.ends[options.rows] > options.rows + 1).any())


def _any_of(
    snapshot: Snapshot, query: CandidateQuery, suffixes: Sequence[str], number: int
) -> tuple[tuple[tuple[int, ...], BoolColumn], ...]:
    """Return the required traits of the unsuffixed group, judged with the last of its slots."""
    numbers = tuple(at for at, suffix in enumerate(suffixes) if suffix == UNSUFFIXED)
    if len(numbers) <= 1 or number != numbers[-1]:
        return ()
    required = next(group.filter.required for group in query.groups if group.suffix == UNSUFFIXED)
    return tuple((numbers, snapshot.has_any_trait(names)) for names in required)
