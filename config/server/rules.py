"""What the settings say to the server; the first module of it that needs Django."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.db import close_old_connections

from config.server.bodies import BodyRules
from config.server.door import DoorRules
from core.sessions import Sessions
from journal.health import check_ready, shown_checks

FAMILIES = ("/placement", "/commitments", "/scheduler/", "/api/v1/", "/failover/")

ALLOCATIONS = "/placement/allocations"
WRITES = frozenset({"PUT", "POST", "DELETE"})

#: What takes long to answer (:mod:`journal.heavy`).
QUESTIONS = (
    "/api/v1/commitments/what-if",
    "/api/v1/failover/",
    "/failover/v1/",
    "/api/v1/scheduling/explain",
    "/api/v1/placement/",
)


def door_rules(threads: int, workers: int) -> DoorRules:
    """Return what the settings say of requests and their bodies.

    Args:
        threads: Requests of one API that run at once; whatever it waits for, the others
            together have as many.
        workers: Processes that share this machine's processors.
    """
    web = settings.HEADROOM.web
    return DoorRules(
        most_running=2 * threads,
        most_of_kind=threads,
        kind_of=_kind_of,
        limit_bytes=_limits(),
        hands_on=_handed_on(),
        refuses_unread=lambda path: path.startswith(FAMILIES),
        is_question=lambda path: path.startswith(QUESTIONS),
        takes_turn=_turn_taking(),
        turns=len(os.sched_getaffinity(0)) // workers + 1,  # one waits for its commit
        bodies=BodyRules(
            grace_seconds=web.body_grace_seconds,
            bytes_per_second=web.body_min_kib_per_second << 10,
            most_bytes=web.bodies_mib << 20,
        ),
        sessions=Sessions(),
    )


def _kind_of(path: str) -> str:
    """Return the API that a path is of; pages and what is unknown are one more."""
    for family in FAMILIES:  # quicker than an expression, for each request
        if path.startswith(family):
            return family
    return ""


def stuck_seconds() -> float:
    """Return after how long a worker counts as stuck."""
    seconds: float = settings.HEADROOM.stuck_seconds
    return seconds


def _limits() -> Callable[[str], int]:
    """Return what says the longest body of a path, in bytes."""
    headroom = settings.HEADROOM
    larger = (
        ("/placement/", headroom.placement.max_body_mib << 20),
        ("/api/v1/placement/", headroom.placement.max_body_mib << 20),
        ("/scheduler/", headroom.scheduler.max_body_mib << 20),
        ("/api/v1/scheduling/", headroom.scheduler.max_body_mib << 20),
    )
    usual = headroom.liquid.max_body_mib << 20

    def limit_bytes(path: str) -> int:
        for prefix, limit in larger:
            if path.startswith(prefix):
                return limit
        return usual

    return limit_bytes


def _handed_on() -> Callable[[str], bool]:
    """Return what says whether another server may get the bodies of a path as they are."""
    if not settings.HEADROOM.gateway.upstream_url:
        return lambda _: False
    return lambda path: path.startswith("/placement/")


def _turn_taking() -> Callable[[str, str], bool]:
    """Return what says whether a request takes turns: writes of allocations that we do ourselves.

    Most of such a write is work of the database, for which several at once take longer for each
    (ADR 43). Those that another server answers wait for that.
    """
    if settings.HEADROOM.gateway.upstream_url:
        return lambda _method, _path: False
    return lambda method, path: path.startswith(ALLOCATIONS) and method in WRITES


def readiness_checks() -> tuple[bool, dict[str, Any]]:  # Any: JSON
    """Look whether this process is ready, on the connection of the calling thread."""
    close_old_connections()
    return shown_checks(check_ready())
