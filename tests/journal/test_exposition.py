"""Our writer of metrics against the library's, byte for byte."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Enum,
    Gauge,
    Histogram,
    Info,
    Metric,
    Summary,
    generate_latest,
)
from prometheus_client.core import GaugeHistogramMetricFamily
from prometheus_client.registry import Collector

from capacity.models import ReservationKind
from journal import exposition
from journal.exposition import text_page
from journal.metrics import collect_facts, facts_page, role_page
from tests.factories import (
    make_commitment,
    make_group,
    make_group_capacity,
    make_host,
    make_quota,
    make_reservation,
    make_slot,
)

KINDS = ("counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset")
ODD = 'back\\slash "quote"\nline\u2028separator é'


class Given(Collector):
    """A registry of metrics collected before, since those of the process differ each time."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self.metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        return iter(self.metrics)


def check(metrics: Iterable[Metric]) -> int:
    """Compare both; the second time ours has seen everything before. Return the size."""
    collected = Given(metrics)
    theirs = generate_latest(collected)
    assert text_page(collected.collect()) == theirs
    assert text_page(collected.collect()) == theirs
    return len(theirs)


@pytest.mark.django_db
def test_all_our_metrics_are_written_as_by_the_library() -> None:
    group = make_group()
    host = make_host("h1")
    make_group_capacity(group)
    make_quota("p1")
    make_slot(make_commitment(), host)
    make_reservation(host, kind=ReservationKind.FAILOVER)
    assert check(collect_facts()) > 10_000
    assert check(REGISTRY.collect()) > 100_000
    assert facts_page().startswith(b"# HELP cortex_")
    assert b'\ncortex_role{role="web"} 1.0\n' in role_page("web")


def test_every_kind_of_metric_is_written_as_by_the_library() -> None:
    registry = CollectorRegistry()
    Counter("counted", ODD, ["a"], registry=registry).labels(ODD).inc()
    Gauge("shown", "no labels", registry=registry).set(1e21)
    Histogram("times", "s", ["z", "a"], registry=registry).labels("1", "2").observe(3)
    Summary("summed", "s", registry=registry).observe(2)
    Info("known", "i", registry=registry).info({"version": ODD})
    Enum("state", "e", states=["on", "off"], registry=registry)
    apart = GaugeHistogramMetricFamily("apart", "g", buckets=[("1", 1), ("+Inf", 2)], gsum_value=3)
    late = Metric("late", "with a time", "gauge")
    late.add_sample("late", {"a": "b"}, 1, timestamp=1.5)
    foreign = Metric("name.with.dots", "escaped", "unknown")
    foreign.add_sample("name.with.dots", {"label.too": "v"}, 2)
    named = Metric("born_created", "named like one that stands apart", "gauge")
    named.add_sample("born_created", {}, 3)
    check([*registry.collect(), apart, late, foreign, named, Metric("empty", "none", "summary")])


def test_labels_that_look_alike_are_told_apart() -> None:
    metric = Metric("alike", "", "gauge")
    for labels in ({"a": "b"}, {"b": "a"}, {"a": "b", "c": "d"}, {"a": "c", "b": "d"}, {}):
        metric.add_sample("alike", labels, 1)
        metric.add_sample("alike_a", labels, 1)
    check([metric])


numbers = st.one_of(
    st.floats(),
    st.integers(-(10**20), 10**20),
    st.booleans(),
    st.sampled_from([math.inf, -math.inf, math.nan, -0.0, 999_999.0, 999_999.5, 1e6, -1e6, 1e-7]),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@given(
    kind=st.sampled_from(KINDS),
    words=texts,
    samples=st.lists(
        st.tuples(
            st.sampled_from(["m", "m_total", "m_bucket", "m_sum", "m_created", "m_gsum", "other"]),
            st.dictionaries(st.sampled_from(["le", "a", "b.c", "zone"]), texts),
            numbers,
        ),
        max_size=5,
    ),
)
def test_whatever_is_told_is_written_as_by_the_library(
    kind: str, words: str, samples: list[tuple[str, dict[str, str], float]]
) -> None:
    metric = Metric("m", words, kind)
    for name, labels, value in samples:
        metric.add_sample(name, labels, value)
    check([metric])


def test_each_series_is_escaped_once() -> None:
    metric = Metric("often", "", "gauge")
    metric.add_sample("often", {"a": "of this test"}, 1)
    text_page([metric])
    before = exposition._series.cache_info().misses
    for value in range(3):
        again = Metric("often", "", "gauge")
        again.add_sample("often", {"a": "of this test"}, value)
        assert text_page([again]).endswith(f"}} {float(value)}\n".encode())
    assert exposition._series.cache_info().misses == before
