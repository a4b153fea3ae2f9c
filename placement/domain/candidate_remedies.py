"""The least change of a request that would give it a candidate (spec placement, 12).

Every change is tried with the search itself, so a remedy is never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from placement.domain.candidate_query import (
    UNSUFFIXED,
    CandidateQuery,
    RequestGroup,
    SearchOptions,
)
from placement.domain.candidates import find_candidates
from placement.domain.snapshot import Snapshot

MOST_SEARCHES = 400
MOST_REMEDIES = 20
ENOUGH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Changes of a request that together give it candidates.

    Attributes:
        changes: In words, one or two.
        candidates: How many it then has, at most ``ENOUGH``.
    """

    changes: tuple[str, ...]
    candidates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relaxation:
    """A change that can only add candidates.

    Attributes:
        text: In words.
        apply: Makes it.
        amount: Group and class whose amount it lowers as far as it goes; None if it is another.
        group: Suffix of the group that it changes; None if it changes none.
        is_removal: Whether it leaves out the group.
    """

    text: str
    apply: Callable[[CandidateQuery], CandidateQuery]
    amount: tuple[str, str] | None = None
    group: str | None = None
    is_removal: bool = False


@dataclass(slots=True, eq=False)
class _Trials:
    """Searches, of which there are so many at most."""

    snapshot: Snapshot
    options: SearchOptions
    left: int = MOST_SEARCHES

    def count(self, query: CandidateQuery, enough: int = 1) -> int:
        """Return how many candidates a request has, up to some number."""
        if self.left <= 0:
            return 0
        self.left -= 1
        return len(find_candidates(self.snapshot, replace(query, limit=enough), self.options))


def find_remedies(
    snapshot: Snapshot, query: CandidateQuery, options: SearchOptions
) -> tuple[Remedy, ...]:
    """Return the single changes that give a request candidates, or else pairs of changes.

    Args:
        query: A request; what is found for one that has candidates is not wrong but useless.
        options: How the site searches.
    """
    if options.hides_fully_held:
        shown = _Trials(snapshot, replace(options, hides_fully_held=False)).count(query, ENOUGH)
        if shown:
            return (Remedy(changes=("show hosts all of whose room is held",), candidates=shown),)
    trials = _Trials(snapshot, options)
    relaxations = list(_relaxations(snapshot, query))
    found: list[Remedy] = []
    for size in (1, 2):
        for chosen in combinations(relaxations, size):
            if any(one.is_removal for one in chosen) and len({one.group for one in chosen}) < size:
                continue  # no other change of a group that is left out
            remedy = _tried(trials, query, chosen)
            if remedy is not None:
                found.append(remedy)
            if trials.left <= 0 or len(found) >= MOST_REMEDIES:
                break
        if found:
            break
    return tuple(found)


def _tried(trials: _Trials, query: CandidateQuery, chosen: Sequence[_Relaxation]) -> Remedy | None:
    relaxed = query
    for one in chosen:
        relaxed = one.apply(relaxed)
    if not any(group.resources for group in relaxed.groups) or not trials.count(relaxed):
        return None
    texts = []
    for one in chosen:
        if one.amount is None:
            texts.append(one.text)
            continue
        relaxed, text = _raised(trials, query, relaxed, one.amount)
        texts.append(text)
    return Remedy(changes=tuple(texts), candidates=trials.count(relaxed, ENOUGH))


def _raised(
    trials: _Trials, asked: CandidateQuery, relaxed: CandidateQuery, place: tuple[str, str]
) -> tuple[CandidateQuery, str]:
    """Return the request with the largest amount of a class that still gives a candidate."""
    suffix, name = place
    wanted = _group(asked, suffix).resources[name]
    amounts = [amount for amount in _amounts(trials.snapshot, name) if amount < wanted]
    lowest, highest = 0, len(amounts) - 1
    while lowest < highest:
        middle = (lowest + highest + 1) // 2
        if trials.count(_with_amount(relaxed, suffix, name, amounts[middle])):
            lowest = middle
        else:
            highest = middle - 1
    best = amounts[lowest]
    text = f"ask for {name}:{best} instead of {name}:{wanted} in {_named(suffix)}"
    return _with_amount(relaxed, suffix, name, best), text


