from __future__ import annotations

import re

import pytest
from prometheus_client import REGISTRY

from capacity.metrics.reservations import RESERVATIONS
from failover.metrics import COVERAGE, LAST_RUN
from journal.metrics import metric_name
from tests.alert_rules import rules

METRIC = re.compile(r"\bcortex_[a-z_]+")


@pytest.mark.django_db
def test_rules_use_only_metrics_that_exist() -> None:
    exported = {family.name for family in REGISTRY.collect()}
    for collector in (COVERAGE, LAST_RUN, RESERVATIONS):
        exported |= {family.name for family in collector.collect()}
    used = {
        name.removesuffix("_total")
        for rule in rules("failover")
        for name in METRIC.findall(rule["expr"])
    }
    exported = {name.removesuffix("_total") for name in exported}

    assert metric_name("") == "cortex_"
    assert used <= exported
