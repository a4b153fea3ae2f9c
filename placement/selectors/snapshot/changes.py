"""What changed since a snapshot of the database, asked in one statement (spec placement, 9.4).

A snapshot of the database does not show transactions that began later and those that were running.
The rows of the change log that they wrote are exactly those that a reader has not applied yet,
whatever the order in which they commit. Amounts that were allocated since come with the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.changes import changed_rows
from core.prepared import fetch_prepared
from journal.history import MOMENT, Moment, moment_of
from placement.models import Change
from placement.selectors.held import HELD_AMOUNTS, PROVIDER_OF_ROOM, HeldAmounts, held_of

CHANGES = f"""
SELECT c.part, CASE c.part WHEN 0 THEN {MOMENT} END, c.kind, c.key, c.class_id, c.used,
       c.generation, c.modified_at
  FROM placement_changes_since(%s::bigint, %s::bigint[]) AS c
"""  # noqa: S608 - constants only
CHANGES_AND_HELD = f"""
{CHANGES}
UNION ALL
SELECT 3, NULL, h.vcpus::int, h.id, NULL, h.memory_mib, NULL, NULL
  FROM (SELECT root.id, {HELD_AMOUNTS}
          FROM {changed_rows("capacity_hostcapacity", "room", since="%s")} {PROVIDER_OF_ROOM}
       ) AS h (id, memory_mib, vcpus)
"""  # noqa: S608 - constants only
_IS_NOW, _IS_TREE, _IS_USAGE, _IS_HELD = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a snapshot of the database does not show.

    Attributes:
        moment: When this was read.
        trees: Keys of the roots of trees of which more than usage changed.
        usage_trees: Keys of the roots of trees of which only allocated amounts changed.
        has_new_names: Whether traits or classes came, went or were renamed.
        usage: Key of the provider, key of the class and allocated amount, of ``usage_trees``.
        versions: Generation of the provider of each ``usage``, and its newest change in seconds
            since 1970.
        held: Key of the provider and what is held there, where that was asked for.
    """

    moment: Moment
    trees: frozenset[int] = frozenset()
    usage_trees: frozenset[int] = frozenset()
    has_new_names: bool = False
    usage: Sequence[tuple[int, int, int]] = ()
    versions: Sequence[tuple[int, float]] = ()
    held: Mapping[int, HeldAmounts] = field(default_factory=dict)

    @property
    def is_usage_only(self) -> bool:
        """Whether allocated amounts are all that changed."""
        return not self.trees and not self.has_new_names

    @property
    def count(self) -> int:
        """How many trees changed."""
        return len(self.trees) + len(self.usage_trees)


def read_changes(since: str, *, with_held: bool = False) -> Changes:
    """Return what changed since a snapshot of the database.

    Args:
        since: Text of the ``pg_snapshot`` that was read last.
        with_held: Whether to read held capacity of hosts as well.
    """
    _, xmax, running = since.split(":")
    unseen = (xmax, f"{{{running}}}")
    if with_held:
        rows = fetch_prepared(CHANGES_AND_HELD, (*unseen, since))
    else:
        rows = fetch_prepared(CHANGES, unseen)
    moment = moment_of(next(row[1] for row in rows if row[0] == _IS_NOW))
    if len(rows) == 1:
        return Changes(moment=moment)
    kinds = {row[3]: row[2] for row in rows if row[0] == _IS_TREE}
    return Changes(
        moment=moment,
        trees=frozenset(key for key, kind in kinds.items() if kind == Change.Kind.TREE),
        usage_trees=frozenset(key for key, kind in kinds.items() if kind == Change.Kind.USAGE),
        has_new_names=Change.Kind.NAMES in kinds.values(),
        usage=[row[3:6] for row in rows if row[0] == _IS_USAGE],
        versions=[row[6:] for row in rows if row[0] == _IS_USAGE],
        held={row[3]: held_of((row[3], row[5], row[2])) for row in rows if row[0] == _IS_HELD},
    )
