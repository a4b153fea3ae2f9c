"""One step of a planner: a transaction under its zone's lock, tried again when it got stuck."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog
from django.db import DatabaseError, transaction

from capacity.locks import zone_lock
from journal.errors import Busy
from journal.outages import RETRYABLE, sqlstate_of

log = structlog.get_logger(__name__)

_Result = TypeVar("_Result")

ATTEMPTS = 3


def in_step(zone: str, work: Callable[[], _Result]) -> _Result:
    """Do a piece of work in a transaction under the zone lock; return what it returns.

    Inside it locks are taken in this order: rooms of hosts, reservations with the rows that
    failover keeps of them, VMs, users.

    Raises:
        Busy: the zone, or a room, stayed locked by others.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with transaction.atomic(durable=True):
                zone_lock([zone])
                return work()
        except DatabaseError as error:
            if sqlstate_of(error) not in RETRYABLE:
                raise
            log.info("failover_step_retried", zone=zone, attempt=attempt)
            blocked = error
    raise Busy(f"zone {zone}: hosts stayed locked by others", zone=zone) from blocked
