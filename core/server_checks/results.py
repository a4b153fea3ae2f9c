"""How a check of a running server ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from django.core.management.base import CommandError


class CheckEnd(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    REJECTED = "rejected"
    WARNED = "warned"
    SKIPPED = "skipped"
    FAILED = "failed"


class CheckFailed(Exception):  # noqa: N818 - the end of a check, not a defect of ours
    """The server did not do what a check asks of it; the text says what it did instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line of the report."""

    check: str
    outcome: CheckEnd
    detail: str = ""


def counts_text(counts: Mapping[CheckEnd, int], ends: Iterable[CheckEnd]) -> str:
    """Return how many checks ended in each of some ways."""
    return ", ".join(f"{counts[end]} {end}" for end in ends)


def token_in(path: Path | None) -> str:
    """Return the token that a file holds; empty without one.

    Raises:
        CommandError: It cannot be read.
    """
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise CommandError(f"--token-file: {error.strerror}: {path}") from error
