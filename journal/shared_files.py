"""Reading the files in which the processes of a role keep their counters.

The library decodes every key of every file at every scrape, most of its cost. Here the numbers of
all processes are added up under the undecoded key first, and each key is decoded once in the life
of the process; the rest is the library's.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson
from prometheus_client import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

#: Keys of label values that are not seen any more would stay for ever.
MOST_KEYS: Final = 50_000
Labels = tuple[tuple[str, str], ...]
Key = tuple[str, str, Labels, str]
_decoded: dict[str, Key] = {}


class SharedFilesCollector:
    """Collects the metrics of all processes that share a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics, those of processes that have ended included."""
        metrics: dict[str, Metric] = {}
        sums: dict[str, dict[str, float]] = {"counter": {}, "histogram": {}, "summary": {}}
        for path in sorted(self._directory.glob("*.db")):
            kind, *details = path.stem.split("_")
            if kind == "gauge":
                _add_gauges(metrics, path, mode=details[0], pid=details[1])
                continue
            added = sums[kind]
            for key, value, _, _ in _values(path):
                added[key] = added.get(key, 0.0) + value
        for kind, added in sums.items():
            for key, value in added.items():
                metric, name, labels = _metric_of(metrics, key, kind)
                metric.add_sample(name, labels, value)  # type: ignore[arg-type]  # as the library
        merged: Iterable[Metric] = MultiProcessCollector._accumulate_metrics(  # type: ignore[no-untyped-call]  # noqa: SLF001 - what its own merge does
            metrics, accumulate=True
        )
        return merged


def _values(path: Path) -> Iterable[tuple[str, float, float, int]]:
    try:
        values: Iterable[Any] = MmapedDict.read_all_values_from_file(str(path))  # type: ignore[no-untyped-call]  # Any: untyped
        return list(values)
    except FileNotFoundError:  # of a process that ended a moment ago
        return ()


def _add_gauges(metrics: dict[str, Metric], path: Path, *, mode: str, pid: str) -> None:
    for key, value, timestamp, _ in _values(path):
        metric, name, labels = _metric_of(metrics, key, "gauge")
        metric._multiprocess_mode = mode  # type: ignore[attr-defined]  # noqa: SLF001 - as the library
        metric.add_sample(name, (*labels, ("pid", pid)), value, timestamp)  # type: ignore[arg-type]


def _metric_of(metrics: dict[str, Metric], key: str, kind: str) -> tuple[Metric, str, Labels]:
    metric_name, name, labels, words = _decode(key)
    metric = metrics.get(metric_name)
    if metric is None:
        metric = metrics[metric_name] = Metric(metric_name, words, kind)
    return metric, name, labels


def _decode(key: str) -> Key:
    known = _decoded.get(key)
    if known is None:
        if len(_decoded) >= MOST_KEYS:
            _decoded.clear()
        metric_name, name, labels, words = orjson.loads(key)
        known = (metric_name, name, tuple(sorted(labels.items())), words)
        _decoded[key] = known
    return known
