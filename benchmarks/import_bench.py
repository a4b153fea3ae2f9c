"""``bench import``: time and peak memory of loading a region file into an empty database."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.bench_region import empty_database
from benchmarks.measures import ROOT, Measure, fitted_exponent, measure

SECONDS_TARGET = 120.0
GIB_TARGET = 1.5
VMS_PER_HOST = 20
COMMITMENTS_PER_HOST = 2


def run(*, is_quick: bool) -> list[Measure]:
    """Measure three sizes; the largest full one has the targets."""
    sizes = (100, 300, 1000) if is_quick else (1000, 3000, 10000)
    rows: list[Measure] = []
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / f"region-{size}.json"
            Console().print(f"generating {size} hosts")
            _manage("generate_region", *_generator_options(size), "--output", str(path))
            empty_database()
            Console().print(f"importing {path.stat().st_size / 1e6:.0f} MB")
            taken, peak_gib = _manage("import_region", str(path), "--no-place")
            seconds.append(taken)
            is_largest = size == 10000  # noqa: PLR2004 - the size with targets
            label = f"{size} hosts, {size * VMS_PER_HOST} VMs"
            rows += [
                measure(
                    "import",
                    label,
                    taken,
                    "s",
                    at_most=SECONDS_TARGET if is_largest else None,
                ),
                measure(
                    "peak memory",
                    label,
                    peak_gib,
                    "GiB",
                    at_most=GIB_TARGET if is_largest else None,
                ),
            ]
            again, _ = _manage("import_region", str(path), "--no-place")
            rows.append(measure("import again, nothing changed", label, again, "s"))
    exponent = fitted_exponent(sizes, seconds)
    rows.append(measure("fitted exponent of import", "all sizes", exponent, "", at_most=1.1))
    return rows


def _generator_options(hosts: int) -> list[str]:
    return [
        "--hosts",
        str(hosts),
        "--seed",
        "1",
        "--vms-per-host",
        str(VMS_PER_HOST),
        "--commitments",
        str(hosts * COMMITMENTS_PER_HOST),
    ]


def _manage(*arguments: str) -> tuple[float, float]:
    """Run a management command; return its seconds and its peak memory in GiB."""
    before = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        stdout=subprocess.DEVNULL,
        env=dict(os.environ),
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        message = f"manage.py {' '.join(arguments)} failed"
        raise RuntimeError(message)
    return time.perf_counter() - before, usage.ru_maxrss / (1 << 20)
