"""Metrics as text, byte for byte as the library writes them.

The library checks and escapes each name and each label of each sample at every scrape, most of what
a page costs. Here it does so once for each series in the life of the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

#: What is known of series that are not told any more would stay for ever.
MOST_SERIES: Final = 50_000
#: Below, Python and Go write a number alike.
ALIKE_BELOW: Final = 1_000_000
#: Samples that the library puts behind all others of their metric.
APART: Final = ("_created", "_gsum", "_gcount")


class _Only(Collector):
    """A registry of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        """Return it."""
        return (self._metric,)


def text_page(metrics: Iterable[Metric]) -> bytes:
    """Return what ``generate_latest`` does of a registry with these metrics."""
    return "".join(map(_text, metrics)).encode()


def _text(metric: Metric) -> str:
    parts = [_heading(metric.name, metric.type, metric.documentation)]
    for name, labels, value, timestamp, *_ in metric.samples:
        if timestamp is not None or name.endswith(APART):
            return generate_latest(_Only(metric)).decode()
        is_alike = -ALIKE_BELOW < value < ALIKE_BELOW
        number = repr(float(value)) if is_alike else _go_number(value)
        parts.append(f"{_series(name, *labels, *labels.values())} {number}\n")
    return "".join(parts)


def _go_number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]  # untyped library
    return text


@lru_cache(maxsize=MOST_SERIES)
def _heading(name: str, kind: str, words: str) -> str:
    return generate_latest(_Only(Metric(name, words, kind))).decode()


@lru_cache(maxsize=MOST_SERIES)
def _series(name: str, *labels: str) -> str:
    """Return what stands before the number; ``labels`` are all names, then all values."""
    names, values = labels[: len(labels) // 2], labels[len(labels) // 2 :]
    metric = Metric("of_a_series", "", "gauge")
    metric.add_sample(name, dict(zip(names, values, strict=True)), 0)
    *_, line, _ = generate_latest(_Only(metric)).decode().split("\n")
    return line.removesuffix(" 0.0")
