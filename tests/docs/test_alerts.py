"""Every alert leads to what it means, where to look, what to do and when it is over."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.alert_rules import FOLDER, rules
from tests.docs.tour import ROOT

PAGE = ROOT / "docs" / "alerts.md"
METRIC = re.compile(r"\b(?:cortex_|placement_|container_|failover:)\w[\w:]+")
SECTION = re.compile(r"^### ([^\n]+)\n\n(.+?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, str]:
    found = SECTION.findall(PAGE.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"): text for title, text in found}


def alerts_of(text: str) -> set[str]:
    return set(re.findall(r"`([A-Z]\w+)`", text.partition("\n\n")[0]))


def alerts() -> list[dict[str, Any]]:  # Any: the shape of a rules file
    apps = sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.rules.yaml"))
    return [rule for app in apps for rule in rules(app) if "alert" in rule]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_leads_to_what_to_do(rule: dict[str, Any]) -> None:
    path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert ROOT / path == PAGE
    text = sections()[anchor]
    assert rule["alert"] in alerts_of(text)
    means, *parts = re.split(r"\n- (?=[A-Z][a-z]+: )", text.strip())
    assert re.search(r": .{20}", means), "it does not say what it means"
    said = dict(part.split(": ", 1) for part in parts)
    assert list(said) == ["See", "Query", "Do", "Over"]
    assert all(len(words) > 8 for words in said.values())


@pytest.mark.parametrize("anchor", sections())
def test_queries_ask_for_what_the_alerts_are_about(anchor: str) -> None:
    text = sections()[anchor]
    asked = set(METRIC.findall(re.findall(r"^- Query: .+$", text, re.MULTILINE)[0]))
    judged = [rule["expr"] for rule in alerts() if rule["alert"] in alerts_of(text)]
    assert asked
    assert asked <= {name for expression in judged for name in METRIC.findall(expression)}


def test_the_page_has_no_other_alerts() -> None:
    told = [alert for text in sections().values() for alert in sorted(alerts_of(text))]
    assert sorted(told) == sorted({rule["alert"] for rule in alerts()})
