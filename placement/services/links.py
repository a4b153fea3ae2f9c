"""Writing the traits and aggregates of a provider (spec placement, 4.4, 4.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from core.prepared import run
from journal.models import Outbox
from placement.database import in_transaction
from placement.domain.errors import BadRequest
from placement.services.locking import (
    LockedProvider,
    check_generation,
    lock_provider,
    log_changes,
    raise_generation,
)

GENERATION_MOVED: Final = (
    "Resource provider's generation already changed. Please update the generation and try again."
)

HOST_GROUPS: Final = "host_groups"

TRAIT_IDS = "SELECT name, id FROM placement_trait WHERE name = ANY (%s::text[]) FOR KEY SHARE"
REMOVE_TRAITS = """
DELETE FROM placement_provider_trait WHERE provider_id = %s AND trait_id <> ALL (%s::bigint[])
"""
ADD_TRAITS = """
INSERT INTO placement_provider_trait (provider_id, trait_id)
SELECT %s, unnest(%s::bigint[]) ON CONFLICT DO NOTHING
"""
# Those that are there stay until the links are written; one that is being deleted is made anew.
KEEP_AGGREGATES = """
SELECT id FROM placement_aggregate WHERE uuid = ANY (%s::uuid[]) ORDER BY id FOR KEY SHARE
"""
NEW_AGGREGATES = """
INSERT INTO placement_aggregate (uuid)
SELECT n FROM unnest(%s::uuid[]) AS n
 WHERE NOT EXISTS (SELECT FROM placement_aggregate a WHERE a.uuid = n)
 ORDER BY n
    ON CONFLICT DO NOTHING
"""
REMOVE_AGGREGATES = """
DELETE FROM placement_provider_aggregate l USING placement_aggregate a
 WHERE l.provider_id = %s AND a.id = l.aggregate_id AND a.uuid <> ALL (%s::uuid[])
"""
ADD_AGGREGATES = """
INSERT INTO placement_provider_aggregate (provider_id, aggregate_id)
SELECT %s, a.id FROM placement_aggregate a WHERE a.uuid = ANY (%s::uuid[]) ON CONFLICT DO NOTHING
"""

REQUEST_TRAITS = """
UPDATE placement_provider SET requested_traits = %s::text[]
 WHERE id = %s AND requested_traits::text[] IS DISTINCT FROM %s::text[]
"""
REQUEST_AGGREGATES = """
UPDATE placement_provider AS p SET requested_aggregates = asked.names
  FROM (SELECT coalesce(jsonb_object_agg(a.uuid, a.name), '{}') AS names
          FROM placement_aggregate a WHERE a.uuid = ANY (%s::uuid[])) AS asked
 WHERE p.id = %s AND p.requested_aggregates IS DISTINCT FROM asked.names
"""
AGGREGATE_NAMES = "SELECT uuid::text, name FROM placement_aggregate WHERE uuid = ANY (%s::uuid[])"


def set_provider_traits(uuid: str, *, names: Sequence[str], generation: int) -> int:
    """Make ``names`` all the traits of a provider.

    Returns:
        The provider's generation, raised if the set changed.

    Raises:
        NotFound: there is no such provider.
        Conflict: the generation moved on.
        BadRequest: a trait is unknown.
    """

    def write() -> int:
        provider = lock_provider(uuid)
        check_generation(provider, generation, GENERATION_MOVED)
        wanted = set(names)
        ids = {row[0]: row[1] for row in run(TRAIT_IDS, [sorted(wanted)]).fetchall()}
        unknown = sorted(wanted - ids.keys())
        if unknown:
            raise BadRequest(f"No such trait {', '.join(unknown)}")
        return _replace_traits(provider, ids)

    return in_transaction(write)


def delete_provider_traits(uuid: str) -> None:
    """Take all traits from a provider; its generation rises if it had any.

    Raises:
        NotFound: there is no such provider.
    """
    in_transaction(lambda: _replace_traits(lock_provider(uuid), {}))


def set_provider_aggregates(uuid: str, *, aggregates: Sequence[str], generation: int | None) -> int:
    """Make ``aggregates`` all that a provider is in.

    Args:
        uuid: As in the path.
        aggregates: Canonical UUIDs; an aggregate exists once it was mentioned.
        generation: The provider's, as the client knows it; ``None`` before 1.19, which neither
            compares nor raises it.

    Returns:
        The provider's generation.

    Raises:
        NotFound: there is no such provider.
        Conflict: the generation moved on.
    """

    def write() -> int:
        provider = lock_provider(uuid)
        if generation is not None:
            check_generation(provider, generation, GENERATION_MOVED)
        listed = sorted(set(aggregates))
        run(KEEP_AGGREGATES, [listed])
        run(NEW_AGGREGATES, [listed])
        changed = run(REMOVE_AGGREGATES, [provider.id, listed]).rowcount
        changed += run(ADD_AGGREGATES, [provider.id, listed]).rowcount
        if provider.is_host:
            run(REQUEST_AGGREGATES, [listed, provider.id])
        if changed and provider.is_host:
            names = {row[0]: row[1] for row in run(AGGREGATE_NAMES, [listed]).fetchall()}
            groups = [{"uuid": one, "name": names[one]} for one in listed]
            announce_groups(provider, {"aggregates": groups})
        log_changes([provider.root_id])
        return provider.generation if generation is None else raise_generation(provider)

    return in_transaction(write)


def announce_groups(provider: LockedProvider, groups: Mapping[str, object]) -> None:
    """Tell who follows the outbox which traits or aggregates clients want a host to have.

    It replaces the groups of that kind in the host's Hypervisor object and keeps the others.

    Args:
        provider: The host's, locked.
        groups: ``traits`` or ``aggregates``, and all that the provider has of them now.

    Source: spec placement, section 8.4.
    """
    Outbox.objects.create(
        topic=HOST_GROUPS,
        object_type="Host",
        object_id=provider.name,
        payload={"provider_uuid": provider.uuid, **groups},
    )


def _replace_traits(provider: LockedProvider, traits: Mapping[str, int]) -> int:
    trait_ids = sorted(traits.values())
    changed = run(REMOVE_TRAITS, [provider.id, trait_ids]).rowcount
    changed += run(ADD_TRAITS, [provider.id, trait_ids]).rowcount
    if provider.is_host:
        run(REQUEST_TRAITS, [sorted(traits), provider.id, sorted(traits)])
    if not changed:
        return provider.generation
    if provider.is_host:
        announce_groups(provider, {"traits": sorted(traits)})
    log_changes([provider.root_id])
    return raise_generation(provider)
