"""Random small forests of providers and random requests."""

from __future__ import annotations

from random import Random
from uuid import UUID

from placement.domain.candidate_query import (
    CandidateQuery,
    ProviderFilter,
    RequestGroup,
    RootFilter,
)
from placement.domain.provider_rows import SHARING_TRAIT, InventoryRow, ProviderRow

CLASSES = ("CUSTOM_A", "CUSTOM_B", "CUSTOM_C")
TRAITS = ("CUSTOM_T1", "CUSTOM_T2", "CUSTOM_T3", "CUSTOM_NOBODY")
AGGREGATES = tuple(str(UUID(int=number + 1)) for number in range(3))


def uuid_of(key: int) -> str:
    """Return the uuid of the provider with a key."""
    return str(UUID(int=1000 + key))


def random_provider(random: Random, key: int, parent: ProviderRow | None) -> ProviderRow:
    """Return a provider with a few traits and aggregates; one in five shares."""
    traits = {trait for trait in TRAITS[:3] if random.random() < 0.35}
    if random.random() < 0.2:
        traits.add(SHARING_TRAIT)
    return ProviderRow(
        key,
        uuid_of(key),
        None if parent is None else parent.provider_id,
        key if parent is None else parent.root_id,
        tuple(sorted(traits)),
        tuple(uuid for uuid in AGGREGATES if random.random() < 0.35),
    )


def random_inventories(random: Random, key: int) -> list[InventoryRow]:
    """Return inventories of some classes, with all the limits that there are."""
    rows = []
    for name in CLASSES:
        if random.random() < 0.5:
            continue
        total = random.randint(1, 8)
        rows.append(
            InventoryRow(
                key,
                name,
                total,
                reserved=random.choice((0, 0, random.randint(0, total))),
                min_unit=random.choice((1, 1, 2)),
                max_unit=random.choice((2147483647, 2, 4)),
                step_size=random.choice((1, 1, 2)),
                allocation_ratio=random.choice((1.0, 1.0, 1.5, 2.7)),
                used=random.choice((0, 0, random.randint(0, total))),
                held=random.choice((0, 0, 0, 1)),
            )
        )
    return rows


def random_forest(random: Random, most: int = 10) -> tuple[list[ProviderRow], list[InventoryRow]]:
    """Return up to some providers; keys do not follow the order of depth."""
    keys = list(range(1, random.randint(1, most) + 1))
    random.shuffle(keys)
    root_share = random.choice((0.2, 0.5, 1.0))
    providers: list[ProviderRow] = []
    for key in keys:
        is_root = not providers or random.random() < root_share
        parent = None if is_root else random.choice(providers)
        providers.append(random_provider(random, key, parent))
    random.shuffle(providers)
    inventories = [row for one in providers for row in random_inventories(random, one.provider_id)]
    return providers, inventories


def random_filter(random: Random, providers: list[ProviderRow]) -> ProviderFilter:
    """Return a filter that mostly leaves something over."""
    required: set[frozenset[str]] = set()
    if random.random() < 0.3:
        required.add(frozenset(random.sample(TRAITS, random.randint(1, 2))))
    if random.random() < 0.1:
        required.add(frozenset(random.sample(TRAITS, 1)))
    member_of: set[frozenset[str]] = set()
    for _ in range(2):
        if random.random() < 0.2:
            member_of.add(frozenset(random.sample(AGGREGATES, random.randint(1, 2))))
    has_forbidden, has_forbidden_aggregates = random.random() < 0.25, random.random() < 0.15
    in_tree = random.choice(providers).uuid if random.random() < 0.15 else None
    return ProviderFilter(
        required=frozenset(required),
        forbidden=frozenset(random.sample(TRAITS, 1)) if has_forbidden else frozenset(),
        member_of=frozenset(member_of),
        forbidden_aggregates=frozenset(random.sample(AGGREGATES, 1))
        if has_forbidden_aggregates
        else frozenset(),
        in_tree=in_tree,
    )


def random_query(
    random: Random, providers: list[ProviderRow], *, one_provider_per_tree: bool = False
) -> CandidateQuery:
    """Return a request of up to four groups, some of them without resources."""
    groups = []
    suffixes = ["", "_X", "_Y", "_Z"][random.randint(0, 1) :][: random.randint(1, 4)]
    for suffix in suffixes:
        names = random.sample(CLASSES, random.randint(1, 2 if suffix else 3))
        has_resources = suffix == suffixes[0] or random.random() < 0.7
        groups.append(
            RequestGroup(
                suffix=suffix,
                resources={name: random.randint(1, 3) for name in names} if has_resources else {},
                filter=random_filter(random, providers),
            )
        )
    suffixed = [suffix for suffix in suffixes if suffix]
    terms = []
    while suffixed and random.random() < 0.4:
        terms.append(frozenset(random.sample(suffixed, random.randint(1, len(suffixed)))))
    root = None
    if random.random() < 0.2:
        one, other = random.sample(TRAITS, 2)
        root = RootFilter(
            required=frozenset((one,)) if random.random() < 0.5 else frozenset(),
            forbidden=frozenset((other,)) if random.random() < 0.7 else frozenset(),
        )
    return CandidateQuery(
        groups=tuple(groups),
        isolate=random.random() < 0.4,
        same_subtree=tuple(terms),
        root=root,
        one_provider_per_tree=one_provider_per_tree,
    )
