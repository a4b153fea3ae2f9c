"""What became of each test: collected, printed, written as JSON."""

from __future__ import annotations

import json
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal
from unittest import TestCase, TestResult

Verdict = Literal["passed", "failed", "skipped", "untestable"]
ErrorInfo = tuple[type[BaseException], BaseException, TracebackType | None]
LONGEST_TEXT = 3000
FIXTURE_FAILURE = "fixture failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One test: its name, what became of it, and why."""

    name: str
    verdict: Verdict
    text: str = ""


@dataclass(slots=True, kw_only=True)
class Group:
    """The tests of one file."""

    file: str
    profile: str
    seconds: float = 0.0
    outcomes: list[CaseResult] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """Number of tests per verdict."""
        return Counter(outcome.verdict for outcome in self.outcomes)


class Collector(TestResult):
    """Keeps one outcome per test, by name; a failure is never overwritten.

    Args:
        untestable: Tests that cannot pass over HTTP, with the reason.
    """

    def __init__(self, untestable: Mapping[str, str]) -> None:
        super().__init__()
        self.by_name: dict[str, CaseResult] = {}
        self._untestable = untestable

    def addSuccess(self, test: TestCase) -> None:  # noqa: N802 - unittest's name
        """Remember that a test passed."""
        self._keep(test, "passed", "")

    def addFailure(self, test: TestCase, err: object) -> None:  # noqa: N802 - unittest's name
        """Remember that an assertion failed."""
        self._keep(test, "failed", _error_text(err))

    def addError(self, test: TestCase, err: object) -> None:  # noqa: N802 - unittest's name
        """Remember that a test broke."""
        self._keep(test, "failed", _error_text(err))

    def addSkip(self, test: TestCase, reason: str) -> None:  # noqa: N802 - unittest's name
        """Remember a skipped test; one whose preparation failed counts as failed."""
        self._keep(test, "failed" if reason == FIXTURE_FAILURE else "skipped", reason)

    def addExpectedFailure(self, test: TestCase, err: object) -> None:  # noqa: N802 - unittest's
        """Remember a failure that the file declares as expected."""
        self._keep(test, "passed", "expected failure")

    def addUnexpectedSuccess(self, test: TestCase) -> None:  # noqa: N802 - unittest's name
        """Remember a success that the file declares as impossible."""
        self._keep(test, "failed", "unexpected success")

    def _keep(self, test: TestCase, verdict: Verdict, text: str) -> None:
        name = test_name(test)
        known = self.by_name.get(name)
        if known is not None and known.verdict == "failed":
            return
        if verdict == "failed" and name in self._untestable:
            verdict, text = "untestable", self._untestable[name]
        self.by_name[name] = CaseResult(name=name, verdict=verdict, text=text)


def test_name(test: TestCase) -> str:
    """Return the name a test file gives its test, else the id of the test method."""
    declared = getattr(test, "test_data", None)
    return str(declared["name"]) if declared else test.id()


def _error_text(error: object) -> str:
    if isinstance(error, tuple):
        kind, value, trace = error
        if isinstance(value, AssertionError):  # the trace would only tell how the test is run
            return str(value)[:LONGEST_TEXT]
        return "".join(traceback.format_exception(kind, value, trace))[-LONGEST_TEXT:]
    return str(error)[-LONGEST_TEXT:]


def say(text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def print_group(group: Group, *, with_details: bool) -> None:
    """Print one line for a file, and a line for each test that failed."""
    counts = group.counts
    mark = "FAIL" if counts["failed"] else "ok"
    total = len(group.outcomes)
    others = "".join(
        f", {counts[word]} {word}" for word in ("failed", "skipped", "untestable") if counts[word]
    )
    say(
        f"{mark:4} {group.profile:7} {group.file:44} {counts['passed']:3}/{total:<3} "
        f"{group.seconds:6.1f} s{others}"
    )
    for outcome in group.outcomes:
        if outcome.verdict == "failed":
            say(f"       {outcome.name}")
            if with_details:
                say(outcome.text.rstrip())


def write_report(path: Path, suite: str, groups: Sequence[Group]) -> None:
    """Write what became of every test as JSON."""
    totals: Counter[str] = sum((group.counts for group in groups), Counter())
    report = {"suite": suite, "totals": totals, "files": [asdict(group) for group in groups]}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
