"""Creating, changing and deleting providers (spec placement, 4.2, 5.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from django.db import IntegrityError

from capacity.locks import LockSpace, take_lock
from core.prepared import run
from placement.database import in_transaction
from placement.domain.errors import (
    DUPLICATE_NAME,
    PROVIDER_HAS_CHILDREN,
    PROVIDER_IN_USE,
    BadRequest,
    Conflict,
    NotFound,
)
from placement.selectors.providers import ShownProvider, get_provider, is_canonical
from placement.services.locking import LockedProvider, lock_provider, log_changes

#: Parent and root links change under this lock only, so that two moves cannot form a loop.
TREES: Final = "provider trees"
REPARENTING_SINCE: Final = 37

INSERT = """
INSERT INTO placement_provider (id, uuid, name, parent_id, root_id)
SELECT n.id, %(uuid)s::uuid, %(name)s, %(parent)s::bigint, coalesce(%(root)s::bigint, n.id)
  FROM (SELECT nextval(pg_get_serial_sequence('placement_provider', 'id')) AS id) n
RETURNING root_id
"""
PARENT = """
SELECT id, root_id FROM placement_provider
 WHERE uuid = %s::uuid AND origin <> 'upstream' FOR NO KEY UPDATE
"""
SUBTREE = """
WITH RECURSIVE below (id) AS (
    SELECT %s::bigint
     UNION
    SELECT p.id FROM placement_provider p JOIN below b ON p.parent_id = b.id)
SELECT id FROM below
"""
LOCK_ALL = "SELECT id FROM placement_provider WHERE id = ANY (%s) ORDER BY id FOR NO KEY UPDATE"
RENAME = """
UPDATE placement_provider SET name = %s, updated_at = statement_timestamp() WHERE id = %s
"""
MOVE = """
UPDATE placement_provider
   SET root_id = %(root)s, updated_at = statement_timestamp(),
       parent_id = CASE WHEN id = %(moved)s THEN %(parent)s::bigint ELSE parent_id END
 WHERE id = ANY (%(subtree)s)
"""
DELETE_LOCK = """
SELECT p.id, p.uuid::text, p.root_id, p.origin,
       EXISTS (SELECT FROM placement_provider c WHERE c.parent_id = p.id),
       EXISTS (SELECT FROM placement_allocation a WHERE a.provider_id = p.id)
  FROM placement_provider p WHERE p.uuid = %s::uuid
