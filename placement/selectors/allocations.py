"""Reading allocations and usages of projects (spec placement, 4.8, 4.9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from capacity.models import ReservationKind
from core.prepared import fetch_prepared
from placement.selectors.held import CORES, MEMORY
from placement.selectors.providers import is_canonical, missing_provider

UNKNOWN_TYPE: Final = "unknown"
ALL_TYPES: Final = "all"

OF_CONSUMER = "SELECT * FROM placement_consumer_allocations(%s::uuid)"
OF_PROVIDER = "SELECT * FROM placement_provider_allocations(%s::uuid)"
# Rows without a class count the consumers.
PROJECT_USAGES = """
SELECT coalesce(t.name, '{rest}'), c.name, s.used, s.resource_class_id, s.parts
  FROM (SELECT {kind} AS type_id, x.resource_class_id, sum(x.used)::bigint AS used,
               count(*) AS parts
          FROM placement_project_usage x
         WHERE x.project_id = (SELECT p.id FROM placement_project p WHERE p.external_id = %s::text)
           {chosen}
         GROUP BY 1, 2 HAVING sum(x.used) <> 0) s
  LEFT JOIN placement_resource_class c ON c.id = s.resource_class_id
  LEFT JOIN placement_consumer_type t ON t.id = s.type_id
"""
OF_USER = """
           AND x.user_id = (SELECT u.id FROM placement_user u WHERE u.external_id = %s::text)"""
OF_TYPE = """
           AND x.type_id = (SELECT t.id FROM placement_consumer_type t WHERE t.name = %s::text)"""
WITHOUT_TYPE = """
           AND x.type_id IS NULL"""
# A slot counts whole, with the VMs in it, which count as consumers of their own as well.
HELD_USAGES = f"""
 UNION ALL
SELECT held.kind, part.class, part.used, part.place, 0
  FROM (SELECT kind, count(*) AS consumers, sum(vcpus)::bigint AS vcpus,
               (sum(memory_bytes) / 1048576)::bigint AS memory_mib
          FROM capacity_reservation
         WHERE project_id = %s::text AND kind = ANY (%s::text[]) AND target_host_id IS NOT NULL
         GROUP BY kind) held
 CROSS JOIN LATERAL (VALUES ('{CORES}', held.vcpus, 1), ('{MEMORY}', held.memory_mib, 2),
                            (NULL, held.consumers, NULL)) part (class, used, place)
