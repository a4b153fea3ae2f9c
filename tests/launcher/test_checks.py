from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from config.launcher import checks
from config.launcher.checks import STEPS, LintStep, run_lint
from config.launcher.places import Checkout
from config.launcher.processes import run_in_foreground

CONTRACTS = """
[tool.mypy]
strict = true

[tool.importlinter]
root_packages = ["upper", "lower"]

[[tool.importlinter.contracts]]
name = "floors"
type = "layers"
layers = ["upper", "lower"]
"""
GOOD = '"""Say nothing."""\n'
BAD = "import upper\ndef broken( ) -> int : return 'text'\n"


def make_project(root: Path, lower: str) -> Path:
    (root / "pyproject.toml").write_text(CONTRACTS)
    (root / "run").write_text(GOOD)
    for package, text in (("upper", GOOD), ("lower", lower)):
        (root / package).mkdir()
        (root / package / "__init__.py").write_text(text)
    return root


@pytest.mark.parametrize(
    "check", [s for s in STEPS if s.arguments[0] != "manage.py"], ids=lambda check: check.title
)
def test_each_static_check_fails_on_bad_code_and_passes_on_good(
    tmp_path: Path, check: LintStep
) -> None:
    env = {**os.environ, "PYTHONPATH": ""}
    codes = []
    for name, text in (("bad", BAD), ("good", GOOD)):
        (tmp_path / name).mkdir()
        project = make_project(tmp_path / name, text)
        codes.append(run_in_foreground([sys.executable, *check.arguments], env=env, cwd=project))
    assert codes[0] != 0
    assert codes[1] == 0


def test_a_failed_check_does_not_hide_the_ones_after_it(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = (
        LintStep(title="first", arguments=("-c", "raise SystemExit(1)")),
        LintStep(title="second", arguments=("-c", "print('second ran')")),
    )
    monkeypatch.setattr(checks, "STEPS", steps)
    assert run_lint(checkout, os.environ) == 1
    said = capfd.readouterr().out
    assert "second ran" in said
    table = [line.split()[:2] for line in said.splitlines()[-2:]]
    assert table == [["first", "FAILED"], ["second", "ok"]]
