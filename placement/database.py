"""Transactions of the Placement API: bounded lock waits, and again after a lost deadlock."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from django.db import OperationalError, connection, transaction

from capacity.hooks import BeingChanged
from core.conf import headroom
from core.prepared import drop_dead_connection, run
from journal.errors import Busy
from journal.outages import LOCK_NOT_AVAILABLE, sqlstate_of
from placement.domain.errors import CONCURRENT_UPDATE, Conflict

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

RETRYABLE = frozenset({"40001", "40P01"})
LOCK_TIMEOUT_SQL = "SELECT set_config('lock_timeout', %s, true)"


def lock_timeout() -> str:
    """Return the longest wait for a lock, as the database writes it."""
    return f"{int(headroom().lock_timeout_seconds * 1000)}ms"


def in_transaction(work: Callable[[], Result]) -> Result:
    """Run ``work`` in one transaction with bounded lock waits; see :func:`retried`."""

    def attempt() -> Result:
        drop_dead_connection()
        with transaction.atomic():
            run(LOCK_TIMEOUT_SQL, [lock_timeout()])
            return work()

    return retried(attempt)


def retried(attempt: Callable[[], Result]) -> Result:
    """Run one transaction, again when it lost a deadlock or came upon what another is changing.

    Raises:
        Busy: a lock was not free in time, or something was being changed all the time.
        Conflict: it lost every time.
    """
    retries = headroom().placement.allocation_conflict_retry_count
    for number in range(retries + 1):
        try:
            return _unless_changed(attempt)
        except OperationalError as error:
            state = sqlstate_of(error)
            if state == LOCK_NOT_AVAILABLE:
                raise Busy("the rows are being changed by another") from error
            if state not in RETRYABLE or connection.in_atomic_block:
                raise
            log.info("placement_write_retried", sqlstate=state, attempt=number + 1)
            time.sleep(random.uniform(0, 0.02) * (number + 1))  # noqa: S311 - spreads writers
    raise Conflict(
        "Inventory and/or allocations changed while attempting to allocate: try again",
        wire_code=CONCURRENT_UPDATE,
        reason="retry_exhausted",
    )


def _unless_changed(attempt: Callable[[], Result]) -> Result:
    """Run one transaction, again after each that was changing what it must not wait for.

    Raises:
        Busy: the time for a lock was over.
    """
    ends_at = time.monotonic() + headroom().lock_timeout_seconds
    while True:
        try:
            return attempt()
        except BeingChanged as error:
            milliseconds_left = int((ends_at - time.monotonic()) * 1000)
            if connection.in_atomic_block:
                raise
            if milliseconds_left <= 0:
                raise Busy(error.message) from error
            with transaction.atomic():
                run(LOCK_TIMEOUT_SQL, [f"{milliseconds_left}ms"])
                error.wait()
