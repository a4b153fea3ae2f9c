from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from config.launcher.conformance import (
    PROFILES,
    ConformanceOptions,
    conclude,
    database_beside,
    is_wanted,
    parse_conformance,
)
from config.launcher.locks import lock_of
from config.launcher.peers import REQUIREMENTS, ensure_peer, reference_config
from config.launcher.places import Checkout
from config.launcher.terminal import LauncherError


@pytest.mark.parametrize(
    ("only", "programs"),
    [
        pytest.param([], {"public_suite.py", "client_suite.py"}, id="everything"),
        pytest.param(["allocation*"], {"public_suite.py"}, id="public files"),
        pytest.param(["osc-*"], {"client_suite.py"}, id="the client's"),
        pytest.param(["osc-usage", "usage"], {"public_suite.py", "client_suite.py"}, id="both"),
        pytest.param(["*usage"], {"public_suite.py", "client_suite.py"}, id="any"),
    ],
)
def test_programs_without_a_wanted_file_are_left_out(only: list[str], programs: set[str]) -> None:
    both = ("public_suite.py", "client_suite.py")
    assert {program for program in both if is_wanted(program, only)} == programs


@pytest.mark.parametrize(
    ("address", "name", "own"),
    [
        pytest.param(
            "postgresql://u:p@db.example:5432/prod?sslmode=require",
            "prod_conformance",
            "postgresql://u:p@db.example:5432/prod_conformance?sslmode=require",
            id="beside the given one",
        ),
        pytest.param(
            "postgresql://headroom@/headroom_conformance_1?host=/run/pg",
            "headroom_conformance_1",
            "postgresql://headroom@/headroom_conformance_1?host=/run/pg",
            id="our own server",
        ),
        pytest.param(
            "postgresql://h/a", "a_conformance", "postgresql://h/a_conformance", id="no query"
        ),
    ],
)
def test_the_given_database_is_never_the_one_that_is_emptied(
    address: str, name: str, own: str
) -> None:
    assert database_beside(address) == (name, own)


def test_options_are_read(tmp_path: Path) -> None:
    checkout = Checkout(root=tmp_path)

    options = parse_conformance(checkout, ["--only", "a*", "--only", "b", "--details"])

    assert (options.only, options.with_details) == (("a*", "b"), True)
    assert options.report == tmp_path / ".local" / "conformance" / "report.json"


def report(**totals: int) -> dict[str, Any]:
    return {"suite": "the suite", "totals": totals, "files": []}


@pytest.mark.parametrize(
    ("reports", "codes", "expected"),
    [
        pytest.param([report(passed=3)], [0], (0, "3 passed, 0 failed"), id="all pass"),
        pytest.param(
            [report(passed=3), report(passed=2, failed=1)], [0, 1], (1, "5 passed, 1 failed"),
            id="one fails",
        ),
        pytest.param([report(passed=3)], [0, 2], (2, "3 passed, 0 failed"), id="a program broke"),
        pytest.param(
            [report(passed=3, untestable=1)], [0], (0, "the suite: 3 passed, 1 untestable"),
            id="untestable is no failure",
        ),
    ],
)  # fmt: skip
def test_the_status_is_zero_only_if_all_passed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    reports: list[dict[str, Any]],
    codes: list[int],
    expected: tuple[int, str],
) -> None:
    options = ConformanceOptions(only=(), with_details=False, report=tmp_path / "report.json")

    assert conclude(options, reports, codes) == expected[0]
    assert expected[1] in capsys.readouterr().out


def test_running_nothing_is_a_failure(tmp_path: Path) -> None:
    options = ConformanceOptions(only=(), with_details=False, report=tmp_path / "report.json")

    with pytest.raises(LauncherError, match="no test was run"):
        conclude(options, [], [])


def test_every_profile_of_the_tests_has_a_server() -> None:
    assert set(PROFILES) == {"legacy", "secure", "open", "cors"}


def test_the_references_environment_is_made_once(tmp_path: Path) -> None:
    checkout = Checkout(root=tmp_path)
    requirements = lock_of(tmp_path / REQUIREMENTS)
    requirements.write_text("# nothing\n")
    made = checkout.local / "placement-peer"
    made.mkdir(parents=True)
    text = str(sys.version_info[:2]).encode() + requirements.read_bytes()
    (made / "requirements.sha256").write_text(hashlib.sha256(text).hexdigest())
    (made / "marker").touch()

    assert ensure_peer(checkout).python == made / "bin" / "python"
    assert (made / "marker").exists()


def test_the_reference_gets_its_database_and_takes_any_token() -> None:
    config = reference_config("sqlite:////x")

    assert "connection = sqlite:////x\n" in config
    assert "auth_strategy = noauth2\n" in config
