from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.domain.candidate_encoding import encode_candidates
from placement.domain.candidates import find_candidates
from placement.domain.provider_rows import InventoryRow, ProviderRow
from placement.domain.snapshot_build import Names, build_snapshot
from placement.domain.snapshot_update import replace_trees, with_usage
from tests.domain.placement.facts import facts
from tests.domain.placement.forests import (
    CLASSES,
    random_forest,
    random_inventories,
    random_provider,
    random_query,
)

NAMES = Names(classes=frozenset(CLASSES))
randoms = st.integers(0, 2**64).map(Random)
Rows = tuple[list[ProviderRow], list[InventoryRow]]


def subtree(providers: list[ProviderRow], key: int) -> set[int]:
    found = {key}
    while True:
        more = {row.provider_id for row in providers if row.parent_id in found} - found
        if not more:
            return found
        found |= more


def changed(random: Random, rows: Rows) -> tuple[Rows, set[int]]:
    """Return the rows after one random change, and the roots of the trees that it touched."""
    providers, inventories = rows
    if not providers or random.random() < 0.15:
        key = max((row.provider_id for row in providers), default=0) + random.randint(1, 3)
        parent = random.choice([None, *providers])
        fresh = random_provider(random, key, parent)
        return ([*providers, fresh], inventories + random_inventories(random, key)), {fresh.root_id}
    one = random.choice(providers)
    key, roots = one.provider_id, {one.root_id}
    kind = random.choice(("usage", "inventory", "labels", "delete", "move", "figures"))
    others = [row for row in inventories if row.provider_id != key]
    mine = [row for row in inventories if row.provider_id == key]
    if kind == "usage":
        mine = [row._replace(used=random.randint(0, row.total)) for row in mine]
    elif kind == "figures":
        mine = [
            row._replace(max_unit=random.randint(1, 9), min_unit=random.randint(1, 2))
            for row in mine
        ]
    elif kind == "inventory":
        mine = random_inventories(random, key)
    elif kind == "labels":
        parent = next((row for row in providers if row.provider_id == one.parent_id), None)
        fresh = random_provider(random, key, parent)
        providers = [fresh if row is one else row for row in providers]
    elif kind == "delete":
        gone = subtree(providers, key)
        providers = [row for row in providers if row.provider_id not in gone]
        return (providers, [row for row in inventories if row.provider_id not in gone]), roots
    else:
        moved = subtree(providers, key)
        outside = [row for row in providers if row.provider_id not in moved]
        parent = random.choice([None, *outside])
        root = key if parent is None else parent.root_id
        providers = [
            row._replace(
                root_id=root,
                parent_id=(parent.provider_id if parent else None)
                if row.provider_id == key
                else row.parent_id,
            )
            if row.provider_id in moved
            else row
            for row in providers
        ]
        roots |= {root}
    return (providers, others + mine), roots


@settings(max_examples=150, deadline=None)
@given(random=randoms)
def test_a_snapshot_brought_forward_is_the_one_built_anew(random: Random) -> None:
    rows: Rows = random_forest(random)
    snapshot = build_snapshot(*rows, NAMES)
    queries = [random_query(random, rows[0]) for _ in range(3)]
    for _ in range(8):
        for query in queries:  # so that there is something to go stale
            find_candidates(snapshot, query)
        roots: set[int] = set()
        for _ in range(random.randint(1, 3)):
            rows, touched = changed(random, rows)
            roots |= touched
        members = [row for row in rows[0] if row.root_id in roots]
        keys = {row.provider_id for row in members}
        part = build_snapshot(
            members,
            [row for row in rows[1] if row.provider_id in keys],
            NAMES,
            trait_bit=snapshot.trait_bit,
            aggregate_bit=snapshot.aggregate_bit,
        )
        if random.random() < 0.5 and snapshot.tree_count:
            facts(snapshot)
        snapshot = replace_trees(snapshot, sorted(roots), part)
        rebuilt = build_snapshot(*rows, NAMES)
        assert facts(snapshot) == facts(rebuilt)
        for query in queries:
            assert encode_candidates(
                snapshot, find_candidates(snapshot, query), 39
            ) == encode_candidates(rebuilt, find_candidates(rebuilt, query), 39)


