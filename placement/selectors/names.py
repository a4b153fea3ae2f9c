"""Reading traits and resource classes (spec placement, 4.6, 4.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from core.prepared import fetch

TRAITS = "SELECT t.name, extract(epoch FROM t.created_at)::float8 FROM placement_trait t"
USED = "EXISTS (SELECT FROM placement_provider_trait pt WHERE pt.trait_id = t.id)"
ONE_TRAIT = f"{TRAITS} WHERE t.name = %s"
CLASSES = "SELECT c.name, extract(epoch FROM c.updated_at)::float8 FROM placement_resource_class c"


class Named(NamedTuple):
    """A trait or a class, and when it was made or renamed."""

    name: str
    modified_at: float


def list_traits(
    *, names: Sequence[str] | None = None, prefix: str = "", is_used: bool | None = None
) -> list[Named]:
    """Return traits by id.

    Args:
        names: Only these; all when ``None``.
        prefix: Only those that start with it.
        is_used: Only those that some provider has, or that none has.
    """
    conditions, parameters = [], []
    if names is not None:
        conditions.append("t.name = ANY (%s::text[])")
        parameters.append(list(names))
    if prefix:
        conditions.append("starts_with(t.name, %s)")
        parameters.append(prefix)  # type: ignore[arg-type]
    if is_used is not None:
        conditions.append(USED if is_used else f"NOT {USED}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return _named(f"{TRAITS}{where} ORDER BY t.id", parameters)


def find_trait(name: str) -> Named | None:
    """Return a trait, or nothing."""
    return next(iter(_named(ONE_TRAIT, [name])), None)


def list_classes() -> list[Named]:
    """Return resource classes by id: the standard ones first."""
    return _named(f"{CLASSES} ORDER BY c.id", [])


def find_class(name: str) -> Named | None:
    """Return a resource class, or nothing."""
    return next(iter(_named(f"{CLASSES} WHERE c.name = %s", [name])), None)


def _named(sql: str, parameters: list[Any]) -> list[Named]:  # Any: SQL parameters
    return [Named(*row) for row in fetch(sql, parameters)]
