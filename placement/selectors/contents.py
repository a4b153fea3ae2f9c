"""Everything our tables hold, as values, for copying and comparing; copies are left out."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from core.prepared import fetch
from placement.domain.capacity import InventoryAmounts
from placement.domain.transfer import ConsumerRecord, Contents, ProviderRecord
from placement.models import Origin

PROVIDERS: Final = """
SELECT p.uuid::text, p.name, coalesce(q.uuid::text, ''), p.generation
  FROM placement_provider p LEFT JOIN placement_provider q ON q.id = p.parent_id
 WHERE p.origin <> %s ORDER BY p.id
"""
INVENTORIES: Final = """
SELECT p.uuid::text, c.name, i.total, i.reserved, i.min_unit, i.max_unit, i.step_size,
       i.allocation_ratio
  FROM placement_inventory i
  JOIN placement_provider p ON p.id = i.provider_id AND p.origin <> %s
  JOIN placement_resource_class c ON c.id = i.resource_class_id
"""
TRAITS: Final = """
SELECT p.uuid::text, t.name FROM placement_provider_trait l
  JOIN placement_provider p ON p.id = l.provider_id AND p.origin <> %s
  JOIN placement_trait t ON t.id = l.trait_id
"""
AGGREGATES: Final = """
SELECT p.uuid::text, g.uuid::text FROM placement_provider_aggregate l
  JOIN placement_provider p ON p.id = l.provider_id AND p.origin <> %s
  JOIN placement_aggregate g ON g.id = l.aggregate_id
"""
CONSUMERS: Final = """
SELECT k.uuid::text, j.external_id, u.external_id, coalesce(t.name, ''), k.generation
  FROM placement_consumer k
  JOIN placement_project j ON j.id = k.project_id
  JOIN placement_user u ON u.id = k.user_id
  LEFT JOIN placement_consumer_type t ON t.id = k.type_id
"""
ALLOCATIONS: Final = """
SELECT k.uuid::text, p.uuid::text, c.name, a.used
  FROM placement_allocation a
  JOIN placement_consumer k ON k.id = a.consumer_id
  JOIN placement_provider p ON p.id = a.provider_id
  JOIN placement_resource_class c ON c.id = a.resource_class_id
"""


def read_contents(*, with_copies: bool = False) -> Contents:
    """Return what the tables hold, in eight queries.

    Args:
        with_copies: Whether copies of another Placement count, too.
    """
    left_out = ["" if with_copies else Origin.UPSTREAM]
    rows: dict[str, list[tuple[Any, ...]]] = {  # Any: columns
        "providers": fetch(PROVIDERS, left_out),
        "inventories": fetch(INVENTORIES, left_out),
        "traits": fetch(TRAITS, left_out),
        "aggregates": fetch(AGGREGATES, left_out),
        "consumers": fetch(CONSUMERS),
        "allocations": fetch(ALLOCATIONS),
    }
    return contents_of_rows(
        classes=[row[0] for row in fetch("SELECT name FROM placement_resource_class")],
        traits=[row[0] for row in fetch("SELECT name FROM placement_trait")],
        rows=rows,
    )


def contents_of_rows(
    *, classes: list[str], traits: list[str], rows: dict[str, list[tuple[Any, ...]]]
) -> Contents:
    """Build values from rows shaped as the queries of this module shape them.

    Args:
        classes: Names.
        traits: Names.
        rows: ``providers``, ``inventories``, ``traits``, ``aggregates``, ``consumers`` and
            ``allocations``.
    """
    inventories: dict[str, dict[str, InventoryAmounts]] = defaultdict(dict)
    for provider, name, total, reserved, low, high, step, ratio in rows["inventories"]:
        inventories[provider][name] = InventoryAmounts(
            total=int(total),
            reserved=int(reserved),
            min_unit=int(low),
            max_unit=int(high),
            step_size=int(step),
            allocation_ratio=float(ratio),
        )
    links: dict[str, dict[str, set[str]]] = {"traits": {}, "aggregates": {}}
    for kind, found in links.items():
        for provider, name in rows[kind]:
            found.setdefault(provider, set()).add(name)
    held: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for consumer, provider, name, used in rows["allocations"]:
        of_provider = held[consumer][provider]
        of_provider[name] = of_provider.get(name, 0) + int(used)
    return Contents(
        classes=frozenset(classes),
        traits=frozenset(traits),
        providers={
            uuid: ProviderRecord(
                uuid=uuid,
                name=name,
                parent=parent or "",
                generation=int(generation),
                inventories=dict(inventories.get(uuid, {})),
                traits=frozenset(links["traits"].get(uuid, ())),
                aggregates=frozenset(links["aggregates"].get(uuid, ())),
            )
            for uuid, name, parent, generation in rows["providers"]
        },
        consumers={
            uuid: ConsumerRecord(
                uuid=uuid,
                project=project,
                user=user,
                type_name=type_name or "",
                generation=int(generation),
                allocations={
                    provider: dict(amounts) for provider, amounts in held.get(uuid, {}).items()
                },
            )
            for uuid, project, user, type_name, generation in rows["consumers"]
        },
    )
