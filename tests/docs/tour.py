"""The README's tour as data: its commands in order, each with what the README says it prints."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE_OR_SEARCH = re.compile(
    rf"{FENCE.pattern}|<(http://127\.0\.0\.1:8000/admin/\S+\?q=\S+)>", re.MULTILINE | re.DOTALL
)
FOUND = "the search finds something"
NORMALISATIONS = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\bdryrun-[0-9A-Za-z]{1,8}-"), "dryrun-REQUEST-"),
    (re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z| UTC|\+00:00)"), "TIME"),
    (re.compile(r"\((in )?[\d,]+ (s|min|h|d)( ago)?\)"), "(WHEN)"),
    (re.compile(r"\bversion \d+"), "version VERSION"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """Commands of one fenced block, and the output that the next block shows."""

    commands: str
    output: str


def tour_steps(readme: str) -> tuple[Step, ...]:
    """Return the steps of the tour; without those that start servers."""
    start = readme.index("## A ten-minute tour")
    return page_steps(readme[start : readme.index("\n## ", start + 1)])


def page_steps(page: str) -> tuple[Step, ...]:
    """Return the steps of a page; those that start servers are left to the reader."""
    steps: list[Step] = []
    for language, text, search in FENCE_OR_SEARCH.findall(page):
        if search:
            steps.append(Step(search_command(search), FOUND))
        elif language == "bash":
            steps.append(Step(text, ""))
        elif language == "text" and steps:
            steps[-1] = Step(steps[-1].commands, text)
        else:
            raise ValueError(f"a block of the tour is {language!r}, not bash followed by text")
    servers = ("./run demo", "./run serve")
    return tuple(step for step in steps if not step.commands.startswith(servers))


def search_command(url: str) -> str:
    """Return what opens a page of the admin with the session in TOUR_SESSION, and counts rows."""
    page = f'curl -s -H "Cookie: sessionid=$TOUR_SESSION" {shlex.quote(url)}'
    return f"{page} | grep -q '/change/' && echo '{FOUND}'\n"


def normalised(text: str) -> list[str]:
    """Return the lines of an output without what differs from run to run."""
    for pattern, word in NORMALISATIONS:
        text = pattern.sub(word, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def differences(shown: str, printed: str) -> Iterator[str]:
    """Yield where an output differs from the README; ``...`` there ends a line early."""
    expected, found = normalised(shown), normalised(printed)
    if len(expected) != len(found):
        yield f"the README shows {len(expected)} lines, {len(found)} were printed"
    for wanted, line in zip(expected, found, strict=False):
        head, elided, _ = wanted.partition("...")
        if line != wanted and not (elided and line.startswith(head)):
            yield f"README:  {wanted}\nprinted: {line}"
