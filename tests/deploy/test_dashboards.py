"""Grafana's dashboards ask for metrics that are there, in queries that Prometheus understands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client

from config.launcher.places import this_checkout
from tests.scraping import scrape

DASHBOARDS = sorted((this_checkout().root / "deploy" / "grafana").glob("*.json"))
PROMTOOL = shutil.which("promtool")
#: What a process tells of itself under ``prometheus_client``'s own names, where it counts alone.
OF_THE_LIBRARY = {"process_resident_memory_bytes"}
NAME = re.compile(r"\b((?:cortex|placement|django)_\w+|process_\w+)\b")


def panels(path: Path) -> list[dict[str, Any]]:  # Any: JSON
    return list(json.loads(path.read_text(encoding="utf-8"))["panels"])


def queries() -> dict[str, str]:
    return {
        f"{path.stem}:{panel['title']}:{target['refId']}": target["expr"]
        for path in DASHBOARDS
        for panel in panels(path)
        for target in panel["targets"]
    }


@pytest.mark.django_db
def test_every_metric_is_told(client: Client) -> None:
    client.get("/statusz")  # the first request makes those of requests
    told = set(re.findall(r"^# TYPE (\w+) ", scrape(), re.M)) | OF_THE_LIBRARY
    asked = {
        name: re.sub(r"_bucket$", "", name)
        for query in queries().values()
        for name in NAME.findall(query)
    }
    assert sorted(name for name, family in asked.items() if family not in told) == []


def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    if PROMTOOL is None:
        pytest.skip("promtool is not installed (Debian: prometheus): queries are NOT tested")
    rules = [
        {"record": f"query_{number}", "expr": query}
        for number, query in enumerate(queries().values())
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(  # noqa: S603 - ours
        [PROMTOOL, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_names_of_their_own_and_do_not_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(path):
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    titles = [panel["title"] for panel in panels(path)]
    assert len(titles) == len(set(titles))
