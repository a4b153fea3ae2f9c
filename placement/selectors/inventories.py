"""Reading what one provider has: inventories, usages, aggregates, traits (spec placement, 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.prepared import fetch_prepared
from placement.selectors.providers import is_canonical, missing_provider

INVENTORIES = """
SELECT p.generation, extract(epoch FROM p.updated_at)::float8, c.name, i.total, i.reserved,
       i.min_unit, i.max_unit, i.step_size, i.allocation_ratio,
       extract(epoch FROM i.updated_at)::float8
  FROM placement_provider p
  LEFT JOIN placement_inventory i ON i.provider_id = p.id
  LEFT JOIN placement_resource_class c ON c.id = i.resource_class_id
 WHERE p.uuid = %s::uuid AND p.origin <> 'upstream'
 ORDER BY i.resource_class_id
"""
USAGES = """
SELECT p.generation, c.name, i.used
  FROM placement_provider p
  LEFT JOIN placement_inventory i ON i.provider_id = p.id
  LEFT JOIN placement_resource_class c ON c.id = i.resource_class_id
 WHERE p.uuid = %s::uuid AND p.origin <> 'upstream'
 ORDER BY i.resource_class_id
"""
AGGREGATES = """
SELECT p.generation, a.uuid::text
  FROM placement_provider p
  LEFT JOIN placement_provider_aggregate pa ON pa.provider_id = p.id
  LEFT JOIN placement_aggregate a ON a.id = pa.aggregate_id
 WHERE p.uuid = %s::uuid AND p.origin <> 'upstream'
 ORDER BY a.id
"""
TRAITS = """
SELECT p.generation, t.name, extract(epoch FROM t.created_at)::float8
  FROM placement_provider p
  LEFT JOIN placement_provider_trait pt ON pt.provider_id = p.id
  LEFT JOIN placement_trait t ON t.id = pt.trait_id
 WHERE p.uuid = %s::uuid AND p.origin <> 'upstream'
 ORDER BY t.name
"""

FIELDS: Final = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")

InventoryFields = dict[str, int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderInventories:
    """All a provider has.

    Attributes:
        generation: The provider's.
        by_class: The six fields by class name, in order of class id.
        modified_at: Newest change by class name.
        provider_modified_at: Newest change of the provider itself.
    """

    generation: int
    by_class: dict[str, InventoryFields]
    modified_at: dict[str, float]
    provider_modified_at: float

    @property
    def newest(self) -> float:
        """Newest change of any inventory, else of the provider."""
        return max(self.modified_at.values(), default=self.provider_modified_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderNames:
    """Names or UUIDs tied to a provider, with its generation and their newest creation."""

    generation: int
    names: list[str]
    modified_at: float | None = None


def get_inventories(uuid: str) -> ProviderInventories:
    """Return what a provider has.

    Raises:
        NotFound: there is no such provider.
    """
    rows = _rows(INVENTORIES, uuid)
    by_class = {row[2]: dict(zip(FIELDS, row[3:9], strict=True)) for row in rows if row[2]}
    return ProviderInventories(
        generation=rows[0][0],
        by_class=by_class,
        modified_at={row[2]: row[9] for row in rows if row[2]},
        provider_modified_at=rows[0][1],
    )


def get_provider_usages(uuid: str) -> tuple[int, dict[str, int]]:
    """Return a provider's generation and what is allocated of each class it has.

    Raises:
        NotFound: there is no such provider.
    """
    rows = _rows(USAGES, uuid)
    return rows[0][0], {row[1]: row[2] for row in rows if row[1]}


def get_provider_aggregates(uuid: str) -> ProviderNames:
    """Return the aggregates of a provider.

    Raises:
        NotFound: there is no such provider.
    """
    rows = _rows(AGGREGATES, uuid)
    return ProviderNames(generation=rows[0][0], names=[row[1] for row in rows if row[1]])


def get_provider_traits(uuid: str) -> ProviderNames:
    """Return the traits of a provider.

    Raises:
        NotFound: there is no such provider.
    """
    rows = _rows(TRAITS, uuid)
    return ProviderNames(
        generation=rows[0][0],
        names=[row[1] for row in rows if row[1]],
        modified_at=max((row[2] for row in rows if row[1]), default=None),
    )


def _rows(sql: str, uuid: str) -> list[tuple]:  # type: ignore[type-arg]
    rows = fetch_prepared(sql, [uuid]) if is_canonical(uuid) else []
    if not rows:
        raise missing_provider(uuid)
    return rows
