"""Checks of what every installation has: database, broker, workers, clocks, settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import redis
from django.conf import settings
from django.core.checks import ERROR, WARNING
from django.core.checks import run_checks as run_system_checks
from django.db import DEFAULT_DB_ALIAS

from core.doctor.findings import Check, Finding, broken, doubtful, fine
from journal.clock import database_now, is_doubtful, is_off
from journal.deadlines import differing_defaults
from journal.gauges import QUEUE_LIMITS_SECONDS, RECENT_SECONDS
from journal.health import (
    ReadinessCheck,
    broker_now,
    check_beat,
    check_broker,
    check_database,
    check_migrations,
    status_checks,
)
from journal.models import Heartbeat, ProcessClock

STATUS: Final = (check_database, check_migrations, check_broker, check_beat)
RUN_CHRONY: Final = "let the machine follow a time server (docs/operations.md, Clocks)"


def own_checks() -> Mapping[str, Check]:
    """Return them by name, those first without which the others say little."""
    told = {check.__name__.removeprefix("check_"): check for check in (*STATUS, *status_checks)}
    return {
        **{name: partial(_as_finding, check) for name, check in told.items()},
        "workers": check_workers,
        "clocks": check_clocks,
        "settings": check_settings,
        "deadlines": check_deadlines,
    }


def _as_finding(check: Callable[[], ReadinessCheck]) -> Iterator[Finding]:
    result = check()
    yield fine(result.detail) if result.is_ok else broken(result.detail, result.todo)


def check_workers() -> Iterator[Finding]:
    """Look whether a worker takes tasks of each queue."""
    seen = dict(Heartbeat.objects.values_list("name", "beaten_at"))
    now = database_now()
    for name, limit_seconds in QUEUE_LIMITS_SECONDS.items():
        queue = name.partition(":")[2]
        todo = f"start ./run serve worker, or one with --queues {queue}"
        if name not in seen:
            yield doubtful(f"queue {queue}: no worker was ever seen", todo)
            continue
        age_seconds = int((now - seen[name]).total_seconds())
        told = f"queue {queue}: a worker was seen {age_seconds} s ago, limit {limit_seconds} s"
        yield fine(told) if age_seconds <= limit_seconds else broken(told, todo)


def check_clocks() -> Iterator[Finding]:
    """Compare the clocks of this process, the broker and others with the database's."""
    now = database_now()
    yield compared("this machine", datetime.now(UTC) - now)
    try:
        yield compared("the broker", broker_now() - database_now())
    except (redis.RedisError, OSError, ValueError):
        yield doubtful("the broker does not tell its time", "see the check of the broker")
    recent = ProcessClock.objects.filter(looked_at__gt=now - timedelta(seconds=RECENT_SECONDS))
    for row in recent.order_by("process"):
        deviation = timedelta(seconds=row.deviation_seconds)
        if is_doubtful(deviation):
            yield compared(row.process, deviation)


def compared(what: str, deviation: timedelta) -> Finding:
    """Return how far a clock is off the database's."""
    told = f"{what}: {deviation.total_seconds():+.1f} s from the database's clock"
    if is_off(deviation):
        return broken(told, f"{RUN_CHRONY}; so far off a process refuses periodic work")
    return doubtful(told, RUN_CHRONY) if is_doubtful(deviation) else fine(told)


def check_settings() -> Iterator[Finding]:
    """Tell what the system checks say, and what is for development only."""
    environment = settings.HEADROOM
    if environment.debug:
        yield doubtful("HEADROOM_DEBUG is on", "leave it off where others can reach it")
    if environment.auth == "noauth":
        yield doubtful("HEADROOM_AUTH=noauth: all may do all", "use keystone or token")
    for message in run_system_checks(databases=[DEFAULT_DB_ALIAS]):
        if message.level >= ERROR:
            yield broken(message.msg, message.hint or "correct the setting")
        elif message.level >= WARNING:
            yield doubtful(message.msg, message.hint or "correct the setting")
    yield fine(f"read; tokens are checked by {environment.auth}")


def check_deadlines() -> Iterator[Finding]:
    """Look whether the database user has the deadlines of requests."""
    differing = differing_defaults()
    if not differing:
        yield fine("the database user has the deadlines of requests")
        return
    names = ", ".join(sorted(differing))
    yield doubtful(f"the database user lacks: {names}", "./run manage configure_database")
