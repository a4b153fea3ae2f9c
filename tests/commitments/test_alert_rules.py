"""Alert rules of commitments ask for metrics that exist."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from tests.alert_rules import rules
from tests.factories import make_commitment, make_group, make_group_capacity, make_host
from tests.scraping import scrape

METRIC = re.compile(r"\bcortex_[a-z_]+")
SERIES_OF_A_HISTOGRAM = re.compile(r"_(bucket|count|sum)$")


@pytest.mark.django_db
def test_rules_use_only_metrics_that_are_scraped(client: Client) -> None:
    make_group()
    make_host()
    make_group_capacity()
    make_commitment(is_accepted=False, ready_reason="Reserving", allow_rejection=False)
    scraped = set(re.findall(r"^# TYPE (\w+) ", scrape(), re.M))
    used = {
        SERIES_OF_A_HISTOGRAM.sub("", name)
        for rule in rules("commitments")
        for name in METRIC.findall(rule["expr"])
    }
    assert sorted(used - scraped) == []
