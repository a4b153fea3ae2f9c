"""Results of a benchmark: rows, the fitted exponent, the table, the JSON file and the page."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".local" / "bench"
PAGE = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure of a benchmark.

    Attributes:
        metric: What was measured.
        size: What it was measured on, such as ``10000 hosts``.
        value: The figure.
        unit: Its unit.
        baseline: The same figure of the peer or the slow oracle in the same run.
        ratio: ``baseline / value``: how many times better than the baseline.
        target: The figure to reach; None when there is none.
        ok: Whether it was reached; None without a target.
    """

    metric: str
    size: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    target: float | None = None
    ok: bool | None = None


def measure(
    metric: str,
    size: str,
    value: float,
    unit: str,
    *,
    baseline: float | None = None,
    at_most: float | None = None,
    at_least_ratio: float | None = None,
) -> Measure:
    """Make a row; the target is a ceiling of the figure, or a floor of the ratio."""
    ratio = baseline / value if baseline is not None and value else None
    ok: bool | None = None
    target = at_most
    if at_most is not None:
        ok = value <= at_most
    elif at_least_ratio is not None and ratio is not None:
        target, ok = at_least_ratio, ratio >= at_least_ratio
    return Measure(
        metric=metric,
        size=size,
        value=value,
        unit=unit,
        baseline=baseline,
        ratio=ratio,
        target=target,
        ok=ok,
    )


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least ``share`` (0..1) of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def fitted_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of log cost over log size: 1 is linear, 0 does not grow."""
    xs = [math.log(size) for size in sizes]
    ys = [math.log(max(cost, 1e-9)) for cost in costs]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread


def publish(name: str, rows: Sequence[Measure], *, is_quick: bool, options: str = "") -> None:
    """Print the table, write the JSON file, and update the page after a full run.

    Args:
        options: With which the command was given, for the page.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(
        json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8"
    )
    table = Table(title=f"bench {name}{' (quick)' if is_quick else ''}")
    for heading in ("metric", "size", "value", "baseline", "ratio", "target", "ok"):
        table.add_column(heading, justify="left" if heading in {"metric", "size"} else "right")
    for row in rows:
        table.add_row(*_cells(row))
    Console(width=120).print(table)
    if not is_quick:
        _update_page(name, rows, options)


def _cells(row: Measure) -> tuple[str, ...]:
    def number(figure: float | None) -> str:
        return "" if figure is None else f"{figure:.4g}"

    mark = "" if row.ok is None else "yes" if row.ok else "NO"
    return (
        row.metric,
        row.size,
        f"{number(row.value)} {row.unit}".strip(),
        number(row.baseline),
        number(row.ratio),
        number(row.target),
        mark,
    )


def _update_page(name: str, rows: Sequence[Measure], options: str) -> None:
    """Replace the section of this benchmark in ``docs/benchmarks.md``."""
    begin, end = f"<!-- bench {name} -->", f"<!-- /bench {name} -->"
    spelled = f"{name.replace('-parts', ' --parts')} {options}".rstrip()
    lines = [
        begin,
        "",
        (
            f"Measured {datetime.now(tz=UTC):%Y-%m-%d} with `./run bench {spelled}`, "
            f"Python {platform.python_version()}, {os.cpu_count()} cores."
        ),
        "",
        "| metric | size | value | baseline | ratio | target | ok |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *("| " + " | ".join(_cells(row)) + " |" for row in rows),
        "",
        end,
    ]
    page = PAGE.read_text(encoding="utf-8")
    before, found, rest = page.partition(begin)
    after = rest.partition(end)[2] if found else "\n"
    PAGE.write_text(before + "\n".join(lines) + after, encoding="utf-8")
