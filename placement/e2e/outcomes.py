"""How a check may end."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
