"""How many providers each constraint of a candidates request removes (spec placement, 12)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from placement.domain.candidate_options import GroupFilter, Slot, SlotOptions, slot_options
from placement.domain.candidate_query import UNSUFFIXED, ProviderFilter, RequestGroup, RootFilter
from placement.domain.snapshot import BoolColumn, Int32Column, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelStep:
    """One constraint, applied to what those before it left.

    Attributes:
        constraint: Kind of the constraint, such as ``room`` or ``required``.
        asked: What it asks for, as in the query.
        removed_providers: Providers that the constraint removed.
        left_providers: Providers that are left.
        left_trees: Trees that those can serve.
    """

    constraint: str
    asked: str
    removed_providers: int
    left_providers: int
    left_trees: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotFunnel:
    """The constraints of one part of a request, and what passes them all."""

    slot: Slot
    steps: tuple[FunnelStep, ...]
    options: SlotOptions


@dataclass(slots=True, eq=False)
class _Funnel:
    """Providers that are left, as owners of their tree and as sharing ones."""

    snapshot: Snapshot
    local: BoolColumn
    shared: BoolColumn
    anchors: BoolColumn
    steps: list[FunnelStep] = field(default_factory=list)

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Funnel:
        """Return a funnel with every provider in it."""
        shared = np.zeros(len(snapshot), dtype=np.bool_)
        shared[snapshot.sharing] = True
        return cls(
            snapshot,
            np.ones(len(snapshot), dtype=np.bool_),
            shared,
            np.ones(snapshot.tree_count, dtype=np.bool_),
        )

    def left(self) -> tuple[int, int]:
        """Return how many providers are left and how many trees they can serve."""
        snapshot = self.snapshot
        usable = self.local & self.anchors[snapshot.trees]
        trees = np.zeros(snapshot.tree_count, dtype=np.bool_)
        trees[snapshot.trees[usable]] = True
        for row in np.flatnonzero(self.shared).tolist():
            served = snapshot.anchors_of(row)
            served = served[self.anchors[served]]
            trees[served] = True
            usable[row] |= len(served) > 0
        return int(usable.sum()), int(trees.sum())

    def step(
        self,
        constraint: str,
        asked: str,
        passing: BoolColumn,
        *,
        shared: BoolColumn | None = None,
        anchors: BoolColumn | None = None,
    ) -> None:
        """Apply a constraint.

        Args:
            constraint: Its kind.
            asked: What it asks for.
            passing: bool[N], providers that meet it in their own tree.
            shared: bool[N], those that meet it in others; the same ones when None.
            anchors: bool[T], trees that meet it; all when None.
        """
        before, _ = self.left()
        self.local &= passing
        self.shared &= passing if shared is None else shared
        if anchors is not None:
            self.anchors &= anchors
        providers, trees = self.left()
        self.steps.append(
            FunnelStep(
                constraint=constraint,
                asked=asked,
                removed_providers=before - providers,
                left_providers=providers,
                left_trees=trees,
            )
        )

    def room(self, resources: Mapping[str, int], *, hides_fully_held: bool) -> None:
        """Keep providers that have the classes, then those with room, all held or not."""
        for name in resources:
            self.step("inventory", name, self._marked(name, None))
        for name, amount in resources.items():
            self.step("room", f"{name}:{amount}", self._marked(name, amount))
        for name in resources if hides_fully_held else ():
            columns = self.snapshot.classes.get(name)
            if columns is not None and columns.held.any():
                open_to_all = np.ones(len(self.snapshot), dtype=np.bool_)
                open_to_all[columns.rows[columns.fully_held()]] = False
                self.step("held", name, open_to_all)

    def _marked(self, name: str, amount: int | None) -> BoolColumn:
        marked = np.zeros(len(self.snapshot), dtype=np.bool_)
        columns = self.snapshot.classes.get(name)
        if columns is not None:
            marked[columns.rows if amount is None else columns.rows_that_fit(amount)] = True
        return marked

    def tree(self, uuid: str | None, *, disables_sharing: bool) -> None:
        """Keep the providers of one tree."""
        if uuid is None:
            return
        passing = np.zeros(len(self.snapshot), dtype=np.bool_)
        row = self.snapshot.row_of(uuid)
        if row >= 0:
            passing = self.snapshot.trees == self.snapshot.trees[row]
        nothing = np.zeros(len(self.snapshot), dtype=np.bool_) if disables_sharing else None
        self.step("in_tree", uuid, passing, shared=nothing)

    def traits(self, wanted: ProviderFilter, *, with_required: bool) -> None:
        """Keep providers with the required traits and without the forbidden ones."""
        if with_required:
            for names in _ordered(wanted.required):
                self.step("required", _any_text(names), self.snapshot.has_any_trait(names))
        for name in sorted(wanted.forbidden):
            has_it = self.snapshot.has_any_trait(frozenset((name,)))
            self.step("forbidden", f"!{name}", ~has_it)

    def aggregates(self, wanted: ProviderFilter, *, roots_count: bool) -> None:
        """Keep providers in the right aggregates, their own or those of the root as well."""
        snapshot = self.snapshot
        for uuids in _ordered(wanted.member_of):
            members = snapshot.in_any_aggregate(uuids)
            whole = self._with_roots(members) if roots_count else members
            self.step("member_of", _any_text(uuids), whole, shared=members)
        for uuid in sorted(wanted.forbidden_aggregates):
            members = snapshot.in_any_aggregate(frozenset((uuid,)))
            whole = self._with_roots(members) if roots_count else members
            anchors = ~members[snapshot.roots()] if roots_count else None
            self.step("forbidden_aggregate", f"!{uuid}", ~whole, shared=~members, anchors=anchors)

    def _with_roots(self, marked: BoolColumn) -> BoolColumn:
        return marked | marked[self.snapshot.roots()][self.snapshot.trees]

    def root(self, root: RootFilter | None) -> None:
        """Keep trees whose root has the wanted traits."""
        if root is None:
            return
        roots = self.snapshot.roots()
        everyone = np.ones(len(self.snapshot), dtype=np.bool_)
        for name in sorted(root.required):
            anchors = self.snapshot.has_any_trait(frozenset((name,)))[roots]
            self.step("root_required", name, everyone, anchors=anchors)
        for name in sorted(root.forbidden):
            anchors = ~self.snapshot.has_any_trait(frozenset((name,)))[roots]
            self.step("root_required", f"!{name}", everyone, anchors=anchors)

    def result(self) -> GroupFilter:
        """Return what is left as the filter of a group."""
        local = self.local & self.anchors[self.snapshot.trees]
        shared: Int32Column = np.flatnonzero(self.shared).astype(np.int32)
        return GroupFilter(local=local, shared=shared, anchors=self.anchors)


def slot_funnel(
    snapshot: Snapshot,
    group: RequestGroup,
    slot: Slot,
    root: RootFilter | None,
    *,
    hides_fully_held: bool = False,
) -> SlotFunnel:
    """Return how many providers each constraint of a slot removes.

    Args:
        group: The group of the slot.
        root: What the roots of trees must be.
        hides_fully_held: Whether providers all of whose free room is held are left out.
    """
    funnel = _Funnel.of(snapshot)
    funnel.room(slot.resources, hides_fully_held=hides_fully_held)
    is_unsuffixed = slot.suffix == UNSUFFIXED
    funnel.tree(group.filter.in_tree, disables_sharing=is_unsuffixed)
    is_whole = len(slot.resources) == len(group.resources)
    funnel.traits(group.filter, with_required=is_whole or not is_unsuffixed)
    funnel.aggregates(group.filter, roots_count=is_unsuffixed)
    funnel.root(root)
    return SlotFunnel(
        slot=slot,
        steps=tuple(funnel.steps),
        options=slot_options(snapshot, slot, funnel.result(), hides_fully_held=hides_fully_held),
    )


def _ordered(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    return sorted(sets, key=sorted)


def _any_text(names: frozenset[str]) -> str:
    """Return a set of which one is enough as a query writes it."""
    listed = ",".join(sorted(names))
    return listed if len(names) == 1 else f"in:{listed}"
