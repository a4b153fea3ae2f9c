"""Alert rules are valid, and each fires in a test when it should and only then."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.alert_rules import FOLDER, rules

APPS = [path.name.partition(".")[0] for path in sorted(FOLDER.glob("*.rules.yaml"))]
PROMTOOL = shutil.which("promtool")


def promtool(*arguments: str) -> None:
    if PROMTOOL is None:
        pytest.skip("promtool is not installed (Debian: prometheus): alert rules are NOT tested")
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("app", APPS)
def test_rules_are_valid(app: str) -> None:
    promtool("check", "rules", "--lint-fatal", str(FOLDER / f"{app}.rules.yaml"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.test.yaml")), ids=lambda path: path.name)
def test_alerts_fire_when_they_should_and_only_then(path: Path) -> None:
    promtool("test", "rules", str(path))


@pytest.mark.parametrize("app", APPS)
def test_every_alert_has_a_unit_test_in_which_it_fires(app: str) -> None:
    fired = {
        case["alertname"]
        for path in FOLDER.glob(f"{app}.*.test.yaml")
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert fired
    assert {rule["alert"] for rule in rules(app) if "alert" in rule} == fired
