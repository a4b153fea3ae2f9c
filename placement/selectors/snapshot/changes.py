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
#: row, which may be the only one. Key and kind of a tree are one number in an array, whose length
#: the server guesses always alike: if what it expects to pay grew with the log, it would find its
#: plan for all requests dear, and make one for every single request until it knows better.
_CHANGES: Final = f"""
SELECT changed.moment, changed.tree >> 2, (changed.tree & 3)::int, amount.provider_id,
       amount.resource_class_id, amount.used, amount.generation, amount.modified_at
  FROM (SELECT {MOMENT} AS moment,
               unnest(coalesce((SELECT array_agg(DISTINCT root_id << 2 | kind)
                                  FROM ({{unseen}}) AS unseen), ARRAY[NULL::bigint])) AS tree
       ) AS changed
  LEFT JOIN LATERAL (
       SELECT i.provider_id, i.resource_class_id, i.used, p.generation,
              date_part('epoch', p.updated_at) AS modified_at
         FROM placement_provider p JOIN placement_inventory i ON i.provider_id = p.id
        WHERE p.root_id = changed.tree >> 2
       OFFSET 0) AS amount ON changed.tree & 3 = {Change.Kind.USAGE.value}
"""  # noqa: S608 - constants only
CHANGES: Final = _CHANGES.format(unseen=_BEGAN)
CHANGES_OF_RUNNING: Final = _CHANGES.format(unseen=f"{_BEGAN} UNION ALL {_RAN}")
_USAGE, _TREE, _NAMES = (kind.value for kind in Change.Kind)
_IS_HELD: Final = _NAMES + 1
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
    # Where one statement asks for both, held amounts have no moment.
    moment = moment_of(rows[0][0] or next(row[0] for row in rows if row[0] is not None))
    trees: set[int] = set()
    usage_trees: set[int] = set()
    has_new_names = False
    usage: list[tuple[int, int, int]] = []
    versions: list[tuple[int, float]] = []
    held: dict[int, HeldAmounts] = {}
    for _, root, kind, provider, class_id, amount, generation, modified_at in rows:
        if kind == _USAGE:
            usage_trees.add(root)
            if provider is not None:
                usage.append((provider, class_id, amount))
                versions.append((generation, modified_at))
        elif kind == _TREE:
            trees.add(root)
        elif kind == _IS_HELD:
            held[provider] = held_of((provider, amount, class_id))
        elif kind == _NAMES:
            has_new_names = True
    return Changes(
        moment=moment,
        trees=frozenset(trees),
        usage_trees=frozenset(usage_trees - trees if trees else usage_trees),
        has_new_names=has_new_names,
        usage=usage,
        versions=versions,
        held=held,
    )
