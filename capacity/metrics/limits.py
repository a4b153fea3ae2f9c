"""How finely metrics are told: per host and per project only in regions small enough.

A series per host or project is one more for each of them in every scrape. Above the settings'
number, the same metrics are told with the host's or project's label empty, as sums.
"""

from __future__ import annotations

from django.conf import settings
from django.db.backends.utils import CursorWrapper

from journal.metrics import once_per_scrape

HOSTS = "SELECT count(*) FROM (SELECT FROM hosts_host LIMIT %s) AS first_ones"
PROJECTS = """
SELECT count(*) FROM (SELECT DISTINCT project_id FROM capacity_projectquota LIMIT %s) AS first_ones
"""


def tells_hosts(cursor: CursorWrapper) -> bool:
    """Return whether hosts have series of their own."""
    return once_per_scrape(_tells_hosts, cursor)


def tells_projects(cursor: CursorWrapper) -> bool:
    """Return whether projects have series of their own."""
    return once_per_scrape(_tells_projects, cursor)


def _tells_hosts(cursor: CursorWrapper) -> bool:
    return _is_within(cursor, HOSTS, settings.HEADROOM.metrics.hosts_up_to)


def _tells_projects(cursor: CursorWrapper) -> bool:
    return _is_within(cursor, PROJECTS, settings.HEADROOM.metrics.projects_up_to)


def _is_within(cursor: CursorWrapper, statement: str, most: int) -> bool:
    cursor.execute(statement, [most + 1])
    ((count,),) = cursor.fetchall()
    return bool(count <= most)
