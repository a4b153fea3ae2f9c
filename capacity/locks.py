"""Advisory locks: the one registry of keys, and the only way to take them (style, 8).

Lock order everywhere: zone locks sorted by name, then rows parents first, then primary keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import IntEnum

from django.conf import settings
from django.db import OperationalError, connection

from journal.errors import Busy
from journal.leases import check_leases
from journal.outages import LOCK_NOT_AVAILABLE, sqlstate_of
from journal.statements import execute, fetch_value

SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s, true)"


LOCK_FIRST = """
SELECT set_config('lock_timeout', %(lock_timeout)s, true);
SELECT pg_advisory_xact_lock(%(lock_key)s);
"""


class LockSpace(IntEnum):
    """What a key locks. Numbers are part of the protocol between releases: never renumber."""

    ZONE = 1
    FLAVOR_GROUPS = 2
    GROUP_CAPACITY = 3
    USAGE = 4
    SERVICE_INFO = 5
    TASK = 6
    QUOTA = 7
    PLACED_VM = 9
    PIPELINE = 10
    PROVIDER_TREES = 40
    PLACEMENT_TRUTH = 41
    PLACEMENT_CONSUMER = 42


class LockOutsideTransactionError(RuntimeError):
    """A transaction-level lock was asked for where no transaction is open."""


def lock_key(space: LockSpace, name: str) -> int:
    """Return the signed 64-bit key of a lock."""
    digest = hashlib.blake2b(f"{space.value}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def set_lock_timeout() -> None:
    """Bound every later lock wait of this transaction by ``HEADROOM_LOCK_TIMEOUT_SECONDS``."""
    execute(SET_LOCK_TIMEOUT, [_lock_timeout()])


def _lock_timeout() -> str:
    return f"{int(settings.HEADROOM.lock_timeout_seconds * 1000)}ms"


def take_lock(space: LockSpace, names: Iterable[str]) -> None:
    """Take transaction-level locks, in order of name, waiting at most the lock timeout.

    Args:
        space: What is locked.
        names: One lock per distinct name.

    Raises:
        Busy: a lock was not free in time.
        LeaseLost: this run goes on elsewhere.
        LockOutsideTransactionError: no transaction is open.
    """
    if not connection.in_atomic_block:
        raise LockOutsideTransactionError
    for number, name in enumerate(sorted(set(names))):
        first = f"{SET_LOCK_TIMEOUT};" if number == 0 else ""
        limit = [_lock_timeout()] if number == 0 else []
        try:
            execute(f"{first}SELECT pg_advisory_xact_lock(%s)", [*limit, lock_key(space, name)])
        except OperationalError as error:
            if sqlstate_of(error) != LOCK_NOT_AVAILABLE:
                raise
            raise Busy(
                f"{space.name.lower().replace('_', ' ')} {name} is being changed by another",
                lock=f"{space.name.lower()}:{name}",
            ) from error
    check_leases()


def lock_first(space: LockSpace, name: str) -> Mapping[str, str | int]:
    """Return the parameters of :data:`LOCK_FIRST`, which goes in front of a statement.

    In the message of the statement that needs the lock it takes no time of its own; the answer of
    that statement is the third. A lock that is not free in time is the statement's error.

    Raises:
        LeaseLost: this run goes on elsewhere.
        LockOutsideTransactionError: no transaction is open.
    """
    if not connection.in_atomic_block:
        raise LockOutsideTransactionError
    return lock_alone(space, name)


def lock_alone(space: LockSpace, name: str) -> Mapping[str, str | int]:
    """Return the parameters by which a statement that is its own transaction takes a lock itself.

    Raises:
        LeaseLost: this run goes on elsewhere.
    """
    check_leases()
    return {"lock_timeout": _lock_timeout(), "lock_key": lock_key(space, name)}


def zone_lock(zones: Iterable[str]) -> None:
    """Take the planners' lock of availability zones; see :func:`take_lock`."""
    take_lock(LockSpace.ZONE, zones)


def try_lock(space: LockSpace, name: str) -> bool:
    """Take one transaction-level lock if it is free now; never waits.

    Raises:
        LockOutsideTransactionError: no transaction is open.
    """
    if not connection.in_atomic_block:
        raise LockOutsideTransactionError
    return bool(fetch_value("SELECT pg_try_advisory_xact_lock(%s)", [lock_key(space, name)]))
