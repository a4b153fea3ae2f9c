"""Why VMs found no host lately, by flavor group (spec scheduling, 12.3)."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from capacity.ledger.in_flight_end import INTENTS_WITHOUT_VM
from journal.statements import fetch_rows

SCANNED_DECISIONS = 20_000
"""How many of the newest decisions are looked at, refused or not: a bound on the cost."""

REFUSALS = """
SELECT flavor_group_name, outcome_class,
       coalesce(jsonb_path_query_first(
           removals, '$[*] ? (@.removed > 0 && @.remaining == 0).step') #>> '{}', ''),
       count(*)
  FROM (SELECT flavor_group_name, outcome_class, removals, is_successful, intent
          FROM capacity_schedulingdecision ORDER BY id DESC LIMIT %(scanned)s) AS recent
 WHERE NOT is_successful AND NOT intent = ANY(%(internal)s)
 GROUP BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRefusals:
    """VMs of a flavor group that found no host.

    Attributes:
        group: The flavor group; empty for flavors in none.
        refused: How many runs found no host.
        classes: (class of commitment tracking, runs), most first; the class is empty where
            tracking is off or the flavor is in no group.
        filters: (filter that removed the last host, runs), most first; empty where no filter did:
            the run failed, or others took the hosts.
    """

    group: str
    refused: int
    classes: tuple[tuple[str, int], ...]
    filters: tuple[tuple[str, int], ...]


def refusals_by_group(*, scanned: int = SCANNED_DECISIONS) -> tuple[GroupRefusals, ...]:
    """Return why VMs were refused in the newest decisions, the group with most refusals first.

    Runs for reservations and probes do not count.

    Args:
        scanned: How many of the newest decisions are looked at.
    """
    classes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    filters: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for group, outcome_class, step, count in fetch_rows(
        REFUSALS, {"scanned": scanned, "internal": sorted(INTENTS_WITHOUT_VM)}
    ):
        classes[group][outcome_class] += count
        filters[group][step] += count
    found = [
        GroupRefusals(
            group=group,
            refused=counts.total(),
            classes=_ranked(counts),
            filters=_ranked(filters[group]),
        )
        for group, counts in classes.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.refused, one.group)))


def _ranked(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
