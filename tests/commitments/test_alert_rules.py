"""Alert rules of commitments: valid, tested one by one, on metrics that exist, in the manual."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client

from tests.factories import make_commitment, make_group, make_group_capacity, make_host
from tests.scraping import scrape

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "commitments.rules.yaml"
UNIT_TESTS = RULES.with_name("commitments.rules.test.yaml")
PROMTOOL = shutil.which("promtool")
METRIC = re.compile(r"\bcortex_[a-z_]+")
SERIES_OF_A_HISTOGRAM = re.compile(r"_(bucket|count|sum)$")


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


def test_alerts_fire_when_they_should_and_only_then() -> None:
    tested = promtool("test", "rules", str(UNIT_TESTS))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_unit_test_in_which_it_fires() -> None:
    fired = {
        case["alertname"]
        for test in yaml.safe_load(UNIT_TESTS.read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert {rule["alert"] for rule in rules()} == fired


@pytest.mark.django_db
def test_rules_use_only_metrics_that_are_scraped(client: Client) -> None:
    make_group()
    make_host()
    make_group_capacity()
    make_commitment(is_accepted=False, ready_reason="Reserving", allow_rejection=False)
    scraped = set(re.findall(r"^# TYPE (\w+) ", scrape(), re.M))
    used = {
        SERIES_OF_A_HISTOGRAM.sub("", name)
        for rule in rules()
        for name in METRIC.findall(rule["expr"])
    }
    assert sorted(used - scraped) == []
