"""Run the functional tests of the command line client against a served Headroom.

They come from the installed distribution ``osc-placement`` and would start the reference service in
their own process: that one fixture is replaced by the address of a live server, which is emptied
before every test. This program runs in the peer environment (``./run conformance``).
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import importlib.metadata
import io
import logging
import os
import sys
import time
import unittest
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import fixtures
from outcomes import CaseResult, Collector, Group, print_group, write_report
from seeding import Preparer

DISTRIBUTION = "osc-placement"
TESTS = "osc_placement.tests.functional"
REFERENCE_FIXTURE = "placement.tests.functional.fixtures.placement"
TOKEN = "admin"  # noqa: S105 - noauth's user name


def replace_reference(url: str) -> None:
    """Make the tests' fixture name a live server instead of starting the reference."""

    class LiveServer(fixtures.Fixture):  # type: ignore[misc]  # untyped base
        def __init__(self, *_arguments: object, **_options: object) -> None:
            super().__init__()
            self.token = TOKEN
            self.endpoint = url

        def setUp(self) -> None:
            super().setUp()
            with Preparer(url, token=TOKEN) as preparer:
                preparer.wipe()

    module: Any = importlib.import_module(REFERENCE_FIXTURE)
    module.PlacementFixture = LiveServer


def all_tests(item: unittest.TestSuite | unittest.TestCase) -> Iterator[unittest.TestCase]:
    """Yield the tests of a suite, nested suites included."""
    if isinstance(item, unittest.TestSuite):
        for inner in item:
            yield from all_tests(inner)
    else:
        yield item


def discover() -> dict[str, list[unittest.TestCase]]:
    """Return the tests of the installed package by module."""
    folder = Path(str(importlib.import_module(TESTS).__file__)).parent
    suite = unittest.TestLoader().discover(str(folder), top_level_dir=str(folder.parents[2]))
    found: dict[str, list[unittest.TestCase]] = {}
    for test in all_tests(suite):
        module = type(test).__module__.rpartition(".")[2]
        found.setdefault(f"osc-{module.removeprefix('test_')}", []).append(test)
    return dict(sorted(found.items()))


def run_module(name: str, tests: list[unittest.TestCase]) -> Group:
    """Run the tests of one module and return what became of them."""
    started = time.monotonic()
    outcomes = []
    for test in tests:
        collector = Collector({})
        with redirect_stderr(io.StringIO()):  # the tests log every step
            test.run(collector)
        missing = CaseResult(name=test.id(), verdict="failed", text="no result was recorded")
        kept = list(collector.by_name.values()) or [missing]
        outcomes.append(kept[0])
    return Group(
        file=name,
        profile="legacy",
        seconds=round(time.monotonic() - started, 2),
        outcomes=outcomes,
    )


def main() -> int:
    """Run the chosen modules; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--report", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # One test starts the client's program, which lies in this environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYTHONWARNINGS"] = "ignore"
    replace_reference(options.url.rstrip("/"))
    groups = []
    for name, tests in discover().items():
        if options.only and not any(fnmatch.fnmatch(name, each) for each in options.only):
            continue
        group = run_module(name, tests)
        print_group(group, with_details=options.details)
        groups.append(group)
    suite = f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"
    write_report(options.report, suite, groups)
    return int(any(group.counts["failed"] for group in groups))


if __name__ == "__main__":
    sys.exit(main())
