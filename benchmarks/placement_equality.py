"""Comparing what two Placement databases hold, by SQL alone.

Nothing of the product reads here, so that a mistake of its readers cannot hide a difference: each
query is written once for either schema, and its rows are compared as they come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import psycopg

#: What is compared: the query for openstack-placement's tables, and the one for ours.
QUERIES: Final[Mapping[str, tuple[str, str]]] = {
    "provider": (
        (
            "SELECT p.uuid::text, p.name, p.generation, q.uuid::text, r.uuid::text"
            "  FROM resource_providers p JOIN resource_providers r ON r.id = p.root_provider_id"
            "  LEFT JOIN resource_providers q ON q.id = p.parent_provider_id"
        ),
        (
            "SELECT p.uuid::text, p.name, p.generation, q.uuid::text, r.uuid::text"
            "  FROM placement_provider p JOIN placement_provider r ON r.id = p.root_id"
            "  LEFT JOIN placement_provider q ON q.id = p.parent_id"
        ),
    ),
    "inventory": (
        (
            "SELECT p.uuid::text, c.name, i.total, i.reserved, i.min_unit, i.max_unit, i.step_size,"
            "       round(i.allocation_ratio::numeric, 4)"
            "  FROM inventories i JOIN resource_providers p ON p.id = i.resource_provider_id"
            "  JOIN resource_classes c ON c.id = i.resource_class_id"
        ),
        (
            "SELECT p.uuid::text, c.name, i.total, i.reserved, i.min_unit, i.max_unit, i.step_size,"
            "       round(i.allocation_ratio::numeric, 4)"
            "  FROM placement_inventory i JOIN placement_provider p ON p.id = i.provider_id"
            "  JOIN placement_resource_class c ON c.id = i.resource_class_id"
        ),
    ),
    "trait": (
        (
            "SELECT p.uuid::text, t.name FROM resource_provider_traits l"
            "  JOIN resource_providers p ON p.id = l.resource_provider_id"
            "  JOIN traits t ON t.id = l.trait_id"
        ),
        (
            "SELECT p.uuid::text, t.name FROM placement_provider_trait l"
            "  JOIN placement_provider p ON p.id = l.provider_id"
            "  JOIN placement_trait t ON t.id = l.trait_id"
        ),
    ),
    "aggregate": (
        (
            "SELECT p.uuid::text, g.uuid::uuid::text FROM resource_provider_aggregates l"
            "  JOIN resource_providers p ON p.id = l.resource_provider_id"
            "  JOIN placement_aggregates g ON g.id = l.aggregate_id"
        ),
        (
            "SELECT p.uuid::text, g.uuid::text FROM placement_provider_aggregate l"
            "  JOIN placement_provider p ON p.id = l.provider_id"
            "  JOIN placement_aggregate g ON g.id = l.aggregate_id"
        ),
    ),
    "allocation": (
        (
            "SELECT a.consumer_id::text, p.uuid::text, c.name, a.used FROM allocations a"
            "  JOIN resource_providers p ON p.id = a.resource_provider_id"
            "  JOIN resource_classes c ON c.id = a.resource_class_id"
        ),
        (
            "SELECT k.uuid::text, p.uuid::text, c.name, a.used FROM placement_allocation a"
            "  JOIN placement_consumer k ON k.id = a.consumer_id"
            "  JOIN placement_provider p ON p.id = a.provider_id"
            "  JOIN placement_resource_class c ON c.id = a.resource_class_id"
        ),
    ),
    "consumer": (
        (
            "SELECT k.uuid::text, k.generation, j.external_id, u.external_id, t.name"
            "  FROM consumers k JOIN projects j ON j.id = k.project_id"
            "  JOIN users u ON u.id = k.user_id"
            "  LEFT JOIN consumer_types t ON t.id = k.consumer_type_id"
            " WHERE EXISTS (SELECT FROM allocations a WHERE a.consumer_id = k.uuid)"
        ),
        (
            "SELECT k.uuid::text, k.generation, j.external_id, u.external_id, t.name"
            "  FROM placement_consumer k JOIN placement_project j ON j.id = k.project_id"
            "  JOIN placement_user u ON u.id = k.user_id"
            "  LEFT JOIN placement_consumer_type t ON t.id = k.type_id"
        ),
    ),
    # What our tables count beside the allocations themselves, against the other side's sums.
    "used": (
        (
            "SELECT p.uuid::text, c.name, coalesce(sum(a.used), 0)"
            "  FROM inventories i JOIN resource_providers p ON p.id = i.resource_provider_id"
            "  JOIN resource_classes c ON c.id = i.resource_class_id"
            "  LEFT JOIN allocations a ON a.resource_provider_id = i.resource_provider_id"
            "   AND a.resource_class_id = i.resource_class_id GROUP BY 1, 2"
        ),
        (
            "SELECT p.uuid::text, c.name, i.used::numeric"
            "  FROM placement_inventory i JOIN placement_provider p ON p.id = i.provider_id"
            "  JOIN placement_resource_class c ON c.id = i.resource_class_id"
        ),
    ),
    "project usage": (
        (
            "SELECT j.external_id, c.name, sum(a.used) FROM allocations a"
            "  JOIN consumers k ON k.uuid = a.consumer_id JOIN projects j ON j.id = k.project_id"
            "  JOIN resource_classes c ON c.id = a.resource_class_id GROUP BY 1, 2"
        ),
        (
            "SELECT j.external_id, c.name, sum(s.used) FROM placement_project_usage s"
            "  JOIN placement_project j ON j.id = s.project_id"
            "  JOIN placement_resource_class c ON c.id = s.resource_class_id"
            " GROUP BY 1, 2 HAVING sum(s.used) <> 0"
        ),
    ),
}


def what_differs(reference: str, ours: str) -> list[str]:
    """Return a line for each row that one database has more often than the other.

    Args:
        reference: Address of an openstack-placement's database.
        ours: Address of Headroom's.
    """
    found = []
    with psycopg.connect(reference) as there, psycopg.connect(ours) as here:
        for kind, (their_query, our_query) in QUERIES.items():
            theirs, mine = _rows(there, their_query), _rows(here, our_query)
            found += [f"{kind} only there: {row}" for row in (theirs - mine).elements()]
            found += [f"{kind} only here: {row}" for row in (mine - theirs).elements()]
    return sorted(found)


def held_by_consumer(conninfo: str) -> dict[str, tuple[int, frozenset[str]]]:
    """Return generation and providers of each consumer that an openstack-placement knows."""
    query = (
        "SELECT k.uuid::text, k.generation, array_agg(p.uuid::text) FROM consumers k"
        "  JOIN allocations a ON a.consumer_id = k.uuid"
        "  JOIN resource_providers p ON p.id = a.resource_provider_id GROUP BY 1, 2"
    )
    with psycopg.connect(conninfo) as link:
        rows = link.execute(query.encode()).fetchall()
    return {uuid: (generation, frozenset(providers)) for uuid, generation, providers in rows}


def _rows(link: psycopg.Connection[Any], query: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in link.execute(query.encode()).fetchall())
