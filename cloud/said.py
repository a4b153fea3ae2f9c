"""Reading logs: what was said, and what of it is a problem."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

_BAD_LEVELS = {"error", "critical"}
_LONGEST = 200


def said_since(log: Path) -> Sequence[str]:
    """Return the lines of a log; none when it is not there."""
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ()


def problems_in(lines: Iterable[str]) -> list[str]:
    """Return the lines of a log of ours that tell of an error, shortened to what happened."""
    found = []
    for line in lines:
        if line.startswith("{"):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("level") in _BAD_LEVELS or entry.get("exception"):
                found.append(_short(entry))
        elif line.startswith("Traceback"):
            found.append(line)
    return found


def _short(entry: dict[str, object]) -> str:
    facts = [str(entry.get(name, "")) for name in ("event", "error", "detail", "code")]
    exception = str(entry.get("exception", "")).strip().splitlines()[-1:]
    return " ".join(fact for fact in (*facts, *exception) if fact)[:_LONGEST]
