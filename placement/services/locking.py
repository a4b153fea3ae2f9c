"""What every write of providers starts and ends with: the row lock, the generation, the change log.

Lock order: consumers by uuid, then providers by id. Writes of one provider lock its row first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from core.prepared import run
from placement.domain.errors import CONCURRENT_UPDATE, Conflict
from placement.models import Change, InventorySource, Origin
from placement.selectors.providers import is_canonical, missing_provider

LOCK_SQL = """
SELECT id, uuid::text, name, generation, root_id, parent_id, origin, inventory_source
  FROM placement_provider WHERE uuid = %s::uuid AND origin <> 'upstream' FOR NO KEY UPDATE
"""
BUMP_SQL = """
UPDATE placement_provider SET generation = generation + 1, updated_at = statement_timestamp()
 WHERE id = %s RETURNING generation, updated_at
"""
LOG_SQL = "INSERT INTO placement_change (root_id, kind) SELECT unnest(%s::bigint[]), %s"


class LockedProvider(NamedTuple):
    """A provider whose row this transaction holds."""

    id: int
    uuid: str
    name: str
    generation: int
    root_id: int
    parent_id: int | None
    origin: str
    inventory_source: str

    @property
    def is_host(self) -> bool:
        """Whether the provider stands for a host of the region."""
        return self.origin == Origin.HOST

    @property
    def takes_inventory_from_host(self) -> bool:
        """Whether clients may not write its inventories."""
        return self.is_host and self.inventory_source == InventorySource.HOST


def lock_provider(uuid: str) -> LockedProvider:
    """Lock and return a provider.

    Args:
        uuid: As in the path.

    Raises:
        NotFound: there is none.
    """
    row = run(LOCK_SQL, [uuid]).fetchone() if is_canonical(uuid) else None
    if row is None:
        raise missing_provider(uuid)
    return LockedProvider(*row)


def check_generation(provider: LockedProvider, given: int, message: str) -> None:
    """Refuse a write that was made for another state of the provider.

    Raises:
        Conflict: the generation moved on.
    """
    if provider.generation != given:
        raise Conflict(message, wire_code=CONCURRENT_UPDATE)


def raise_generation(provider: LockedProvider) -> int:
    """Raise a provider's generation by one and return it."""
    row = run(BUMP_SQL, [provider.id]).fetchone()
    return int(row[0]) if row else provider.generation


def log_changes(root_ids: Iterable[int], kind: Change.Kind = Change.Kind.TREE) -> None:
    """Tell readers in other processes which trees changed."""
    run(LOG_SQL, [sorted(set(root_ids)), int(kind)])
