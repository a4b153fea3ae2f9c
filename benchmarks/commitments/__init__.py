"""``bench commitments``: the background work of commitments, one module for each part.

A part is a function that takes ``is_quick`` and returns its measures; add it to ``PARTS``.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from benchmarks.commitments import capacity, compaction, reports, sync, usage
from benchmarks.measures import Measure

PARTS: dict[str, Callable[..., list[Measure]]] = {
    "syncer": sync.run,
    "usage": usage.run,
    "capacity": capacity.run,
    "compaction": compaction.run,
    "report-usage": reports.run,
}


def run(*, is_quick: bool) -> list[Measure]:
    """Measure every part, one after the other; each starts from a database of its own making."""
    rows: list[Measure] = []
    for name, part in PARTS.items():
        Console().print(f"[bold]{name}[/bold]")
        rows += part(is_quick=is_quick)
    return rows
