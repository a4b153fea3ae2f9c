"""Reading whole trees of providers, and the names that exist."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from core.prepared import Row, fetch
from placement.domain.provider_rows import InventoryRow, ProviderRow
from placement.domain.snapshot_build import Names
from placement.selectors.held import HeldAmounts, held_by_provider

_SOME = " AND p.root_id = ANY (%s::bigint[])"
_OWNED = " AND p.origin <> 'upstream'"
PROVIDERS = """
SELECT p.id, p.uuid::text, p.parent_id, p.root_id, p.name, p.generation,
       extract(epoch FROM p.updated_at)::float8
  FROM placement_provider p WHERE true
"""
TRAITS = """
SELECT l.provider_id, array_agg(l.trait_id ORDER BY l.trait_id)
  FROM placement_provider_trait l{of_trees} GROUP BY l.provider_id
"""
AGGREGATES = """
SELECT l.provider_id, array_agg(a.uuid::text ORDER BY a.id)
  FROM placement_provider_aggregate l JOIN placement_aggregate a ON a.id = l.aggregate_id
  {of_trees} GROUP BY l.provider_id
"""
INVENTORIES = """
SELECT i.provider_id, i.resource_class_id, i.total, i.reserved, i.min_unit, i.max_unit,
       i.step_size, i.allocation_ratio, i.used FROM placement_inventory i{of_trees}
"""
TRAIT_NAMES = "SELECT id, name FROM placement_trait"
CLASS_NAMES = "SELECT id, name FROM placement_resource_class"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesByID:
    """Names of traits and resource classes by key."""

    traits: Mapping[int, str]
    classes: Mapping[int, str]

    def as_names(self) -> Names:
        """Return the names alone."""
        return Names(
            traits=frozenset(self.traits.values()), classes=frozenset(self.classes.values())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRows:
    """Every member of some trees."""

    providers: Sequence[ProviderRow]
    inventories: Sequence[InventoryRow]


def read_names() -> NamesByID:
    """Return every trait and resource class."""
    return NamesByID(traits=dict(fetch(TRAIT_NAMES)), classes=dict(fetch(CLASS_NAMES)))


def read_trees(
    names: NamesByID,
    root_ids: Collection[int] | None = None,
    *,
    with_held: bool = False,
    with_copies: bool = False,
) -> TreeRows:
    """Return whole trees.

    Args:
        names: Of traits and classes.
        root_ids: Keys of roots; all trees when ``None``.
        with_held: Whether to read held capacity of hosts as well.
        with_copies: Whether to read copies of another Placement as well.
    """
    held = held_by_provider(root_ids) if with_held else {}
    chosen = ("" if root_ids is None else _SOME) + ("" if with_copies else _OWNED)
    parameters = () if root_ids is None else [sorted(root_ids)]
    traits_of = _traits_by_provider(names, _fetch(TRAITS, "l", chosen, parameters))
    aggregates = _fetch(AGGREGATES, "l", chosen, parameters)
    aggregates_of = {key: tuple(uuids) for key, uuids in aggregates}
    providers = [
        ProviderRow(
            key, uuid, parent, root, traits_of.get(key, ()), aggregates_of.get(key, ()), *version
        )
        for key, uuid, parent, root, *version in fetch(PROVIDERS + chosen, parameters)
    ]
    inventories = _fetch(INVENTORIES, "i", chosen, parameters)
    class_of = names.classes
    nothing = HeldAmounts(0, 0)
    of_class = [(class_of[class_id], key, figures) for key, class_id, *figures in inventories]
    return TreeRows(
        providers=providers,
        inventories=[
            InventoryRow._make((key, name, *figures, held.get(key, nothing).of_class(name)))
            for name, key, figures in of_class
        ]
        if held
        else [InventoryRow(key, name, *figures) for name, key, figures in of_class],
    )


def _fetch(sql: str, table: str, chosen: str, parameters: Sequence[object]) -> list[Row]:
    """Return the rows of chosen providers."""
    joined = f" JOIN placement_provider p ON p.id = {table}.provider_id{chosen}" if chosen else ""
    return fetch(sql.format(of_trees=joined), parameters)


def _traits_by_provider(names: NamesByID, rows: Iterable[Row]) -> Mapping[int, tuple[str, ...]]:
    """Return the traits of each provider in alphabetical order; many have equal sets."""
    known: dict[tuple[int, ...], tuple[str, ...]] = {}
    found = {}
    for key, trait_ids in rows:
        ids = tuple(trait_ids)
        traits = known.get(ids)
        if traits is None:
            traits = known.setdefault(ids, tuple(sorted(names.traits[one] for one in ids)))
        found[key] = traits
    return found
