"""Entry point of ``./run bench``."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
os.environ["HEADROOM_LOG_LEVEL"] = "ERROR"
if {"pages", "placement", "schedule"} & {
    *sys.argv[1:]
}:  # requests of a server, whose statements say no deadlines
    os.environ["HEADROOM_PROCESS"] = "web"

import django
from django.core.management import call_command

GATES = {"pages": "", "agents": "idle agent", "invariants": ""}
"""Benchmark -> how metrics begin whose limits hold at every size: it fails when one is broken."""

SIZED = {"invariants", "scale", "year"}
"""Benchmarks whose regions may have any size."""


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        message = f"no regular expression: {error}"
        raise argparse.ArgumentTypeError(message) from error
    return text


def main() -> None:
    """Run one benchmark on its own database."""
    django.setup()
    from benchmarks import (  # noqa: PLC0415 - models need the setup
        agents_bench,
        bridge_bench,
        change_bench,
        commitments,
        cutover_bench,
        failover_bench,
        feed_bench,
        gateway_bench,
        hypervisors_bench,
        import_bench,
        invariants_bench,
        machines_bench,
        metrics_bench,
        pages_bench,
        placement_bench,
        scale_bench,
        schedule_bench,
        year_bench,
    )
    from benchmarks.measures import Measure, publish  # noqa: PLC0415 - with them

    benchmarks: dict[str, Callable[..., Sequence[Measure]]] = {
        "agents": agents_bench.run,
        "bridge": bridge_bench.run,
        "change": change_bench.run,
        "commitments": commitments.run,
        "cutover": cutover_bench.run,
        "failover": failover_bench.run,
        "feed": feed_bench.run,
        "gateway": gateway_bench.run,
        "hypervisors": hypervisors_bench.run,
        "import": import_bench.run,
        "invariants": invariants_bench.run,
        "machines": machines_bench.run,
        "metrics": metrics_bench.run,
        "pages": pages_bench.run,
        "placement": placement_bench.run,
        "scale": scale_bench.run,
        "schedule": schedule_bench.run,
        "year": year_bench.run,
    }
    parser = argparse.ArgumentParser(prog="./run bench")
    parser.add_argument("name", choices=sorted(benchmarks))
    parser.add_argument("--quick", action="store_true", help="small sizes, ends within a minute")
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        type=_pattern,
        default="",
        help='placement: the cells that a regular expression finds, such as "1000 .*flat, one"',
    )
    parser.add_argument(
        "--hosts",
        metavar="N",
        type=int,
        nargs="+",
        help="invariants, scale, year: regions of these sizes",
    )
    parser.add_argument(
        "--parts", action="store_true", help="cutover: hosts change sides one by one, and return"
    )
    options = parser.parse_args()
    benchmark = benchmarks[options.name]
    if options.only:
        if options.name != "placement":
            parser.error("only placement has cells to choose from")
        benchmark = partial(placement_bench.run, only=options.only)
    if options.hosts:
        if options.name not in SIZED:
            parser.error(f"only {', '.join(sorted(SIZED))} have sizes to choose")
        benchmark = partial(benchmark, sizes=options.hosts)
    if options.parts:
        if options.name != "cutover":
            parser.error("only a cut-over has parts")
        benchmark = partial(cutover_bench.run_parts)
    call_command("migrate", verbosity=0)
    rows = benchmark(is_quick=options.quick)
    if not rows:
        parser.error(f"--only {options.only!r} finds no cell")
    name = f"{options.name}-parts" if options.parts else options.name
    sizes = options.hosts or ()
    publish(
        name,
        rows,
        is_quick=options.quick or bool(options.only) or len(sizes) == 1,
        options=f"--hosts {' '.join(map(str, sizes))}" if sizes else "",
    )
    gate = GATES.get(options.name)
    if gate is not None and any(row.ok is False and row.metric.startswith(gate) for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
