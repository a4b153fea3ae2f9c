"""What scrapes read of the feed (docs/feed.md) and of agents (docs/hosts.md)."""

from __future__ import annotations

from typing import Any, Final

from django.db.backends.utils import CursorWrapper
from prometheus_client import Counter

from journal.kept_sums import Rows
from journal.metrics import metric_name, once_per_scrape
from journal.readings import Reading, Scraped, gauge, total

REJECTED: Final = Counter(
    metric_name("host_requests_rejected_total"),
    "Requests of agents that were refused, by code.",
    ["code"],
)

PASSES: Final = """
SELECT kind, extract(epoch FROM clock_timestamp() - listed_at)::float8, passes, failures,
       (refusal <> '')::int
  FROM hosts_feedpass ORDER BY kind
"""

HEARD: Final = """
SELECT (SELECT json_build_array(
                   count(*), coalesce(max(extract(epoch FROM clock_timestamp() - seen_at)), 0))
          FROM hosts_feedhint),
       (SELECT coalesce(json_agg(json_build_array(
                   name, extract(epoch FROM clock_timestamp() - beaten_at)) ORDER BY name), '[]')
          FROM journal_heartbeat WHERE name IN ('listener', 'notification'))
"""


def _heard(cursor: CursorWrapper) -> tuple[Any, Any]:  # Any: JSON
    """Return what waits of the hints, and what is known of the listener."""
    cursor.execute(HEARD)
    hints, signs = cursor.fetchone() or ((), ())
    return hints, signs


def _hints(cursor: CursorWrapper) -> Rows:
    return [once_per_scrape(_heard, cursor)[0]]


def _signs(cursor: CursorWrapper) -> Rows:
    signs: Rows = once_per_scrape(_heard, cursor)[1]
    return signs


FEED: Final = Scraped(
    "feed",
    Reading(
        PASSES,
        ("kind",),
        (
            gauge(
                "feed_list_age_seconds",
                "Since when changes of the cloud are unknown, by kind of lists.",
            ),
            total("feed_passes", "Passes of the feed that were completed."),
            gauge("feed_failures", "Passes in a row that were not completed."),
            gauge("feed_refused", "1 when the last completed pass did not believe a list."),
        ),
    ),
    Reading(
        _hints,
        (),
        (
            gauge("feed_hints_waiting", "Hints of notifications that no pass has looked at."),
            gauge("feed_hint_age_seconds", "How long the oldest of them waits; 0 without one."),
        ),
    ),
    Reading(
        _signs,
        ("sign",),
        (
            gauge(
                "feed_listener_silence_seconds",
                "Time since the listener was last alive, and since it last heard a hint.",
            ),
        ),
    ),
    is_of_primary=True,
)

LIFECYCLES: Final = """
SELECT kind, phase, (trouble <> '')::int::text AS has_trouble, count(*)
  FROM hosts_hostlifecycle WHERE closed_at IS NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
LIVENESS: Final = """
SELECT agent.host_name, coalesce(host.zone, '') AS zone, lease.liveness, 1 AS one
  FROM hosts_hostlease AS lease
  JOIN hosts_hostagent AS agent ON agent.id = lease.agent_id
  LEFT JOIN hosts_host AS host ON host.name = agent.host_name
 WHERE agent.decommissioned_at IS NULL AND EXISTS (
       SELECT FROM hosts_hostkey AS key WHERE key.agent_id = agent.id AND key.state = 'active')
 ORDER BY agent.host_name
"""
RESERVATIONS: Final = """
SELECT agent.host_name, workload.type, workload.state, count(*)
  FROM hosts_workload AS workload JOIN hosts_hostagent AS agent ON agent.id = workload.agent_id
 WHERE workload.state <> 'deleted'
 GROUP BY agent.host_name, workload.type, workload.state ORDER BY 1, 2, 3
"""
VERSIONS: Final = """
SELECT agent_version, (CASE wanted_version WHEN '' THEN 'any' WHEN agent_version THEN 'this'
                            ELSE 'another' END) AS wanted, count(*)
  FROM hosts_hostagent WHERE decommissioned_at IS NULL GROUP BY 1, 2 ORDER BY 1, 2
"""
ROLLOUTS: Final = """
SELECT version, (halted_at IS NOT NULL)::int AS is_halted FROM hosts_agentrollout WHERE is_open
"""
DRIFT: Final = """
SELECT host_name, (stats_drift <> '{}')::int AS has_drift FROM hosts_hostagent
 WHERE stats_drift IS NOT NULL AND decommissioned_at IS NULL ORDER BY host_name
"""


# One round trip: each as a list of lists.
def _told(part: str, *columns: str) -> str:
    rows = f"json_agg(json_build_array({', '.join(columns)}))"
    return f"(SELECT coalesce({rows}, '[]') FROM ({part}) AS told)"  # noqa: S608 - our own text


OF_AGENTS: Final = "SELECT " + ", ".join(
    (
        _told(LIFECYCLES, "kind", "phase", "has_trouble", "count"),
        _told(LIVENESS, "host_name", "zone", "liveness", "one"),
        _told(RESERVATIONS, "host_name", "type", "state", "count"),
        _told(DRIFT, "host_name", "has_drift"),
        _told(VERSIONS, "agent_version", "wanted", "count"),
        _told(ROLLOUTS, "version", "is_halted"),
    )
)


def _of_agents(cursor: CursorWrapper) -> tuple[Rows, ...]:
    """Return life cycles of hosts, and of agents liveness, reservations, drift, versions."""
    cursor.execute(OF_AGENTS)
    return cursor.fetchone() or ([], [], [], [], [], [])


def _lifecycles(cursor: CursorWrapper) -> Rows:
    return once_per_scrape(_of_agents, cursor)[0]


def _liveness(cursor: CursorWrapper) -> Rows:
    return once_per_scrape(_of_agents, cursor)[1]


def _reservations(cursor: CursorWrapper) -> Rows:
    return once_per_scrape(_of_agents, cursor)[2]


def _drift(cursor: CursorWrapper) -> Rows:
    return once_per_scrape(_of_agents, cursor)[3]


def _versions(cursor: CursorWrapper) -> Rows:
    return once_per_scrape(_of_agents, cursor)[4]


def _rollouts(cursor: CursorWrapper) -> Rows:
    return once_per_scrape(_of_agents, cursor)[5]


AGENTS: Final = Scraped(
    "agents",
    Reading(
        _lifecycles,
        ("kind", "phase", "has_trouble"),
        (
            gauge(
                "host_lifecycles",
                "Hosts that are brought into service or out of it through Nova, by how far.",
            ),
        ),
    ),
    Reading(
        _liveness,
        ("host", "az", "state"),
        (gauge("host_liveness", "1 for what is known of the agent of a host."),),
    ),
    Reading(
        _reservations,
        ("host", "type", "state"),
        (gauge("host_reservations", "What the agent of a host was asked to make, by state."),),
    ),
    Reading(
        _versions,
        ("version", "wanted"),
        (gauge("host_agents", "Agents by the version that they run, and which is wanted there."),),
    ),
    Reading(
        _rollouts,
        ("version",),
        (gauge("host_rollout_halted", "1 when the rollout of a version of agents is halted."),),
    ),
    Reading(
        _drift,
        ("host",),
        (
            gauge(
                "host_stats_drift",
                "1 when the agent of a host says that it has made other than it told us.",
            ),
        ),
    ),
)
