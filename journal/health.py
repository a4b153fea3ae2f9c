"""Readiness of a process, and the state of everything it needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import redis
import structlog
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from redis.backoff import NoBackoff
from redis.retry import Retry

from journal.clock import TOLERANCE, database_now
from journal.models import Heartbeat

log = structlog.get_logger(__name__)

BROKER_TIMEOUT_SECONDS = 1.0
BEAT = "beat"
MIGRATE = "./run manage migrate"
START_BEAT = "start ./run serve beat and ./run serve worker"
UNKNOWN_DATABASE_DOWN = "unknown, the database does not answer"

_migrations_applied = threading.Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessCheck:
    """One thing that readiness depends on.

    Attributes:
        name: Stable name in the answer.
        is_ok: Whether it works now.
        detail: What was found, without addresses or credentials.
        todo: What to do when it does not work.
    """

    name: str
    is_ok: bool
    detail: str = "ok"
    todo: str = ""


#: What else ``migrate`` gives to the database: each says what is missing, or nothing.
unapplied: list[Callable[[], str]] = []
#: What ``/statusz`` tells beyond what this module knows; apps add to it when they are ready.
#: Each asks the database, and raises nothing else than its errors.
status_checks: list[Callable[[], ReadinessCheck]] = []


def check_ready() -> tuple[ReadinessCheck, ...]:
    """Return what requests cannot do without: the database, migrated. Never raises."""
    database = check_database()
    if not database.is_ok:
        return (database, _unknown("migrations"))
    return (database, check_migrations())


def check_status() -> tuple[ReadinessCheck, ...]:
    """Return the state of everything, also of what only tasks need; never raises."""
    database, migrations = check_ready()
    if not database.is_ok:
        return (database, migrations, check_broker(), _unknown(BEAT))
    others = tuple(_tried(check) for check in status_checks)
    return (database, migrations, check_broker(), check_beat(), *others)


def shown_checks(checks: Iterable[ReadinessCheck]) -> tuple[bool, dict[str, Any]]:  # Any: JSON
    """Return whether all is well, and the page that says so."""
    found = {check.name: {"ok": check.is_ok, "detail": check.detail} for check in checks}
    is_ready = all(check["ok"] for check in found.values())
    return is_ready, {"ready": is_ready, "checks": found}


def _unknown(name: str) -> ReadinessCheck:
    return ReadinessCheck(name=name, is_ok=False, detail=UNKNOWN_DATABASE_DOWN)


def _tried(check: Callable[[], ReadinessCheck]) -> ReadinessCheck:
    try:
        return check()
    except DatabaseError as error:
        return _failed(check.__name__.removeprefix("check_"), error)


def check_database() -> ReadinessCheck:
    """Ask the database for one row."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    except DatabaseError as error:
        return _failed("database", error, "see to DATABASE_URL, and that PostgreSQL runs")
    return ReadinessCheck(name="database", is_ok=True)


def check_broker() -> ReadinessCheck:
    """Ping the broker, for at most a second."""
    try:
        broker_client(settings.REDIS_URL).ping()
    except (redis.RedisError, OSError, ValueError) as error:
        return _failed("broker", error, "see to REDIS_URL, and that Redis runs")
    return ReadinessCheck(name="broker", is_ok=True)


def broker_now() -> datetime:
    """Return the broker's time.

    Raises:
        redis.RedisError: it does not answer.
    """
    told: Any = broker_client(
        settings.REDIS_URL
    ).time()  # Any: the client is sync or async by its types
    seconds, microseconds = told
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)


def check_migrations() -> ReadinessCheck:
    """Look for what ``migrate`` has not applied; a positive answer is kept for the process."""
    if _migrations_applied.is_set():
        return ReadinessCheck(name="migrations", is_ok=True)
    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        found = [f"{len(missing)} migrations are not applied"] if missing else []
        found += [lacking for told in unapplied if (lacking := told())]
    except DatabaseError as error:
        return _failed("migrations", error)
    if found:
        return ReadinessCheck(name="migrations", is_ok=False, detail=found[0], todo=MIGRATE)
    _migrations_applied.set()
    return ReadinessCheck(name="migrations", is_ok=True)


def check_beat() -> ReadinessCheck:
    """Compare the age of the last beat with ``HEADROOM_BEAT_MAX_AGE_SECONDS``."""
    limit = timedelta(seconds=settings.HEADROOM.beat_max_age_seconds)
    try:
        beaten_at = Heartbeat.objects.filter(name=BEAT).values_list("beaten_at", flat=True).first()
    except DatabaseError as error:
        return _failed(BEAT, error)
    if beaten_at is None:
        return ReadinessCheck(
            name=BEAT, is_ok=False, detail="no beat was ever seen", todo=START_BEAT
        )
    age = database_now() - beaten_at
    seconds = int(age.total_seconds())
    is_ok = -TOLERANCE <= age <= limit  # one ahead was written by a wrong clock
    detail = f"last beat {seconds} s ago, limit {int(limit.total_seconds())} s"
    return ReadinessCheck(name=BEAT, is_ok=is_ok, detail=detail, todo=START_BEAT)


@lru_cache(maxsize=4)
def broker_client(url: str) -> redis.Redis:
    """Return a client that waits for a second at the most, and tries once."""
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=BROKER_TIMEOUT_SECONDS,
        socket_timeout=BROKER_TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )


def _failed(name: str, error: Exception, todo: str = "") -> ReadinessCheck:
    log.warning("readiness_check_failed", check=name, error=str(error))
    return ReadinessCheck(name=name, is_ok=False, detail=type(error).__name__, todo=todo)