"""  # noqa: S608 - constants only
IN_ORDER = " ORDER BY 1, 4"
#: Kinds are words in lower case, so that none is the name of a consumer type.
TYPE_OF_KIND: Final = {
    ReservationKind.COMMITTED.value: "COMMITMENT",
    ReservationKind.FAILOVER.value: "FAILOVER",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerAllocations:
    """What a consumer holds.

    Attributes:
        resources: Amount by class, by provider.
        generations: Generation by provider.
    """

    resources: dict[str, dict[str, int]] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    modified_at: float | None = None
    project_id: str = ""
    user_id: str = ""
    consumer_generation: int = 0
    consumer_type: str = UNKNOWN_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAllocations:
    """Who holds what of a provider.

    Attributes:
        generation: The provider's.
        resources: Amount by class, by consumer.
        consumer_generations: Generation by consumer.
    """

    generation: int
    resources: dict[str, dict[str, int]]
    consumer_generations: dict[str, int]
    modified_at: float | None


def get_consumer_allocations(uuid: str) -> ConsumerAllocations:
    """Return what a consumer holds; nothing when nobody knows it.

    Args:
        uuid: As in the path; other spellings than the stored one find nothing.
    """
    rows = fetch_prepared(OF_CONSUMER, [uuid]) if is_canonical(uuid) else []
    if not rows:
        return ConsumerAllocations()
    resources: dict[str, dict[str, int]] = {}
    for row in rows:
        resources.setdefault(row[0], {})[row[2]] = row[3]
    first = rows[0]
    return ConsumerAllocations(
        resources=resources,
        generations={row[0]: row[1] for row in rows},
        modified_at=max(row[4] for row in rows),
        consumer_generation=first[5],
        project_id=first[6],
        user_id=first[7],
        consumer_type=first[8] or UNKNOWN_TYPE,
    )


def get_provider_allocations(uuid: str) -> ProviderAllocations:
    """Return who holds what of a provider.

    Raises:
        NotFound: there is no such provider.
    """
    rows = fetch_prepared(OF_PROVIDER, [uuid]) if is_canonical(uuid) else []
    if not rows:
        raise missing_provider(uuid)
    resources: dict[str, dict[str, int]] = {}
    held = [row for row in rows if row[1]]
    for row in held:
        resources.setdefault(row[1], {})[row[3]] = row[4]
    return ProviderAllocations(
        generation=rows[0][0],
        resources=resources,
        consumer_generations={row[1]: row[2] for row in held},
        modified_at=max((row[5] for row in held), default=None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeUsage:
    """What the consumers of one type hold.

    Attributes:
        resources: Amount by class, in order of class id.
        consumer_count: How many consumers they are.
    """

    resources: dict[str, int]
    consumer_count: int


def get_project_usages(
    project_id: str,
    *,
    user_id: str | None = None,
    consumer_type: str | None = None,
    with_held: bool = False,
    note_parts: Callable[[int], None] | None = None,
) -> dict[str, TypeUsage]:
    """Return what a project holds, by consumer type.

    Args:
        project_id: The project, as consumers name it.
        user_id: Only consumers of this user.
        consumer_type: Only this type; ``all`` adds all types up under that word.
        with_held: Whether to show what reservations hold for the project on hosts as if they were
            consumers, so that one request tells what was sold, what is held for failover, and
            what VMs use. Reservations have no user, and the sum over all types counts VMs once,
            so neither has any.
        note_parts: Is told of how many rows the sums were made.

    Source: spec placement, sections 5.8 and 12.
    """
    kinds: list[str] = []
    if with_held and user_id is None:
        kinds = [kind for kind, name in TYPE_OF_KIND.items() if consumer_type in {None, name}]
    resources: dict[str, dict[str, int]] = {}
    counts: dict[str, int] = {}
    sql, values = _usage_query(project_id, user_id, consumer_type, kinds)
    rows = fetch_prepared(sql, values)
    if note_parts is not None:
        note_parts(sum(row[4] for row in rows))
    for kind, class_name, amount, _, _ in rows:
        if class_name is None:
            counts[kind] = amount
        else:
            resources.setdefault(kind, {})[class_name] = amount
    usages = {
        kind: TypeUsage(resources=amounts, consumer_count=counts.get(kind, 0))
        for kind, amounts in resources.items()
    }
    held = {TYPE_OF_KIND[kind]: usages.pop(kind) for kind in kinds if kind in usages}
    return held | usages  # a type that clients write themselves is theirs


def _usage_query(
    project_id: str, user_id: str | None, consumer_type: str | None, kinds: Sequence[str]
) -> tuple[str, list[str]]:
    is_all = consumer_type == ALL_TYPES
    chosen, values = "", [project_id]
    if user_id is not None:
        chosen += OF_USER
        values.append(user_id)
    if consumer_type == UNKNOWN_TYPE:
        chosen += WITHOUT_TYPE
    elif consumer_type is not None and not is_all:
        chosen += OF_TYPE
        values.append(consumer_type)
    kind, rest = ("NULL::smallint", ALL_TYPES) if is_all else ("x.type_id", UNKNOWN_TYPE)
    sql = PROJECT_USAGES.format(kind=kind, rest=rest, chosen=chosen)
    if kinds:
        sql += HELD_USAGES
        values += (project_id, f"{{{','.join(kinds)}}}")
    return sql + IN_ORDER, values
