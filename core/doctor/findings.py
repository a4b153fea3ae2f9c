"""Findings of checks, and running checks so that none keeps the others from being run.

A check yields what it found, good or bad. Apps offer theirs by name in :data:`offers`;
``manage.py doctor``, ``manage.py connect`` and a task run them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

import structlog
from django.db import connections

from journal.errors import HeadroomError

log = structlog.get_logger(__name__)

DEADLINE_SECONDS: Final = 20.0
#: A login in an address, which messages of libraries may quote.
LOGIN: Final = re.compile(r"(?<=://)[^/@\s]+@")


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"

    @property
    def exit_status(self) -> int:
        """Status of a command for monitoring: 0, 1 or 2."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found.

    Attributes:
        check: Name of the check; the runner adds it.
        found: What was seen, in a line, without credentials.
        todo: What to do about it, in a line; empty when all is well.
    """

    check: str = ""
    severity: Severity
    found: str
    todo: str = ""


Check: TypeAlias = Callable[[], Iterable[Finding]]
#: Each returns checks by name; apps add theirs when they are ready.
offers: Final[list[Callable[[], Mapping[str, Check]]]] = []


def fine(found: str) -> Finding:
    """Return that all is well."""
    return Finding(severity=Severity.OK, found=found)


def doubtful(found: str, todo: str) -> Finding:
    """Return what somebody should look at."""
    return Finding(severity=Severity.WARNING, found=found, todo=todo)


def broken(found: str, todo: str) -> Finding:
    """Return what does not work."""
    return Finding(severity=Severity.ERROR, found=found, todo=todo)


def offered_checks() -> dict[str, Check]:
    """Return the checks of all apps by name, in order."""
    return {name: check for offer in offers for name, check in offer().items()}


def run_checks(
    checks: Mapping[str, Check], *, deadline_seconds: float = DEADLINE_SECONDS
) -> Iterator[Finding]:
    """Run checks one after the other, each in a thread of its own; yield what they find.

    Args:
        checks: The checks by name.
        deadline_seconds: How long one may take; it is left alone after that.
    """
    for name, check in checks.items():
        for finding in _within(deadline_seconds, name, check):
            yield replace(
                finding,
                check=name,
                found=LOGIN.sub("", finding.found),
                todo=LOGIN.sub("", finding.todo),
            )


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the worst severity; that of none is good."""
    return max((one.severity for one in findings), key=list(Severity).index, default=Severity.OK)


def _within(seconds: float, name: str, check: Check) -> Iterable[Finding]:
    found: list[Iterable[Finding]] = []

    def run() -> None:
        try:
            found.append(_tried(name, check))
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name=f"check {name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        return (broken(f"no answer within {seconds:g} s", "see what it waits for"),)
    return found[0]


def _tried(name: str, check: Check) -> Iterable[Finding]:
    try:
        return tuple(check())
    except HeadroomError as error:
        return (broken(error.message, "mend that first"),)
    except Exception as error:  # noqa: BLE001 - whatever fails in one must not hide the others
        log.warning("check_failed", check=name, error=LOGIN.sub("", str(error)))
        return (broken(type(error).__name__, "the log has the message (event check_failed)"),)
