"""What changed since a snapshot of the database, asked in one statement (spec placement, 9.4).

A snapshot of the database does not show transactions that began later and those that were running.
The rows of the change log that they wrote are exactly those that a reader has not applied yet,
whatever the order in which they commit. Amounts that were allocated since come with the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.changes import changed_rows
from core.prepared import fetch_again
from journal.history import MOMENT, Moment, moment_of
from placement.models import Change
from placement.selectors.held import HELD_AMOUNTS, PROVIDER_OF_ROOM, HeldAmounts, held_of

#: What the log is asked for stands in queries of its own, so that the server cannot look how much
#: of it that is: it would make a plan for every single request. The upper bound tells it that it is
#: little, and transactions that were running are looked up one by one.
_BEGAN: Final = """
SELECT root_id, kind FROM placement_change
 WHERE xid BETWEEN (SELECT %s::bigint) AND 9223372036854775806
"""
_RAN: Final = """
SELECT found.root_id, found.kind FROM unnest((SELECT %s::bigint[])) AS running (xid)
 CROSS JOIN LATERAL (
       SELECT root_id, kind FROM placement_change WHERE xid = running.xid OFFSET 0) AS found
"""
#: A row for each changed amount, and for each changed tree without any; the moment stands in each
#: row, which may be the only one.
_CHANGES: Final = f"""
SELECT now.moment, changed.root_id, changed.kind, amount.provider_id, amount.resource_class_id,
       amount.used, amount.generation, amount.modified_at
  FROM (SELECT {MOMENT} AS moment OFFSET 0) AS now
  LEFT JOIN (SELECT root_id, max(kind)::int AS kind FROM ({{unseen}}) AS unseen
              GROUP BY root_id) AS changed ON true
  LEFT JOIN LATERAL (
       SELECT i.provider_id, i.resource_class_id, i.used, p.generation,
              date_part('epoch', p.updated_at) AS modified_at
         FROM placement_provider p JOIN placement_inventory i ON i.provider_id = p.id
        WHERE p.root_id = changed.root_id
       OFFSET 0) AS amount ON changed.kind = {Change.Kind.USAGE.value}
"""  # noqa: S608 - constants only
CHANGES: Final = _CHANGES.format(unseen=_BEGAN)
CHANGES_OF_RUNNING: Final = _CHANGES.format(unseen=f"{_BEGAN} UNION ALL {_RAN}")
_IS_HELD: Final = max(Change.Kind.values) + 1
CHANGES_AND_HELD: Final = f"""
{CHANGES_OF_RUNNING}
UNION ALL
SELECT NULL, NULL, {_IS_HELD}, h.id, h.vcpus::int, h.memory_mib, NULL, NULL
  FROM (SELECT root.id, {HELD_AMOUNTS}
          FROM {changed_rows("capacity_hostcapacity", "room", since="%s")} {PROVIDER_OF_ROOM}
       ) AS h (id, memory_mib, vcpus)
"""  # noqa: S608 - constants only


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
    if with_held:
        rows = fetch_again(CHANGES_AND_HELD, (xmax, f"{{{running}}}", since))
    elif running:
        rows = fetch_again(CHANGES_OF_RUNNING, (xmax, f"{{{running}}}"))
    else:
        rows = fetch_again(CHANGES, (xmax,))
    moment = moment_of(next(row[0] for row in rows if row[0] is not None))
    kinds: dict[int, int] = {}
    usage: list[tuple[int, int, int]] = []
    versions: list[tuple[int, float]] = []
    held: dict[int, HeldAmounts] = {}
    for _, root, kind, provider, class_id, amount, generation, modified_at in rows:
        if kind == _IS_HELD:
            held[provider] = held_of((provider, amount, class_id))
        elif root is not None:
            kinds[root] = kind
            if provider is not None:
                usage.append((provider, class_id, amount))
                versions.append((generation, modified_at))
    if not kinds and not held:
        return Changes(moment=moment)
    return Changes(
        moment=moment,
        trees=frozenset(key for key, kind in kinds.items() if kind == Change.Kind.TREE),
        usage_trees=frozenset(key for key, kind in kinds.items() if kind == Change.Kind.USAGE),
        has_new_names=Change.Kind.NAMES in kinds.values(),
        usage=usage,
        versions=versions,
        held=held,
    )