def _relaxations(snapshot: Snapshot, query: CandidateQuery) -> Iterator[_Relaxation]:
    """Yield what can be relaxed, from the shape of the request to its amounts."""
    if query.isolate:
        yield _Relaxation(
            text="group_policy=none instead of isolate",
            apply=lambda one: replace(one, isolate=False),
        )
    for term in query.same_subtree:
        yield _Relaxation(
            text=f"leave out same_subtree={','.join(sorted(term))}",
            apply=lambda one, term=term: _without_term(one, term),  # type: ignore[misc]
        )
    yield from _root_relaxations(query)
    for group in query.groups:
        yield from _filter_relaxations(group)
    for group in query.groups:
        for name, amount in group.resources.items():
            lower = [one for one in _amounts(snapshot, name) if one < amount]
            if lower:
                yield _Relaxation(
                    text="",
                    apply=lambda one, at=group.suffix, name=name, least=lower[0]: _with_amount(  # type: ignore[misc]
                        one, at, name, least
                    ),
                    amount=(group.suffix, name),
                    group=group.suffix,
                )
    for group in query.groups if len(query.groups) > 1 else ():
        yield _Relaxation(
            text=f"leave out {_named(group.suffix)}",
            apply=lambda one, suffix=group.suffix: _without_group(one, suffix),  # type: ignore[misc]
            group=group.suffix,
            is_removal=True,
        )


def _root_relaxations(query: CandidateQuery) -> Iterator[_Relaxation]:
    if query.root is None:
        return
    for field, mark in (("required", ""), ("forbidden", "!")):
        for trait in sorted(getattr(query.root, field)):

            def apply(
                one: CandidateQuery, field: str = field, trait: str = trait
            ) -> CandidateQuery:
                if one.root is None:
                    return one
                kept = getattr(one.root, field) - {trait}
                return replace(one, root=replace(one.root, **{field: kept}))

            yield _Relaxation(text=f"leave {mark}{trait} out of root_required", apply=apply)


def _filter_relaxations(group: RequestGroup) -> Iterator[_Relaxation]:
    """Yield the conditions of a group that can be left out."""
    wanted, suffix = group.filter, group.suffix
    listed = [("required", "required", one) for one in sorted(wanted.required, key=sorted)]
    listed += [("member_of", "member_of", one) for one in sorted(wanted.member_of, key=sorted)]
    for field, key, names in listed:
        text = ",".join(sorted(names))
        shown = text if len(names) == 1 else f"in:{text}"
        yield _filter_change(suffix, field, names, f"leave out {key}{suffix}={shown}")
    for field, key in (("forbidden", "required"), ("forbidden_aggregates", "member_of")):
        for name in sorted(getattr(wanted, field)):
            yield _filter_change(suffix, field, name, f"leave out {key}{suffix}=!{name}")
    if wanted.in_tree is not None:
        yield _Relaxation(
            text=f"leave out in_tree{suffix}={wanted.in_tree}",
            apply=lambda one: _with_group(
                one,
                replace(
                    _group(one, suffix), filter=replace(_group(one, suffix).filter, in_tree=None)
                ),
            ),
            group=suffix,
        )


def _filter_change(suffix: str, field: str, member: str | frozenset[str], text: str) -> _Relaxation:
    def apply(one: CandidateQuery) -> CandidateQuery:
        group = _group(one, suffix)
        kept = getattr(group.filter, field) - {member}
        return _with_group(one, replace(group, filter=replace(group.filter, **{field: kept})))

    return _Relaxation(text=text, apply=apply, group=suffix)


def _amounts(snapshot: Snapshot, name: str) -> list[int]:
    """Return the amounts of a class that some provider can give at most, ascending."""
    columns = snapshot.classes.get(name)
    if columns is None:
        return []
    most = columns.top // columns.step_size * columns.step_size
    amounts: list[int] = np.unique(most[(most >= columns.min_unit) & (most > 0)]).tolist()
    return amounts


def _named(suffix: str) -> str:
    return "the unsuffixed group" if suffix == UNSUFFIXED else f"group {suffix}"


def _group(query: CandidateQuery, suffix: str) -> RequestGroup:
    return next(group for group in query.groups if group.suffix == suffix)


def _with_group(query: CandidateQuery, changed: RequestGroup) -> CandidateQuery:
    groups = tuple(changed if one.suffix == changed.suffix else one for one in query.groups)
    return replace(query, groups=groups)


def _with_amount(query: CandidateQuery, suffix: str, name: str, amount: int) -> CandidateQuery:
    group = _group(query, suffix)
    return _with_group(query, replace(group, resources={**group.resources, name: amount}))


def _without_group(query: CandidateQuery, suffix: str) -> CandidateQuery:
    terms = (term - {suffix} for term in query.same_subtree)
    return replace(
        query,
        groups=tuple(one for one in query.groups if one.suffix != suffix),
        same_subtree=tuple(term for term in terms if term),
    )


def _without_term(query: CandidateQuery, term: frozenset[str]) -> CandidateQuery:
    return replace(query, same_subtree=tuple(one for one in query.same_subtree if one != term))
