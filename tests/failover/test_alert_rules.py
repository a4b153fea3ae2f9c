from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from capacity.metrics.reservations import RESERVATIONS
from failover.metrics import COVERAGE, LAST_RUN
from journal.metrics import metric_name

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "failover.rules.yaml"
UNIT_TESTS = sorted(RULES.parent.glob("failover.*.test.yaml"))
PROMTOOL = shutil.which("promtool")
METRIC = re.compile(r"\bcortex_[a-z_]+")


def rules() -> list[dict[str, Any]]:  # Any: the shape of a rules file
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    if PROMTOOL is None:
        pytest.skip("promtool is not installed (Debian: prometheus): alert rules are NOT tested")
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False)  # noqa: S603


def test_rules_are_valid() -> None:
    checked = promtool("check", "rules", "--lint-fatal", str(RULES))

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.name)
def test_alerts_fire_when_they_should_and_only_then(path: Path) -> None:
    tested = promtool("test", "rules", str(path))

    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_unit_test_in_which_it_fires() -> None:
    fired = {
        case["alertname"]
        for path in UNIT_TESTS
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }

    assert {rule["alert"] for rule in rules() if "alert" in rule} == fired


@pytest.mark.django_db
def test_rules_use_only_metrics_that_exist() -> None:
    exported = {family.name for family in REGISTRY.collect()}
    for collector in (COVERAGE, LAST_RUN, RESERVATIONS):
        exported |= {family.name for family in collector.collect()}
    used = {
        name.removesuffix("_total") for rule in rules() for name in METRIC.findall(rule["expr"])
    }
    exported = {name.removesuffix("_total") for name in exported}

    assert metric_name("") == "cortex_"
    assert used <= exported