@settings(max_examples=80, deadline=None)
@given(random=randoms)
def test_room_that_was_asked_for_is_that_of_amounts_brought_forward(random: Random) -> None:
    providers, inventories = random_forest(random)
    inventories = [row._replace(held=random.choice((0, 0, row.total))) for row in inventories]
    snapshot = build_snapshot(providers, inventories, NAMES)
    asked = [
        (name, amount, hides)
        for name in snapshot.classes
        for amount in (1, 2, 3, 4)
        for hides in (False, True)
    ]
    for _ in range(4):
        for name, amount, hides in random.sample(asked, len(asked) // 2):
            snapshot.classes[name].open_to(amount, hides_fully_held=hides)
        inventories = [
            row._replace(used=random.randint(0, row.total)) if random.random() < 0.3 else row
            for row in inventories
        ]
        forward = with_usage(
            snapshot,
            [row.provider_id for row in inventories],
            [row.resource_class for row in inventories],
            [row.used for row in inventories],
        )
        assert forward is not None
        snapshot, rebuilt = forward, build_snapshot(providers, inventories, NAMES)
        for name, amount, hides in asked:
            found = snapshot.classes[name].open_to(amount, hides_fully_held=hides)
            fits = rebuilt.classes[name].fits(amount)
            hidden = rebuilt.classes[name].fully_held() & hides
            assert found.tolist() == (fits & ~hidden).tolist()


@settings(max_examples=80, deadline=None)
@given(random=randoms)
def test_usage_brought_forward_is_that_of_a_snapshot_built_anew(random: Random) -> None:
    providers, inventories = random_forest(random)
    snapshot = build_snapshot(providers, inventories, NAMES)
    facts(snapshot)
    chosen = random.sample(inventories, random.randint(0, len(inventories)))
    fresh = {
        (row.provider_id, row.resource_class): random.randint(0, 2 * row.total) for row in chosen
    }
    forward = with_usage(
        snapshot,
        [key for key, _ in fresh],
        [name for _, name in fresh],
        list(fresh.values()),
        [(key + 1, key / 4) for key, _ in fresh],
    )
    versions = {key: (key + 1, key / 4) for key, _ in fresh}
    providers = [
        row._replace(generation=version[0], modified_at=version[1])
        if (version := versions.get(row.provider_id))
        else row
        for row in providers
    ]
    inventories = [
        row._replace(used=fresh.get((row.provider_id, row.resource_class), row.used))
        for row in inventories
    ]
    assert forward is not None
    assert facts(forward) == facts(build_snapshot(providers, inventories, NAMES))


def test_usage_of_an_unknown_inventory_asks_for_its_tree() -> None:
    snapshot = build_snapshot(
        [ProviderRow(1, "0" * 36, None, 1)], [InventoryRow(1, "CUSTOM_A", 1)], NAMES
    )
    assert with_usage(snapshot, [2], ["CUSTOM_A"], [1]) is None
    assert with_usage(snapshot, [1], ["CUSTOM_B"], [1]) is None
    empty = build_snapshot([], [], NAMES)
    assert with_usage(empty, [1], ["CUSTOM_A"], [1]) is None


def test_new_names_are_known_after_a_part_without_trees() -> None:
    snapshot = build_snapshot([ProviderRow(1, "0" * 36, None, 1)], [], NAMES)
    names = Names(traits=frozenset({"CUSTOM_NEW"}), classes=frozenset({"CUSTOM_D"}))
    part = build_snapshot([], [], names, trait_bit=snapshot.trait_bit)
    fresh = replace_trees(snapshot, [], part)
    assert (fresh.known_traits, fresh.known_classes) == (names.traits, names.classes)
    assert len(fresh) == 1
