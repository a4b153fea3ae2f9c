"""Reading providers (spec placement, 4.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from core.prepared import fetch, fetch_prepared
from placement.domain.errors import BadRequest, NotFound
from placement.domain.provider_list import ListedProviders, ListFilter, ProviderForm
from placement.domain.querystring import CANONICAL, AggregateFilter, TraitFilter
from placement.selectors.snapshot import kept_snapshot

COLUMNS = """
SELECT p.uuid::text, p.name, p.generation, parent.uuid::text, root.uuid::text,
       extract(epoch FROM p.updated_at)::float8
  FROM placement_provider p
  JOIN placement_provider root ON root.id = p.root_id
  LEFT JOIN placement_provider parent ON parent.id = p.parent_id
"""
#: Copies of another Placement are nobody's answer here.
IS_OWNED = "p.origin <> 'upstream'"
ONE_PROVIDER = f"{COLUMNS} WHERE p.uuid = %s::uuid AND {IS_OWNED}"
IN_TREE = "p.root_id = (SELECT t.root_id FROM placement_provider t WHERE t.uuid = %s::uuid)"
IN_AGGREGATES = """EXISTS (
    SELECT FROM placement_provider_aggregate pa
      JOIN placement_aggregate a ON a.id = pa.aggregate_id
     WHERE pa.provider_id = p.id AND a.uuid = ANY (%s::uuid[]))"""
WITH_TRAITS = """EXISTS (
    SELECT FROM placement_provider_trait pt
      JOIN placement_trait t ON t.id = pt.trait_id
     WHERE pt.provider_id = p.id AND t.name = ANY (%s::text[]))"""
WITH_ROOM = """EXISTS (
    SELECT FROM placement_inventory i
      JOIN placement_resource_class c ON c.id = i.resource_class_id
     WHERE i.provider_id = p.id AND c.name = %s
       AND i.used + %s::bigint <= (i.total - i.reserved) * i.allocation_ratio
       AND %s::bigint BETWEEN i.min_unit AND i.max_unit
       AND %s::bigint %% i.step_size = 0)"""
UNKNOWN_TRAITS = """
SELECT name FROM unnest(%s::text[]) AS name
 WHERE NOT EXISTS (SELECT FROM placement_trait t WHERE t.name = name.name) ORDER BY name
"""
UNKNOWN_CLASSES = """
SELECT name FROM unnest(%s::text[]) AS name
 WHERE NOT EXISTS (SELECT FROM placement_resource_class c WHERE c.name = name.name) ORDER BY name
"""

NO_AGGREGATES = AggregateFilter()
NO_TRAITS = TraitFilter()


class ShownProvider(NamedTuple):
    """A provider as answers show it."""

    uuid: str
    name: str
    generation: int
    parent_uuid: str | None
    root_uuid: str
    modified_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderQuery:
    """Which providers a list shows; what is empty does not restrict it.

    Attributes:
        name: Exact name.
        uuid: Canonical UUID.
        in_tree: Canonical UUID of any provider of the tree.
        member_of: Aggregates of the provider itself.
        required: Traits of the provider itself.
        resources: Amount by class for which the provider itself has room.
    """

    name: str = ""
    uuid: str = ""
    in_tree: str = ""
    member_of: AggregateFilter = NO_AGGREGATES
    required: TraitFilter = NO_TRAITS
    resources: Mapping[str, int] | None = None


def is_canonical(uuid: str) -> bool:
    """Return whether a path item is a UUID as it is stored; any other spelling finds nothing."""
    return CANONICAL.fullmatch(uuid) is not None


def missing_provider(uuid: str) -> NotFound:
    """Return the error of a path that names no provider."""
    return NotFound(f"No resource provider with uuid {uuid} found")


def get_provider(uuid: str) -> ShownProvider:
    """Return one provider.

    Args:
        uuid: As in the path.

    Raises:
        NotFound: there is none.
    """
    rows = fetch_prepared(ONE_PROVIDER, [uuid]) if is_canonical(uuid) else []
    if not rows:
        raise missing_provider(uuid)
    return ShownProvider(*rows[0])


def list_providers(query: ProviderQuery) -> list[ShownProvider]:
    """Return the providers that pass every filter, in order of creation.

    Raises:
        BadRequest: a trait or a class is unknown.
    """
    check_traits(query.required.names)
    check_classes(query.resources or {})
    conditions, parameters = _conditions(query)
    where = " AND ".join([IS_OWNED, *conditions])
    sql = f"{COLUMNS} WHERE {where} ORDER BY p.id"
    return [ShownProvider(*row) for row in fetch(sql, parameters)]


def list_kept_providers(query: ProviderQuery, form: ProviderForm) -> ListedProviders | None:
    """Return the providers that pass every filter as a JSON list, from what this process keeps.

    Reading the rows of thousands of providers takes ten times as long.

    Returns:
        The list; None where an index finds the few that are wanted, or nothing is kept.

    Raises:
        BadRequest: a trait or a class is unknown.
    """
    if query.name or query.uuid or query.in_tree:
        return None
    snapshot = kept_snapshot()
    if snapshot is None:
        return None
    resources = query.resources or {}
    _refuse_traits(sorted(query.required.names - snapshot.known_traits))
    _refuse_classes(sorted(resources.keys() - snapshot.known_classes))
    chosen = ListFilter(
        resources=tuple(resources.items()), traits=query.required, aggregates=query.member_of
    )
    return form.listed(snapshot, chosen)


def check_traits(names: Collection[str]) -> None:
    """Refuse traits that nobody knows.

    Raises:
        BadRequest: names them all.
    """
    _refuse_traits([row[0] for row in fetch(UNKNOWN_TRAITS, [sorted(names)])] if names else [])


def check_classes(names: Collection[str]) -> None:
    """Refuse resource classes that nobody knows.

    Raises:
        BadRequest: names the first.
    """
    _refuse_classes([row[0] for row in fetch(UNKNOWN_CLASSES, [sorted(names)])] if names else [])


def _refuse_traits(unknown: Sequence[str]) -> None:
    if unknown:
        raise BadRequest(f"No such trait(s): {', '.join(unknown)}.")


def _refuse_classes(unknown: Sequence[str]) -> None:
    if unknown:
        raise BadRequest(
            f"Invalid resource class in resources parameter: No such resource class {unknown[0]}."
        )


def _conditions(query: ProviderQuery) -> tuple[list[str], list[Any]]:  # Any: SQL parameters
    found: list[tuple[str, list[Any]]] = []
    if query.name:
        found.append(("p.name = %s", [query.name]))
    if query.uuid:
        found.append(("p.uuid = %s::uuid", [query.uuid]))
    if query.in_tree:
        found.append((IN_TREE, [query.in_tree]))
    found += [(IN_AGGREGATES, [sorted(uuids)]) for uuids in query.member_of.required]
    if query.member_of.forbidden:
        found.append((f"NOT {IN_AGGREGATES}", [sorted(query.member_of.forbidden)]))
    found += [(WITH_TRAITS, [sorted(names)]) for names in query.required.required]
    if query.required.forbidden:
        found.append((f"NOT {WITH_TRAITS}", [sorted(query.required.forbidden)]))
    found += [
        (WITH_ROOM, [name, amount, amount, amount])
        for name, amount in (query.resources or {}).items()
    ]
    return [condition for condition, _ in found], [value for _, values in found for value in values]
