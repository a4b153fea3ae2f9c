"""Which providers are ours (spec placement, 8.3).

A tree is ours unless its root is a copy of another Placement; all of a tree are copies or none is,
so that each row tells it. What is neither ours nor copied belongs to the other Placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from core.copying import number_array, text_array
from core.prepared import fetch, fetch_prepared
from placement.domain.querystring import canonical_uuid

BY_UUID = """
SELECT p.uuid::text FROM placement_provider p
 WHERE p.uuid = ANY (%s::uuid[]) AND p.origin <> 'upstream'
"""
TAKEN = """
SELECT p.uuid::text, p.name FROM placement_provider p
 WHERE (p.uuid = ANY (%s::uuid[]) OR p.name = ANY (%s::text[])) AND p.origin <> 'upstream'
"""
ALL = "SELECT p.uuid::text, p.name FROM placement_provider p WHERE p.origin <> 'upstream'"


def owned_among(uuids: Iterable[str]) -> frozenset[str]:
    """Return which of some providers are ours; one query.

    Args:
        uuids: As clients write them; what is no UUID is nobody's.
    """
    wanted = _canonical(uuids)
    if not wanted:
        return frozenset()
    return frozenset(row[0] for row in fetch_prepared(BY_UUID, [number_array(wanted)]))


def is_owned(uuid: str) -> bool:
    """Return whether a provider is ours."""
    return bool(owned_among([uuid]))


def taken_by_ours(*, uuids: Collection[str], names: Collection[str]) -> frozenset[tuple[str, str]]:
    """Return the UUID and name of each provider of ours that has one of some UUIDs or names."""
    wanted = [number_array(_canonical(uuids)), text_array(sorted(names))]
    return frozenset((row[0], row[1]) for row in fetch_prepared(TAKEN, wanted))


def all_owned() -> frozenset[tuple[str, str]]:
    """Return the UUID and name of every provider of ours."""
    return frozenset((row[0], row[1]) for row in fetch(ALL))


def _canonical(uuids: Iterable[str]) -> list[str]:
    found = {canonical_uuid(given) for given in uuids}
    return sorted(uuid for uuid in found if uuid is not None)
