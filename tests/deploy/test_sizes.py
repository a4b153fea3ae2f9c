"""Values for regions of some sizes: the chart takes them, the manual names them."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.chart import CHART, ROOT

SIZES = sorted((ROOT / "deploy" / "helm" / "sizes").glob("*.yaml"))
MANUAL = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
SETTINGS = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}
Values = dict[str, Any]  # Any: YAML


def merged(base: Values, more: Values) -> Values:
    """Return values as helm lays them over each other."""
    found = dict(base)
    for name, value in more.items():
        old = found.get(name)
        found[name] = merged(old, value) if isinstance(old, dict) else value
    return found


def bytes_of(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()  # type: ignore[union-attr]  # or fail
    return int(number) * UNITS[unit]


def values_of(size: str) -> Values:
    usual = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    path = ROOT / "deploy" / "helm" / "sizes" / f"{size}.yaml"
    return merged(usual, yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("size", [path.stem for path in SIZES])
def test_values_of_a_size_are_values_of_the_chart(size: str) -> None:
    values = values_of(size)
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(values, schema)
    for role in (values["web"], *values["workers"].values()):
        memory = (role["resources"][kind]["memory"] for kind in ("requests", "limits"))
        asked, most = map(bytes_of, memory)
        assert asked < most
    for name in values["secretFiles"]:
        assert f"`{name}`" in SETTINGS or f"`{name.removesuffix('_FILE')}`" in SETTINGS, name
    assert f"deploy/helm/sizes/{size}.yaml" in MANUAL


def test_a_larger_region_gets_no_less() -> None:
    def processes(size: str) -> list[int]:
        values = values_of(size)
        workers = [one["replicas"] * one["concurrency"] for one in values["workers"].values()]
        return [values["web"]["replicas"] * values["web"]["processes"], *workers]

    by_size = sorted((path.stem for path in SIZES), key=int)
    for smaller, larger in pairwise(by_size):
        assert all(a <= b for a, b in zip(processes(smaller), processes(larger), strict=True))
