"""Moving inventories and allocations between providers at once (spec placement, 4.10, 5.7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from core.prepared import run
from journal.actors import Actor
from placement.database import in_transaction
from placement.domain.errors import (
    CONCURRENT_UPDATE,
    PROVIDER_NOT_FOUND,
    BadRequest,
    Conflict,
    NotFound,
)
from placement.selectors.providers import is_canonical
from placement.services.allocations import (
    AllocationRequest,
    lock_consumers,
    observed_write,
    replace_in_transaction,
)
from placement.services.inventories import (
    Inventories,
    check_capacity,
    class_ids,
    current_amounts,
    replace_all,
)
from placement.services.locking import LockedProvider, lock_provider
from placement.services.rooms import (
    TakesHeldRoom,
    held_for_others,
    held_on_hosts,
    rooms_follow_allocations,
    settle_claims,
)

#: The reference does not look at ``reserved`` here; ours refuses as since 1.26.
RESERVED_RULES_OF: Final = 26

LOCK_PROVIDERS = """
SELECT id FROM placement_provider
 WHERE id = ANY (ARRAY(
        SELECT n.id FROM placement_provider n WHERE n.uuid = ANY (%s::uuid[])
         UNION
        SELECT a.provider_id FROM placement_allocation a
          JOIN placement_consumer k ON k.id = a.consumer_id WHERE k.uuid = ANY (%s::uuid[])))
 ORDER BY id FOR NO KEY UPDATE
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInventories:
    """What a provider is to have, and its generation as the client knows it."""

    generation: int
    by_class: Inventories


def reshape(
    inventories: Mapping[str, NewInventories],
    allocations: AllocationRequest,
    *,
    actor: Actor,
    request_id: str,
) -> None:
    """Replace inventories of providers and allocations of consumers, all or nothing.

    While the allocations move, a provider has its old classes and the new ones.

    Args:
        inventories: By UUID of the provider.
        allocations: Who is to hold what.
        request_id: Id of the request.

    Raises:
        BadRequest: a provider or a class is unknown, or an inventory holds nothing.
        Conflict: a generation moved on, a class that vanishes is in use, or it does not fit.
    """

    def write() -> None:
        lock_consumers(allocations.consumers)
        _lock_providers(inventories, allocations)
        consumers = [consumer.uuid for consumer in allocations.consumers]
        before = held_on_hosts(consumers) if rooms_follow_allocations() else {}
        providers = [_checked(uuid, new) for uuid, new in inventories.items()]
        names = {name for new in inventories.values() for name in new.by_class}
        ids = class_ids(sorted(names), "Unable to reshape")
        for provider in providers:
            new = inventories[provider.uuid].by_class
            check_capacity(provider.uuid, new, minor=RESERVED_RULES_OF, verb="update")
            if new:
                old = current_amounts(provider)
                union = {**old, **new}
                replace_all(provider, union, {**ids, **class_ids(list(old), "")})
        if allocations.consumers:
            replace_in_transaction(allocations, actor=actor, request_id=request_id)
        for provider in providers:
            new = inventories[provider.uuid].by_class
            replace_all(provider, new, {name: ids[name] for name in new})
        if rooms_follow_allocations():
            eaten = settle_claims(consumers, held_before=before)
            if eaten:
                raise TakesHeldRoom(eaten[0])

    def told() -> None:
        try:
            in_transaction(write)
        except TakesHeldRoom as error:
            raise held_for_others(error.eaten, allocations.asked) from None

    observed_write("reshape", told)


def _lock_providers(uuids: Iterable[str], allocations: AllocationRequest) -> None:
    named = {uuid for uuid in uuids if is_canonical(uuid)}
    named.update(uuid for consumer in allocations.consumers for uuid in consumer.resources)
    consumers = [consumer.uuid for consumer in allocations.consumers]
    run(LOCK_PROVIDERS, [sorted(named), consumers]).fetchall()


def _checked(uuid: str, new: NewInventories) -> LockedProvider:
    try:
        provider = lock_provider(uuid)
    except NotFound as error:
        raise BadRequest(
            f"Resource provider {uuid} in inventories not found: No resource provider with uuid "
            f"{uuid} found",
            wire_code=PROVIDER_NOT_FOUND,
        ) from error
    if provider.generation != new.generation:
        raise Conflict(
            f"resource provider generation conflict for provider {uuid}: "
            f"actual: {provider.generation}, given: {new.generation}",
            wire_code=CONCURRENT_UPDATE,
        )
    if provider.takes_inventory_from_host:
        raise Conflict(f"The inventories of {uuid} are those of its host and cannot be written.")
    return provider
