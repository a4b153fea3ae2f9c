"""Reading from a standby what no view asks: sums, scrapes and what follows changes (ADR 36)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import structlog
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from journal.counters import READS
from journal.history import AtStandby, at_standby
from journal.standby.watch import StandbyWatch, current_watch

log = structlog.get_logger(__name__)

Value = TypeVar("Value")
#: How long those wait who read much: until the standbys of a new process are looked at, and then
#: until one has replayed what they need.
PATIENCE_SECONDS: Final = 1.0


def is_reading_standby() -> bool:
    """Return whether this thread's default connection is a standby's: keep nothing of it."""
    return at_standby.get() is not None


@contextmanager
def reading_from(wrapper: Any, followed: AtStandby | None = None) -> Iterator[None]:
    """Make a standby's connection this thread's default one for a while.

    Args:
        wrapper: Django's side of it (its stubs know no common type).
        followed: What changes are followed by there; None if they must not be.
    """
    primary = connections[DEFAULT_DB_ALIAS]
    connections[DEFAULT_DB_ALIAS] = wrapper
    token = at_standby.set(followed or AtStandby())
    try:
        yield
    finally:
        at_standby.reset(token)
        connections[DEFAULT_DB_ALIAS] = primary


def from_standby(
    read: Callable[[], Value], *, reader: str, patience_seconds: float = 0.0
) -> Value | None:
    """Return what a fresh standby tells; None if there is none or it failed: ask the primary.

    Args:
        read: Asks, and writes nothing.
        reader: Who asks, a label of :data:`journal.counters.READS`.
        patience_seconds: How long to wait until the standbys of a new process are looked at.
    """
    watch = current_watch()
    if watch is None:
        return None
    alias = watch.choose(patience_seconds=patience_seconds)
    if alias is None:
        READS.labels(reader=reader, answered_by="primary").inc()
        return None
    try:
        with reading_from(connections[alias]):
            value = read()
    except DatabaseError as error:
        note_failure(watch, alias, reader=reader, error=error, is_there=still_answers(alias))
        return None
    READS.labels(reader=reader, answered_by="standby").inc()
    return value


def note_failure(
    watch: StandbyWatch, alias: str, *, reader: str, error: DatabaseError, is_there: bool
) -> None:
    """Count what the primary is asked again, and leave out a standby that is gone."""
    READS.labels(reader=reader, answered_by="primary_again").inc()
    log.info("standby_read_repeated", reader=reader, reason=str(error).strip())
    if not is_there:
        watch.leave_out(alias)


def still_answers(alias: str) -> bool:
    """Return whether this thread's session of a standby goes on."""
    return answers(connections[alias])


def answers(wrapper: Any) -> bool:  # Any: as above
    """Return whether a session of a standby goes on; one that does not is closed."""
    try:
        wrapper.close_if_unusable_or_obsolete()
        return bool(wrapper.connection is not None and wrapper.is_usable())
    except DatabaseError:
        return False
