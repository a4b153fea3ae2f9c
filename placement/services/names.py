"""Writing traits and resource classes (spec placement, 4.6, 4.7)."""

from __future__ import annotations

from django.db import IntegrityError

from core.prepared import Row, run
from placement.database import in_transaction
from placement.domain.errors import BadRequest, Conflict, NotFound
from placement.models import Change
from placement.models.changes import ALL_ROOTS
from placement.models.names import CUSTOM_PREFIX
from placement.services.locking import log_changes

ADD_TRAIT = "INSERT INTO placement_trait (name) VALUES (%s) ON CONFLICT DO NOTHING"
DELETE_TRAIT = "DELETE FROM placement_trait WHERE name = %s"
TRAIT_IN_USE = """
SELECT EXISTS (SELECT FROM placement_provider_trait l WHERE l.trait_id = t.id)
  FROM placement_trait t WHERE t.name = %s FOR UPDATE
"""
ADD_CLASS = """
INSERT INTO placement_resource_class (name)
SELECT %(name)s::text
 WHERE NOT EXISTS (SELECT FROM placement_resource_class WHERE name = %(name)s)
    ON CONFLICT DO NOTHING
"""
RENAME_CLASS = """
UPDATE placement_resource_class SET name = %s, updated_at = statement_timestamp() WHERE name = %s
"""
DELETE_CLASS = "DELETE FROM placement_resource_class WHERE name = %s"
CLASS_IN_USE = """
SELECT EXISTS (SELECT FROM placement_inventory i WHERE i.resource_class_id = c.id)
  FROM placement_resource_class c WHERE c.name = %s FOR UPDATE
"""


def ensure_trait(name: str) -> bool:
    """Create a trait unless it is there, and return whether it is new."""
    return in_transaction(lambda: _added(ADD_TRAIT, [name]))


def delete_trait(name: str) -> None:
    """Delete a custom trait.

    Raises:
        BadRequest: the trait is standard.
        NotFound: there is no such trait.
        Conflict: a provider has it.
    """
    if not name.startswith(CUSTOM_PREFIX) and _exists(TRAIT_IN_USE, name):
        raise BadRequest(f"Cannot delete standard trait {name}.")
    in_use = Conflict(f"The trait {name} is in use by a resource provider.")

    def write() -> None:
        row = run(TRAIT_IN_USE, [name]).fetchone()
        if row is None:
            raise NotFound(f"No such trait(s): {name}.")
        if row[0]:
            raise in_use
        run(DELETE_TRAIT, [name])
        log_changes([ALL_ROOTS], Change.Kind.NAMES)

    try:
        in_transaction(write)
    except IntegrityError as error:  # a provider that got it while we looked
        raise in_use from error


def ensure_class(name: str) -> bool:
    """Create a resource class unless it is there, and return whether it is new."""
    return in_transaction(lambda: _added(ADD_CLASS, {"name": name}))


def create_class(name: str) -> None:
    """Create a resource class.

    Raises:
        Conflict: it is there already.
    """
    if not ensure_class(name):
        raise Conflict(f"Conflicting resource class already exists: {name}")


def rename_class(name: str, new_name: str) -> None:
    """Give a custom resource class another name.

    Raises:
        NotFound: there is no such class.
        BadRequest: it is standard.
        Conflict: the new name is taken.
    """

    def write() -> None:
        if not _exists(CLASS_IN_USE, name):
            raise NotFound(f"No such resource class {name}.")
        if not name.startswith(CUSTOM_PREFIX):
            raise BadRequest(f"Cannot update standard resource class {name}")
        run(RENAME_CLASS, [new_name, name])
        log_changes([ALL_ROOTS], Change.Kind.NAMES)

    try:
        in_transaction(write)
    except IntegrityError as error:
        raise Conflict(f"Resource class already exists: {new_name}") from error


def delete_class(name: str) -> None:
    """Delete a custom resource class.

    Raises:
        NotFound: there is no such class.
        BadRequest: it is standard.
        Conflict: a provider has inventory of it.
    """
    in_use = Conflict(
        f"Error in delete resource class: Cannot delete resource class {name}. Class is in use in "
        "inventory."
    )

    def write() -> None:
        row = run(CLASS_IN_USE, [name]).fetchone()
        if row is None:
            raise NotFound(f"No such resource class {name}.")
        if not name.startswith(CUSTOM_PREFIX):
            raise BadRequest(
                f"Error in delete resource class: Cannot delete standard resource class {name}"
            )
        if row[0]:
            raise in_use
        run(DELETE_CLASS, [name])
        log_changes([ALL_ROOTS], Change.Kind.NAMES)

    try:
        in_transaction(write)
    except IntegrityError as error:  # inventory that was written while we looked
        raise in_use from error


def _added(sql: str, parameters: list[str] | dict[str, str]) -> bool:
    if not run(sql, parameters).rowcount:
        return False
    log_changes([ALL_ROOTS], Change.Kind.NAMES)
    return True


def _exists(sql: str, name: str) -> bool:
    row: Row | None = run(sql, [name]).fetchone()
    return row is not None
