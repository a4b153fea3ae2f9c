"""Allocation candidates worked out literally as the specification words them: the slow oracle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from placement.domain.candidate_query import CandidateQuery, RequestGroup
from placement.domain.provider_rows import SHARING_TRAIT, InventoryRow, ProviderRow

Amounts = frozenset[tuple[str, str, int]]
Mappings = frozenset[tuple[str, frozenset[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How one group is served under an anchor."""

    anchor: int
    amounts: tuple[tuple[int, str, int], ...]
    used: frozenset[int]


class Forest:
    """Providers with everything that the algorithm asks of them."""

    def __init__(
        self,
        providers: Sequence[ProviderRow],
        inventories: Sequence[InventoryRow],
        *,
        hides_fully_held: bool = False,
    ) -> None:
        self.hides_fully_held = hides_fully_held
        self.providers = {row.provider_id: row for row in providers}
        self.inventories = {(row.provider_id, row.resource_class): row for row in inventories}
        self.by_uuid = {row.uuid: row for row in providers}
        self.roots = [row.provider_id for row in providers if row.parent_id is None]

    def root(self, key: int) -> int:
        return self.providers[key].root_id

    def traits(self, key: int) -> frozenset[str]:
        return frozenset(self.providers[key].traits)

    def aggregates(self, key: int) -> frozenset[str]:
        return frozenset(self.providers[key].aggregates)

    def is_sharing(self, key: int) -> bool:
        return SHARING_TRAIT in self.providers[key].traits

    def anchors(self, key: int) -> set[int]:
        mine = self.aggregates(key)
        return {self.root(other) for other in self.providers if mine & self.aggregates(other)}

    def has_room(self, key: int, name: str, amount: int) -> bool:
        row = self.inventories.get((key, name))
        if row is None:
            return False
        capacity = (row.total - row.reserved) * row.allocation_ratio
        fits_units = row.min_unit <= amount <= row.max_unit and amount % row.step_size == 0
        is_hidden = self.hides_fully_held and 0 < row.held >= int(capacity) - row.used
        return row.used + amount <= capacity and fits_units and not is_hidden

    def fits_merged(self, key: int, name: str, amount: int) -> bool:
        row = self.inventories[key, name]
        capacity = int((row.total - row.reserved) * row.allocation_ratio)
        return row.used + amount <= capacity and amount <= row.max_unit

    def is_ancestor_or_self(self, above: int, below: int | None) -> bool:
        while below is not None:
            if above == below:
                return True
            below = self.providers[below].parent_id
        return False

    def tree_of(self, uuid: str) -> int | None:
        row = self.by_uuid.get(uuid)
        return None if row is None else row.root_id


def brute_force(
    forest: Forest, query: CandidateQuery, *, strict_reference: bool = False
) -> set[tuple[Amounts, Mappings]]:
    """Return amounts (uuid, class, amount) and mappings of every candidate."""
    anchors_ok = set(forest.roots)
    if query.root is not None:
        anchors_ok = {
            root
            for root in anchors_ok
            if query.root.required <= forest.traits(root)
            and not query.root.forbidden & forest.traits(root)
        }
    choices = {
        group.suffix: _choices(forest, group, anchors_ok, strict_reference=strict_reference)
        for group in query.groups
    }
    results = set()
    for anchor in sorted(anchors_ok):
        served = [
            [choice for choice in choices[group.suffix] if choice.anchor == anchor]
            for group in query.groups
        ]
        for combination in product(*served):
            result = _merged(forest, query, combination)
            if result is not None:
                results.add(result)
    return results


def _choices(
    forest: Forest, group: RequestGroup, anchors_ok: set[int], *, strict_reference: bool
) -> list[Choice]:
    if group.suffix == "":
        return list(_spread(forest, group, anchors_ok))
    return list(_on_one(forest, group, anchors_ok, strict_reference=strict_reference))


