"""One step of a planner: a transaction under its zone's lock, tried again when it got stuck."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import transaction

from capacity.locks import zone_lock
from core.jobs import tried
from journal.errors import Busy
from journal.outages import is_retryable

_Result = TypeVar("_Result")


def in_step(zone: str, work: Callable[[], _Result]) -> _Result:
    """Do a piece of work in a transaction under the zone lock; return what it returns.

    Inside it locks are taken in this order: rooms of hosts, reservations with the rows that
    failover keeps of them, VMs, users.

    Raises:
        Busy: the zone, or a room, stayed locked by others.
    """

    def attempt() -> _Result:
        with transaction.atomic(durable=True):
            zone_lock([zone])
            return work()

    return tried(
        attempt,
        again_after=is_retryable,
        event="failover_step_retried",
        given_up=Busy(f"zone {zone}: hosts stayed locked by others", zone=zone),
        zone=zone,
    )
