"""Enumeration of candidates: one provider per slot, all serving one tree (placement, 6.4, 6.8).

Partial candidates are columns, and each step binds one more slot for many of them at once. What is
left to do waits on a stack, so that memory is bounded and enumeration stops where enough is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from placement.domain.candidate_options import SlotOptions
from placement.domain.candidate_rules import SlotRules
from placement.domain.snapshot import BoolColumn, Int32Column, Int64Column, Snapshot

_BATCH = 1 << 14
_LEAST_BATCH = 256
_NARROW = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinPlan:
    """What to enumerate.

    Attributes:
        options: Of each slot, in the order in which they are bound; at least one slot.
        rules: Of each slot.
        anchors: int32[A], trees with options for every slot, in the order in which they count.
    """

    snapshot: Snapshot
    options: Sequence[SlotOptions]
    rules: Sequence[SlotRules]
    anchors: Int32Column


@dataclass(slots=True)
class Effort:
    """How much of a search may still be tried.

    Attributes:
        left: Partial candidates; None for any number.
    """

    left: int | None = None

    @property
    def is_spent(self) -> bool:
        """Whether the search has to stop."""
        return self.left is not None and self.left <= 0

    def spend(self, tried: int) -> None:
        """Count partial candidates."""
        if self.left is not None:
            self.left -= tried


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Enumerated:
    """Candidates that were found.

    Attributes:
        columns: int32[M] for each slot, rows of the providers.
        anchors: int32[M], trees.
        ranks: int64[M], how many candidates of the same tree were found before.
        is_complete: Whether there are no others.
    """

    columns: tuple[Int32Column, ...]
    anchors: Int32Column
    ranks: Int64Column
    is_complete: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """Partial candidates whose next slot is to be bound, from some option of it on."""

    columns: tuple[Int32Column, ...]
    anchors: Int32Column
    skip: int = 0

    def part(self, chosen: slice | BoolColumn) -> _Pending:
        """Return some of the partial candidates, by a slice or mask."""
        return _Pending(
            tuple(column[chosen] for column in self.columns), self.anchors[chosen], self.skip
        )


@dataclass(slots=True, eq=False)
class _Enumeration:
    """One run over the anchors of a plan."""

    plan: JoinPlan
    cap: int | None
    enough: int | None
    effort: Effort
    found: Int64Column
    batch: int
    may_repeat: bool
    seen: set[bytes] = field(default_factory=set)
    results: list[tuple[tuple[Int32Column, ...], Int32Column, Int64Column]] = field(
        default_factory=list
    )
    total: int = 0

    def run(self) -> None:
        """Find candidates until there are enough or no more, or too much was tried."""
        stack = [_Pending((), self.plan.anchors)]
        while stack and (self.enough is None or self.total < self.enough):
            if self.effort.is_spent:
                return
            pending = stack.pop()
            if self.cap is not None:
                is_open = self.found[pending.anchors] < self.cap
                if not is_open.all():
                    pending = pending.part(is_open)
            if len(pending.anchors):
                self._step(self._front(pending, stack), stack)

    def _front(self, pending: _Pending, stack: list[_Pending]) -> _Pending:
        """Return the first few partial candidates of each tree; the others stay on the stack.

        A tree of which few candidates are wanted then costs few partial ones, not all.
        """
        if self.cap is None or len(pending.anchors) <= _LEAST_BATCH:
            return pending
        firsts, sizes = _runs(pending.anchors)
        ranks = np.arange(len(pending.anchors)) - np.repeat(firsts, sizes)
        is_front = ranks < 2 * self.cap
        if is_front.all():
            return pending
        stack.append(pending.part(~is_front))
        return pending.part(is_front)

    def _step(self, pending: _Pending, stack: list[_Pending]) -> None:
        """Bind the next slot of the first partial candidates; the others stay on the stack."""
        number = len(pending.columns)
        options = self.plan.options[number]
        counts = options.starts[pending.anchors + 1] - options.starts[pending.anchors]
        counts -= pending.skip
        width = self.cap if self.cap is not None and self.cap <= _NARROW else None
        taken = counts if width is None else np.minimum(counts, width)
        reach = int(np.searchsorted(np.cumsum(taken), self.batch, side="right"))
        reach = max(1, reach)
        if reach < len(taken):
            stack.append(pending.part(slice(reach, None)))
            pending = pending.part(slice(reach))
            counts, taken = counts[:reach], taken[:reach]
        has_more = counts > taken
        if width is not None and has_more.any():
            rest = pending.part(has_more)
            stack.append(_Pending(rest.columns, rest.anchors, pending.skip + width))
        following = _expanded(pending, options, taken)
        self.effort.spend(len(following.anchors))
        rules = self.plan.rules[number]
        if not rules.is_empty():
            allowed = rules.allowed(self.plan.snapshot, following.columns)
            if not allowed.all():
                following = following.part(allowed)
        if number + 1 < len(self.plan.options):
            stack.append(following)
        elif len(following.anchors):
            self._emit(following)

    def _emit(self, whole: _Pending) -> None:
        """Keep candidates, unless they are known from another tree or their tree has enough."""
        if self.may_repeat:
            whole = self._without_repeats(whole)
        anchors = whole.anchors
        if not len(anchors):
            return
        firsts, sizes = _runs(anchors)
        ranks = np.arange(len(anchors)) - np.repeat(firsts, sizes) + self.found[anchors]
        self.found[anchors[firsts]] += sizes
        if self.cap is not None:
            kept = ranks < self.cap
            whole, ranks = whole.part(kept), ranks[kept]
            np.minimum(self.found, self.cap, out=self.found)
        self.results.append((whole.columns, whole.anchors, ranks))
        self.total += len(ranks)

    def _without_repeats(self, whole: _Pending) -> _Pending:
        """Return the candidates without those that were found under another tree.

        Only those can be which use no provider but sharing ones.
        """
        is_sharing = np.zeros(len(self.plan.snapshot), dtype=np.bool_)
        is_sharing[self.plan.snapshot.sharing] = True
        suspect = np.logical_and.reduce([is_sharing[column] for column in whole.columns])
        at = np.flatnonzero(suspect)
        if not len(at):
            return whole
        content = np.stack([column[at] for column in whole.columns], axis=1)
        kept = ~suspect
        for position, row in zip(at.tolist(), content, strict=True):
            key = row.tobytes()
            if key not in self.seen:
                self.seen.add(key)
                kept[position] = True
        return whole.part(kept)


def _runs(anchors: Int32Column) -> tuple[Int64Column, Int64Column]:
    """Return where runs of one tree begin and how long they are; a tree has one run at most."""
    is_first = np.ones(len(anchors), dtype=np.bool_)
    is_first[1:] = anchors[1:] != anchors[:-1]
    firsts = np.flatnonzero(is_first)
    return firsts, np.diff(np.append(firsts, len(anchors)))


def _expanded(pending: _Pending, options: SlotOptions, taken: Int64Column) -> _Pending:
    """Return the partial candidates with every taken option of the next slot."""
    source = np.repeat(np.arange(len(taken)), taken)
    first = options.starts[pending.anchors] + pending.skip
    before = np.cumsum(taken) - taken
    picked = np.arange(len(source)) + (first - before)[source]
    columns = (*(column[source] for column in pending.columns), options.rows[picked])
    return _Pending(columns, pending.anchors[source])


def enumerate_depth_first(plan: JoinPlan, limit: int | None, effort: Effort) -> Enumerated:
    """Return all candidates, or those found first until there are enough or effort is spent."""
    return _run(plan, cap=None, enough=limit, effort=effort)


def enumerate_breadth_first(plan: JoinPlan, limit: int | None, effort: Effort) -> Enumerated:
    """Return at least as many candidates as wanted, evenly from the trees, or all there are.

    When effort is spent before, those that were found until then.
    """
    if limit is None or not len(plan.anchors):
        return _run(plan, cap=None, enough=None, effort=effort)
    cap = max(1, -(-limit // len(plan.anchors)))
    best: Enumerated | None = None
    while True:
        found = _run(plan, cap=cap, enough=limit if cap == 1 else None, effort=effort)
        if best is None or len(found.anchors) >= len(best.anchors):
            best = found
        if found.is_complete or len(found.anchors) >= limit or effort.is_spent:
            return best
        cap = min(limit, cap * 4) if cap < limit else limit * 4


def may_repeat(options: Sequence[SlotOptions]) -> bool:
    """Return whether the same providers can be a candidate of several trees.

    So it is where sharing providers can be all of it. The only slot of a request lists each once.
    """
    return len(options) > 1 and all(one.has_sharing for one in options)


def _run(plan: JoinPlan, *, cap: int | None, enough: int | None, effort: Effort) -> Enumerated:
    batch = _BATCH if enough is None else min(_BATCH, max(_LEAST_BATCH, 2 * enough))
    enumeration = _Enumeration(
        plan=plan,
        cap=cap,
        enough=enough,
        effort=effort,
        found=np.zeros(plan.snapshot.tree_count, dtype=np.int64),
        batch=batch,
        may_repeat=may_repeat(plan.options),
    )
    enumeration.run()
    results = enumeration.results
    is_complete = cap is None or not bool((enumeration.found >= cap).any())
    if not results:
        nothing = plan.anchors[:0]
        return Enumerated(
            columns=(nothing,) * len(plan.options),
            anchors=nothing,
            ranks=np.zeros(0, dtype=np.int64),
            is_complete=is_complete,
        )
    if len(results) == 1:
        columns, anchors, ranks = results[0]
    else:
        columns = tuple(
            np.concatenate(parts) for parts in zip(*(one[0] for one in results), strict=True)
        )
        anchors = np.concatenate([one[1] for one in results])
        ranks = np.concatenate([one[2] for one in results])
    return Enumerated(columns=columns, anchors=anchors, ranks=ranks, is_complete=is_complete)


def counted(plan: JoinPlan, limit: int | None) -> Enumerated:
    """Return candidates where no rules and no repeats are possible: without trying any.

    The candidate of rank ``r`` in a tree is the number ``r`` written in the mixed radix of its
    options, so only those that are wanted are made. Breadth first.
    """
    counts = [option.counts()[plan.anchors] for option in plan.options]
    products = np.multiply.reduce([count.astype(np.float64) for count in counts])
    quotas = _even_quotas(products, limit)
    anchors = np.repeat(plan.anchors, quotas)
    ranks = np.arange(len(anchors)) - np.repeat(np.cumsum(quotas) - quotas, quotas)
    columns: list[Int32Column] = []
    rest = ranks
    for option, count in zip(reversed(plan.options), reversed(counts), strict=True):
        digits = rest
        if count.max(initial=0) > 1:
            rest, digits = np.divmod(rest, np.repeat(count, quotas))
        else:
            digits = np.zeros(len(ranks), dtype=np.int64)
        columns.append(option.rows[option.starts[anchors] + digits])
    return Enumerated(
        columns=tuple(reversed(columns)), anchors=anchors, ranks=ranks, is_complete=limit is None
    )


def _even_quotas(
    products: np.ndarray[tuple[int], np.dtype[np.float64]], limit: int | None
) -> Int64Column:
    """Return how many candidates of each tree to make so that there are enough, evenly."""
    if limit is None or products.sum() <= limit:
        return products.astype(np.int64)
    if len(products) >= limit:
        quotas = np.zeros(len(products), dtype=np.int64)
        quotas[:limit] = 1
        return quotas
    rounds = 1
    while rounds < limit and np.minimum(products, rounds).sum() < limit:
        rounds *= 2
    return np.minimum(products, min(rounds, limit)).astype(np.int64)
