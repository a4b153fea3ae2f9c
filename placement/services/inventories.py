"""Writing inventories (spec placement, 4.3, 5.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import IntegrityError, connection

from core.prepared import fetch_prepared, run
from placement.database import in_transaction, lock_timeout, retried
from placement.domain.capacity import MAX_INTEGER, InventoryAmounts, is_valid_ratio
from placement.domain.errors import (
    CONCURRENT_UPDATE,
    INVENTORY_IN_USE,
    BadRequest,
    Conflict,
    NotFound,
)
from placement.selectors.providers import is_canonical
from placement.services.locking import (
    LockedProvider,
    check_generation,
    lock_provider,
    log_changes,
    raise_generation,
)

log = structlog.get_logger(__name__)

RESERVED_ALL_SINCE: Final = 26
GENERATION_CONFLICT: Final = "resource provider generation conflict"

# Custom classes stay until the inventory is written; standard ones cannot be deleted anyway.
CLASS_IDS = """
SELECT name, id FROM (
    SELECT name, id FROM placement_resource_class
     WHERE name = ANY (%(names)s::text[]) AND starts_with(name, 'CUSTOM_') FOR KEY SHARE) AS custom
 UNION ALL
SELECT name, id FROM placement_resource_class
 WHERE name = ANY (%(names)s::text[]) AND NOT starts_with(name, 'CUSTOM_')
"""
HELD = """
SELECT c.name, i.used FROM placement_inventory i
  JOIN placement_resource_class c ON c.id = i.resource_class_id
 WHERE i.provider_id = %s ORDER BY c.id
"""
CURRENT = """
SELECT c.name, i.total, i.reserved, i.min_unit, i.max_unit, i.step_size, i.allocation_ratio
  FROM placement_inventory i JOIN placement_resource_class c ON c.id = i.resource_class_id
 WHERE i.provider_id = %s ORDER BY c.id
"""
DELETE_OTHERS = """
DELETE FROM placement_inventory WHERE provider_id = %s AND resource_class_id <> ALL (%s::int[])
"""
UPSERT = """
INSERT INTO placement_inventory AS i (provider_id, resource_class_id, total, reserved, min_unit,
                                      max_unit, step_size, allocation_ratio)
SELECT %s, n.* FROM unnest(%s::int[], %s::int[], %s::int[], %s::int[], %s::int[], %s::int[],
                           %s::float8[]) AS n
 ORDER BY 2
    ON CONFLICT (provider_id, resource_class_id) DO UPDATE
   SET total = excluded.total, reserved = excluded.reserved, min_unit = excluded.min_unit,
       max_unit = excluded.max_unit, step_size = excluded.step_size,
       allocation_ratio = excluded.allocation_ratio, updated_at = statement_timestamp()
RETURNING i.resource_class_id, i.used, extract(epoch FROM i.updated_at)::float8
"""

AT_ONCE = """
SELECT generation, modified_at, excess, used
  FROM placement_put_inventories(%s::uuid, %s::int, %s::text[], %s::int[], %s::int[], %s::int[],
                                 %s::int[], %s::int[], %s::float8[], %s)
