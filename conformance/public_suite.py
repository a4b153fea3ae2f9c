"""Run the public Placement test files against a served Headroom.

The files (gabbi format) are read from the installed distribution ``openstack-placement``; none of
its Python is imported. Every file starts on an emptied server. This program runs in the peer
environment (``./run conformance``), where our own ``placement`` must not be importable.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.metadata
import logging
import os
import sys
import time
import types
import unittest
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gabbi import fixture as gabbi_fixture
from gabbi import handlers, suitemaker, utils
from outcomes import CaseResult, Collector, Group, print_group, write_report
from scenes import PROFILES, SCENES
from seeding import Preparer

DISTRIBUTION = "openstack-placement"
FOLDER = "placement/tests/functional/gabbits/"
TIMEOUT_SECONDS = 60
UNTESTABLE: Mapping[str, Mapping[str, str]] = {
    "basic-http": {
        "bad content length not int": "clients and servers refuse such a header themselves"
    }
}


def test_files() -> list[Path]:
    """Return the test files of the installed package in order of their names."""
    distribution = importlib.metadata.distribution(DISTRIBUTION)
    return sorted(
        Path(str(distribution.locate_file(file)))
        for file in distribution.files or ()
        if str(file).startswith(FOLDER) and file.suffix == ".yaml"
    )


def fixtures_module(urls: Mapping[str, str]) -> types.SimpleNamespace:
    """Return what gabbi takes for a module: one fixture class per name the files use.

    Args:
        urls: Address of the server of each profile.
    """

    def fixture_class(name: str) -> type[Any]:
        profile, scene = SCENES[name]

        class LiveFixture(gabbi_fixture.GabbiFixture):  # type: ignore[misc]  # untyped base
            def start_fixture(self) -> None:
                with Preparer(urls[profile]) as preparer:
                    preparer.wipe()
                    preparer.seed(scene)

        LiveFixture.__name__ = LiveFixture.__qualname__ = name
        return LiveFixture

    return types.SimpleNamespace(**{name: fixture_class(name) for name in SCENES})


def prefix_expected_links(tests: list[dict[str, Any]], prefix: str) -> None:
    """Adapt expected links: the files assume a server mounted at the root."""
    for test in tests:
        expected = test.get("response_json_paths") or {}
        for path, text in expected.items():
            is_link = path.endswith("href") and isinstance(text, str) and text.startswith("/")
            if is_link and not text.endswith("/"):
                expected[path] = prefix + text


def run_file(path: Path, urls: Mapping[str, str], module: types.SimpleNamespace) -> Group:
    """Run one file from an empty server and return what became of its tests."""
    name = path.stem
    content: dict[str, Any] = utils.load_yaml(yaml_file=str(path))
    fixture = (content.get("fixtures") or ["APIFixture"])[0]
    profile = SCENES[fixture][0]
    host, port, prefix, _ = utils.host_info_from_target(urls[profile])
    defaults = content.get("defaults") or {}
    # One client is made per test: loading the CA bundle 1300 times takes longer than the tests.
    content["defaults"] = {"timeout": TIMEOUT_SECONDS, "cert_validate": False, **defaults}
    prefix_expected_links(content["tests"], prefix)
    suite = suitemaker.test_suite_from_dict(
        unittest.TestLoader(),
        name,
        content,
        str(path.parent),
        host,
        port,
        module,
        None,
        prefix=prefix,
        handlers=[handler() for handler in handlers.RESPONSE_HANDLERS],
        test_loader_name="headroom",
    )
    collector = Collector(UNTESTABLE.get(name, {}))
    started = time.monotonic()
    suite.run(collector)
    missing = "no result was recorded"
    return Group(
        file=name,
        profile=profile,
        seconds=round(time.monotonic() - started, 2),
        outcomes=[
            collector.by_name.get(
                test["name"], CaseResult(name=test["name"], verdict="failed", text=missing)
            )
            for test in content["tests"]
        ],
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for profile in PROFILES:
        parser.add_argument(f"--{profile}", required=True, metavar="URL")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--report", type=Path, required=True)
    return parser.parse_args(arguments)


def main() -> int:
    """Run the chosen files; return 1 if a test failed."""
    options = parse()
    warnings.simplefilter("ignore")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    urls = {profile: getattr(options, profile) for profile in PROFILES}
    module = fixtures_module(urls)
    environment = dict(os.environ)
    groups = []
    for path in test_files():
        if options.only and not any(fnmatch.fnmatch(path.stem, each) for each in options.only):
            continue
        group = run_file(path, urls, module)
        print_group(group, with_details=options.details)
        groups.append(group)
        os.environ.clear()
        os.environ.update(environment)
    suite = f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"
    write_report(options.report, suite, groups)
    return int(any(group.counts["failed"] for group in groups))


if __name__ == "__main__":
    sys.exit(main())
