"""What scrapes read of the journal: who does the background work, clocks, and kept sums."""

from __future__ import annotations

from django.conf import settings
from django.db.backends.utils import CursorWrapper

from journal.clock import LOOK_SECONDS
from journal.kept_sums import OLDEST, Rows, known_sums
from journal.leases import BEAT_LEASE
from journal.metrics import once_per_scrape
from journal.readings import Reading, Scraped, gauge

#: Age of the heartbeat of a queue from which nobody works it off: a task of it may take so long.
QUEUE_LIMITS_SECONDS = {"queue:steady": 1800, "queue:long": 7200}
#: A process that looked at its clock so long ago has ended, or has had nothing to do.
RECENT_SECONDS = 12 * LOOK_SECONDS
SILENCE = """
SELECT CASE name WHEN 'beat' THEN 'soon' ELSE split_part(name, ':', 2) END,
       extract(epoch FROM clock_timestamp() - beaten_at)::float8
  FROM journal_heartbeat WHERE name = 'beat' OR name LIKE 'queue:%%' ORDER BY name
"""
LEASES = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - renewed_at))
                  FILTER (WHERE name = %(beat)s), 0)::float8,
       coalesce(max(epoch) FILTER (WHERE name = %(beat)s), 0),
       coalesce(max(extract(epoch FROM clock_timestamp() - taken_at))
                  FILTER (WHERE name <> %(beat)s AND expires_at > clock_timestamp()), 0)::float8
  FROM journal_lease
"""
DEVIATIONS = """
SELECT coalesce(max(abs(deviation_seconds)), 0),
       count(*) FILTER (WHERE abs(deviation_seconds) > %(refuse)s)
  FROM journal_processclock
 WHERE looked_at > now() - make_interval(secs => %(recent)s)
"""

FINDINGS = """
SELECT check_name, count(*) FILTER (WHERE severity = 'warning'),
       count(*) FILTER (WHERE severity = 'error'),
       extract(epoch FROM clock_timestamp() - max(looked_at))::float8
  FROM journal_checkfinding GROUP BY check_name ORDER BY check_name
"""


def _findings(cursor: CursorWrapper) -> Rows:
    cursor.execute(FINDINGS)
    rows: Rows = cursor.fetchall()
    return rows


def _findings_age(cursor: CursorWrapper) -> Rows:
    ages = [age for *_, age in once_per_scrape(_findings, cursor)]
    return [(min(ages),)] if ages else []


CLOCKS = Scraped(
    "clocks",
    Reading(
        DEVIATIONS,
        (),
        (
            gauge(
                "clock_deviation_seconds",
                "Largest deviation of a process's clock from the database's in the last two"
                " minutes.",
            ),
            gauge(
                "clock_refusing_processes",
                "Processes that refuse tasks because their clock is off.",
            ),
        ),
        lambda _: {"refuse": settings.HEADROOM.clock_refuse_seconds, "recent": RECENT_SECONDS},
    ),
    is_of_primary=True,
)
WORK = Scraped(
    "work",
    Reading(
        SILENCE,
        ("queue",),
        (
            gauge(
                "worker_queue_silence_seconds",
                "Time since a worker last took the heartbeat that waits in a queue.",
            ),
        ),
    ),
    Reading(
        LEASES,
        (),
        (
            gauge("beat_lease_age_seconds", "Time since the acting beat last renewed its lease."),
            gauge(
                "beat_lease_epoch",
                "How often another beat became the acting one; a steady growth means that they"
                " die.",
            ),
            gauge(
                "run_lease_longest_seconds",
                "How long the oldest run that is under way has held its lease; 0 without one.",
            ),
        ),
        lambda _: {"beat": BEAT_LEASE},
    ),
    is_of_primary=True,
)
KEPT_SUMS = Scraped(
    "kept_sums",
    Reading(
        OLDEST,
        (),
        (
            gauge(
                "metrics_sums_age_seconds",
                "Time since the task last kept the sums that scrapes tell; the oldest counts.",
            ),
        ),
        lambda _: {"names": known_sums()},
    ),
    is_of_primary=True,
)
DOCTOR = Scraped(
    "doctor",
    Reading(
        lambda cursor: [row[:3] for row in once_per_scrape(_findings, cursor)],
        ("check",),
        (
            gauge("doctor_warnings", "What a check found that somebody should look at."),
            gauge("doctor_errors", "What a check found that does not work."),
        ),
    ),
    Reading(
        _findings_age,
        (),
        (gauge("doctor_age_seconds", "Time since a worker last ran the checks of the doctor."),),
    ),
    is_of_primary=True,
)