def _spread(forest: Forest, group: RequestGroup, anchors_ok: set[int]) -> Iterator[Choice]:
    wanted = group.filter
    possible: dict[str, set[tuple[int, int]]] = {}
    for name, amount in group.resources.items():
        pairs = {
            (key, forest.root(key))
            for key in forest.providers
            if forest.has_room(key, name, amount)
            and (wanted.in_tree is None or forest.root(key) == forest.tree_of(wanted.in_tree))
        }
        if wanted.in_tree is None:
            for key in forest.providers:
                if (
                    forest.is_sharing(key)
                    and forest.has_room(key, name, amount)
                    and all(uuids & forest.aggregates(key) for uuids in wanted.member_of)
                ):
                    pairs |= {(key, anchor) for anchor in forest.anchors(key)}
        pairs = {(key, anchor) for key, anchor in pairs if anchor in anchors_ok}
        for uuids in wanted.member_of:
            pairs = {
                (key, anchor)
                for key, anchor in pairs
                if uuids & (forest.aggregates(key) | forest.aggregates(anchor))
            }
        possible[name] = {
            (key, anchor)
            for key, anchor in pairs
            if not wanted.forbidden_aggregates
            & (forest.aggregates(key) | forest.aggregates(anchor))
        }
    for anchor in sorted(forest.roots):
        options = [
            [key for key, at in sorted(possible[name]) if at == anchor] for name in group.resources
        ]
        for chosen in product(*options):
            traits = frozenset[str]().union(*(forest.traits(key) for key in chosen))
            if all(names & traits for names in wanted.required) and not wanted.forbidden & traits:
                amounts = tuple(
                    (key, name, amount)
                    for key, (name, amount) in zip(chosen, group.resources.items(), strict=True)
                )
                yield Choice(anchor=anchor, amounts=amounts, used=frozenset(chosen))


def _on_one(
    forest: Forest, group: RequestGroup, anchors_ok: set[int], *, strict_reference: bool
) -> Iterator[Choice]:
    wanted = group.filter
    in_tree = wanted.in_tree
    if strict_reference and not group.resources:
        in_tree = None
        if not wanted.required and not wanted.member_of:
            return
    for key in sorted(forest.providers):
        traits, aggregates = forest.traits(key), forest.aggregates(key)
        if not (
            all(forest.has_room(key, name, amount) for name, amount in group.resources.items())
            and all(names & traits for names in wanted.required)
            and not wanted.forbidden & traits
            and all(uuids & aggregates for uuids in wanted.member_of)
            and not wanted.forbidden_aggregates & aggregates
            and (in_tree is None or forest.root(key) == forest.tree_of(in_tree))
        ):
            continue
        anchors = {forest.root(key)}
        if forest.is_sharing(key):
            anchors |= forest.anchors(key)
        for anchor in sorted(anchors & anchors_ok):
            amounts = tuple((key, name, amount) for name, amount in group.resources.items())
            yield Choice(anchor=anchor, amounts=amounts, used=frozenset({key}))


def _merged(
    forest: Forest, query: CandidateQuery, combination: Sequence[Choice]
) -> tuple[Amounts, Mappings] | None:
    used = dict(zip((group.suffix for group in query.groups), combination, strict=True))
    suffixed = [key for suffix, choice in used.items() if suffix for key in choice.used]
    if query.isolate and len(set(suffixed)) < len(suffixed):
        return None
    for term in query.same_subtree:
        members = {key for suffix in term for key in used[suffix].used}
        if not any(
            all(forest.is_ancestor_or_self(above, below) for below in members) for above in members
        ):
            return None
    sums: Mapping[tuple[int, str], int] = defaultdict(int)
    for choice in combination:
        for key, name, amount in choice.amounts:
            sums[key, name] += amount  # type: ignore[index]  # a defaultdict
    if not all(forest.fits_merged(key, name, amount) for (key, name), amount in sums.items()):
        return None
    if query.one_provider_per_tree:
        providers = {key for key, _ in sums}
        if len({forest.root(key) for key in providers}) < len(providers):
            return None
    uuid_of = {key: row.uuid for key, row in forest.providers.items()}
    return (
        frozenset((uuid_of[key], name, amount) for (key, name), amount in sums.items()),
        frozenset(
            (suffix, frozenset(uuid_of[key] for key in choice.used))
            for suffix, choice in used.items()
        ),
    )


def summaries(
    forest: Forest, results: set[tuple[Amounts, Mappings]]
) -> dict[str, dict[str, object]]:
    """Return the summaries of all providers of used trees, as versions from 1.29 show them."""
    roots = {forest.by_uuid[uuid].root_id for amounts, _ in results for uuid, _, _ in amounts}
    shown: dict[str, dict[str, object]] = {}
    for key, row in forest.providers.items():
        if row.root_id not in roots:
            continue
        parent = row.parent_id
        shown[row.uuid] = {
            "resources": {
                name: {
                    "capacity": int((one.total - one.reserved) * one.allocation_ratio),
                    "used": one.used,
                }
                for (owner, name), one in forest.inventories.items()
                if owner == key
            },
            "traits": sorted(row.traits),
            "parent_provider_uuid": None if parent is None else forest.providers[parent].uuid,
            "root_provider_uuid": forest.providers[row.root_id].uuid,
        }
    return shown