"""

Inventories = Mapping[str, InventoryAmounts]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenInventories:
    """What a provider has after a write."""

    generation: int
    by_class: Inventories
    modified_at: float | None = None


def amounts_of(document: Mapping[str, Any]) -> InventoryAmounts:  # Any: JSON that passed its schema
    """Return the amounts of an inventory as a client describes it."""
    fields = ("total", "reserved", "min_unit", "max_unit", "step_size")
    given = {name: int(document[name]) for name in fields if name in document}
    return InventoryAmounts(**given, allocation_ratio=float(document.get("allocation_ratio", 1.0)))


def check_capacity(uuid: str, inventories: Inventories, *, minor: int, verb: str) -> None:
    """Refuse inventories of which nothing could be allocated.

    Raises:
        BadRequest: names the class.

    Source: spec placement, section 4.3.
    """
    for name, amounts in inventories.items():
        what = f"Unable to {verb} inventory for resource provider {uuid}"
        if not is_valid_ratio(amounts.capacity_real):
            raise BadRequest(f"{what}: allocation_ratio of {name} is not a finite number")
        if settings.HEADROOM.placement.strict_inventory and amounts.min_unit > amounts.max_unit:
            raise BadRequest(f"{what}: min_unit of {name} is above max_unit")
        if amounts.capacity < 0 or (amounts.capacity == 0 and minor < RESERVED_ALL_SINCE):
            relation = (
                "greater than total"
                if minor >= RESERVED_ALL_SINCE
                else "greater than or equal to total"
            )
            raise BadRequest(
                f"{what}: Invalid inventory for '{name}': the reserved value is {relation}."
            )


def create_inventory(
    uuid: str, *, class_name: str, amounts: InventoryAmounts, minor: int
) -> WrittenInventories:
    """Add a class to what a provider has.

    Raises:
        NotFound: there is no such provider.
        BadRequest: the class is unknown, or nothing could be allocated.
        Conflict: the provider has the class already.
    """

    def write() -> WrittenInventories:
        provider = _writable(uuid)
        ids = class_ids([class_name], "Unable to create inventory")
        check_capacity(uuid, {class_name: amounts}, minor=minor, verb="create")
        if class_name in _held(provider):
            raise Conflict(
                f"Update conflict: inventory of {class_name} on {uuid} already exists, use PUT",
                wire_code=CONCURRENT_UPDATE,
            )
        return _write(provider, {class_name: amounts}, ids)

    return in_transaction(write)


def replace_inventories(
    uuid: str, *, inventories: Inventories, generation: int, minor: int
) -> WrittenInventories:
    """Make ``inventories`` all that a provider has.

    Raises:
        NotFound: there is no such provider.
        BadRequest: a class is unknown, or nothing of it could be allocated.
        Conflict: the generation moved on, or a class that would vanish is in use.
    """

    def write() -> WrittenInventories:
        provider = _writable(uuid)
        check_generation(provider, generation, GENERATION_CONFLICT)
        ids = class_ids(list(inventories), "Unknown resource class in inventory")
        check_capacity(uuid, inventories, minor=minor, verb="update")
        return replace_all(provider, inventories, ids)

    written = _replaced_at_once(uuid, inventories, generation, minor)
    return in_transaction(write) if written is None else written


def _replaced_at_once(
    uuid: str, inventories: Inventories, generation: int, minor: int
) -> WrittenInventories | None:
    """Write in one statement; return None where something is in the way, so that nothing was."""
    is_plain = bool(inventories) and is_canonical(uuid) and generation <= MAX_INTEGER
    if not is_plain or connection.in_atomic_block:
        return None
    listed = list(inventories.values())
    parameters = [
        uuid,
        generation,
        list(inventories),
        [amounts.total for amounts in listed],
        [amounts.reserved for amounts in listed],
        [amounts.min_unit for amounts in listed],
        [amounts.max_unit for amounts in listed],
        [amounts.step_size for amounts in listed],
        [amounts.allocation_ratio for amounts in listed],
        lock_timeout(),
    ]
    try:
        check_capacity(uuid, inventories, minor=minor, verb="update")
        rows = retried(lambda: fetch_prepared(AT_ONCE, parameters))
    except (BadRequest, IntegrityError):  # a class may go just then
        return None
    if not rows:
        return None
    new_generation, modified_at, excess, used = rows[0]
    names = list(inventories)
    for place, amount in zip(excess or (), used or (), strict=True):
        _warn(uuid, names[place - 1], inventories[names[place - 1]], amount)
    return WrittenInventories(
        generation=new_generation, by_class=inventories, modified_at=modified_at
    )


def replace_all(
    provider: LockedProvider, inventories: Inventories, ids: Mapping[str, int]
) -> WrittenInventories:
    """Replace a locked provider's inventories inside the caller's transaction.

    Raises:
        Conflict: a class that would vanish is in use.
    """
    in_use = [name for name, used in _held(provider).items() if used and name not in inventories]
    if in_use:
        raise _in_use(provider.uuid, in_use)
    run(DELETE_OTHERS, [provider.id, list(ids.values())])
    return _write(provider, inventories, ids)


def update_inventory(
    uuid: str, *, class_name: str, amounts: InventoryAmounts, generation: int, minor: int
) -> WrittenInventories:
    """Change one class of what a provider has.

    Raises:
        NotFound: there is no such provider or class.
        BadRequest: the provider has nothing of the class, or nothing could be allocated.
        Conflict: the generation moved on.
    """

    def write() -> WrittenInventories:
        provider = _writable(uuid)
        check_generation(provider, generation, GENERATION_CONFLICT)
        check_capacity(uuid, {class_name: amounts}, minor=minor, verb="update")
        ids = _known_class(class_name)
        if class_name not in _held(provider):
            raise BadRequest(
                f"No inventory record with resource class for resource provider {uuid}."
            )
        return _write(provider, {class_name: amounts}, ids)

    return in_transaction(write)


def delete_inventory(uuid: str, *, class_name: str) -> None:
    """Take one class from a provider.

    Raises:
        NotFound: there is no such provider, or it has nothing of the class.
        Conflict: the class is in use.
    """

    def write() -> None:
        provider = _writable(uuid)
        held = _held(provider)
        if class_name not in held:
            raise NotFound(f"No inventory of class {class_name} found for delete")
        if held[class_name]:
            raise Conflict(
                f"Unable to delete inventory of class {class_name}: Inventory for '{class_name}' "
                f"on resource provider '{uuid}' in use.",
                wire_code=CONCURRENT_UPDATE,
            )
        kept = class_ids([name for name in held if name != class_name], "")
        run(DELETE_OTHERS, [provider.id, list(kept.values())])
        _finish(provider)

    in_transaction(write)


def delete_inventories(uuid: str) -> None:
    """Take everything from a provider.

    Raises:
        NotFound: there is no such provider.
        Conflict: a class is in use.
    """

    def write() -> None:
        replace_all(_writable(uuid), {}, {})

    in_transaction(write)


def _writable(uuid: str) -> LockedProvider:
    provider = lock_provider(uuid)
    if provider.takes_inventory_from_host:
        raise Conflict(f"The inventories of {uuid} are those of its host and cannot be written.")
    return provider


def class_ids(names: Sequence[str], message: str) -> dict[str, int]:
    """Return the ids of classes by name; they cannot be deleted before the transaction ends.

    Args:
        names: The classes.
        message: What an error starts with.

    Raises:
        BadRequest: a class is unknown.
    """
    found = run(CLASS_IDS, {"names": list(names)}).fetchall() if names else []
    ids = {row[0]: row[1] for row in found}
    for name in names:
        if name not in ids:
            raise BadRequest(f"{message}: No such resource class {name}.")
    return ids


def current_amounts(provider: LockedProvider) -> dict[str, InventoryAmounts]:
    """Return what a locked provider has, by class."""
    return {
        row[0]: InventoryAmounts(
            total=row[1],
            reserved=row[2],
            min_unit=row[3],
            max_unit=row[4],
            step_size=row[5],
            allocation_ratio=row[6],
        )
        for row in run(CURRENT, [provider.id]).fetchall()
    }


def _known_class(name: str) -> dict[str, int]:
    try:
        return class_ids([name], "Unable to update inventory")
    except BadRequest as error:
        raise NotFound(f"No such resource class {name}.") from error


def _held(provider: LockedProvider) -> dict[str, int]:
    return {row[0]: row[1] for row in run(HELD, [provider.id]).fetchall()}


def _write(
    provider: LockedProvider, inventories: Inventories, ids: Mapping[str, int]
) -> WrittenInventories:
    modified_at = None
    if inventories:
        listed = list(inventories.values())
        rows = run(
            UPSERT,
            [
                provider.id,
                [ids[name] for name in inventories],
                [amounts.total for amounts in listed],
                [amounts.reserved for amounts in listed],
                [amounts.min_unit for amounts in listed],
                [amounts.max_unit for amounts in listed],
                [amounts.step_size for amounts in listed],
                [amounts.allocation_ratio for amounts in listed],
            ],
        ).fetchall()
        modified_at = max(row[2] for row in rows)
        _warn_of_excess(provider, inventories, ids, {row[0]: row[1] for row in rows})
    return WrittenInventories(
        generation=_finish(provider), by_class=inventories, modified_at=modified_at
    )


def _warn_of_excess(
    provider: LockedProvider,
    inventories: Inventories,
    ids: Mapping[str, int],
    used: Mapping[int, int],
) -> None:
    for name, amounts in inventories.items():
        if used[ids[name]] > amounts.capacity_real:
            _warn(provider.uuid, name, amounts, used[ids[name]])


def _warn(uuid: str, name: str, amounts: InventoryAmounts, used: int) -> None:
    log.warning(
        "placement_inventory_below_usage",
        provider=uuid,
        resource_class=name,
        capacity=amounts.capacity,
        used=used,
    )


def _finish(provider: LockedProvider) -> int:
    log_changes([provider.root_id])
    return raise_generation(provider)


def _in_use(uuid: str, names: Sequence[str]) -> Conflict:
    listed = ", ".join(names)
    message = f"update conflict: Inventory for '{listed}' on resource provider '{uuid}' in use."
    return Conflict(message, wire_code=INVENTORY_IN_USE)