"""
DELETE_LINKS = (
    "DELETE FROM placement_provider_trait WHERE provider_id = %s",
    "DELETE FROM placement_provider_aggregate WHERE provider_id = %s",
    "DELETE FROM placement_inventory WHERE provider_id = %s",
    "DELETE FROM placement_provider WHERE id = %s",
)


@dataclass(frozen=True, slots=True)
class Keep:
    """The parent of a provider stays as it is."""


KEEP: Final = Keep()


def create_provider(*, name: str, uuid: str | None, parent_uuid: str | None) -> ShownProvider:
    """Create a provider without inventory.

    Args:
        name: Unique name.
        uuid: Canonical UUID; made up when ``None``.
        parent_uuid: Canonical UUID of the parent; a root when ``None``.

    Raises:
        BadRequest: the parent does not exist, or is the provider itself.
        Conflict: the name or the UUID is taken.
    """
    uuid = uuid or str(uuid4())
    if uuid == parent_uuid:
        raise BadRequest(
            f'Unable to create resource provider "{name}", {uuid}: parent provider UUID cannot be '
            "same as UUID. Please set parent provider UUID to None if there is no parent."
        )

    def write() -> None:
        parent_id, root_id = _parent(parent_uuid) if parent_uuid else (None, None)
        values = {"uuid": uuid, "name": name, "parent": parent_id, "root": root_id}
        log_changes(run(INSERT, values).fetchone() or ())

    try:
        in_transaction(write)
    except IntegrityError as error:
        raise _duplicate(error, name=name, uuid=uuid) from error
    return get_provider(uuid)


def update_provider(
    uuid: str, *, name: str, parent_uuid: str | Keep | None, minor: int
) -> ShownProvider:
    """Rename a provider, or move it with its subtree to another parent.

    Args:
        uuid: As in the path.
        name: New name.
        parent_uuid: Canonical UUID of the new parent, ``None`` to make it a root.
        minor: Negotiated version; moves of any kind are allowed since 1.37.

    Raises:
        NotFound: there is no such provider.
        BadRequest: the parent is unknown, would form a loop, or may not be changed.
        Conflict: the name is taken, or the provider stands for a host.
    """

    def write() -> None:
        if not isinstance(parent_uuid, Keep):
            take_lock(LockSpace.PROVIDER_TREES, [TREES])
        provider = lock_provider(uuid)
        if not isinstance(parent_uuid, Keep):
            _move(provider, parent_uuid, minor=minor)
        if name != provider.name:
            _refuse_for_host(provider, "cannot change the name of a kvm hypervisor")
            run(RENAME, [name, provider.id])
        log_changes([provider.root_id])

    try:
        in_transaction(write)
    except IntegrityError as error:
        raise Conflict(
            f"Conflicting resource provider {name} already exists.", wire_code=DUPLICATE_NAME
        ) from error
    return get_provider(uuid)


def delete_provider(uuid: str) -> None:
    """Delete a provider with its inventories and links.

    Raises:
        NotFound: there is no such provider.
        Conflict: it has children or allocations, or stands for a host.
    """

    def write() -> None:
        try:
            provider = lock_provider(uuid)
        except NotFound as error:
            raise NotFound(f"No resource provider with uuid {uuid} found for delete") from error
        row: Any = run(DELETE_LOCK, [uuid]).fetchone()  # Any: the row is locked, so it is there
        has_children, has_allocations = row[4], row[5]
        if has_children:
            raise _has_children(uuid)
        if has_allocations:
            raise Conflict(
                f"Unable to delete resource provider {uuid}: Resource provider has allocations.",
                wire_code=PROVIDER_IN_USE,
            )
        _refuse_for_host(provider, "cannot delete a kvm hypervisor")
        for statement in DELETE_LINKS:
            run(statement, [provider.id])
        log_changes([provider.root_id])

    try:
        in_transaction(write)
    except IntegrityError as error:  # a child that was being created while we looked
        raise Conflict(
            f"Unable to delete parent resource provider {uuid}: It has child resource providers.",
            wire_code=PROVIDER_HAS_CHILDREN,
        ) from error


def _parent(uuid: str) -> tuple[int, int]:
    take_lock(LockSpace.PROVIDER_TREES, [TREES])
    row = run(PARENT, [uuid]).fetchone() if is_canonical(uuid) else None
    if row is None:
        message = "parent provider UUID does not exist."
        raise BadRequest(f"{message} Got: {uuid}")
    return int(row[0]), int(row[1])


def _move(provider: LockedProvider, parent_uuid: str | None, *, minor: int) -> None:
    parent_id, root_id = _parent(parent_uuid) if parent_uuid else (None, provider.id)
    if parent_id == provider.parent_id:
        return
    what = f'Unable to save resource provider "{provider.name}", {provider.uuid}'
    if provider.parent_id is not None and minor < REPARENTING_SINCE:
        kind = "un-parenting" if parent_id is None else "re-parenting"
        raise BadRequest(f"{what}: {kind} a provider is not currently allowed.")
    _refuse_for_host(provider, "cannot change the parent of a kvm hypervisor")
    subtree = [row[0] for row in run(SUBTREE, [provider.id]).fetchall()]
    if parent_id in subtree:
        raise BadRequest(f"{what}: creating loop in the provider tree is not allowed.")
    run(LOCK_ALL, [subtree])
    run(
        MOVE,
        {"root": root_id, "moved": provider.id, "parent": parent_id, "subtree": subtree},
    )
    log_changes([root_id])


def _refuse_for_host(provider: LockedProvider, what: str) -> None:
    if provider.is_host:
        raise Conflict(f"{what} resource provider: {provider.uuid} is a host of this region.")


def _has_children(uuid: str) -> Conflict:
    message = f"Unable to delete parent resource provider {uuid}: It has child resource providers."
    return Conflict(message, wire_code=PROVIDER_HAS_CHILDREN)


def _duplicate(error: IntegrityError, *, name: str, uuid: str) -> Conflict:
    diagnostics = getattr(error.__cause__, "diag", None)
    constraint = getattr(diagnostics, "constraint_name", "") or ""
    what = f"name: {name}" if "name" in constraint else f"uuid: {uuid}"
    return Conflict(
        f"Conflicting resource provider {what} already exists.", wire_code=DUPLICATE_NAME
    )
