from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hosts.models import Host
from hosts.region.node import RegionFileError
from tests.factories import make_host, make_hosts
from tests.hosts.region_files import dump, empty_database, load

pytestmark = pytest.mark.django_db(transaction=True)
FACTS: dict[str, Any] = {
    "name": "h1",
    "building_block": "bb101",
    "custom_traits": ["CUSTOM_B", "CUSTOM_A"],
    "conditions": {"Ready": "True", "Tainted": False},
    "domain_capabilities": {"features": ["sgx", "sev"], "cpu_modes": ["host-model"]},
}


def write(folder: Path, *hosts: dict[str, Any]) -> Path:
    path = folder / "facts.json"
    path.write_text(json.dumps({"headroom": {"hosts": hosts}}), encoding="utf-8")
    return path


def counts(path: Path, **options: bool) -> tuple[int, int, int, int]:
    report = load(path, **options)
    section = report.of("headroom.hosts")
    return section.updated, section.unchanged, section.removed, section.skipped


def test_facts_are_stored_and_a_second_import_writes_nothing(tmp_path: Path) -> None:
    make_hosts(2)
    path = write(tmp_path, FACTS, {"name": "h2"})
    assert counts(path) == (1, 1, 0, 0)
    host = Host.objects.get(name="h1")
    assert host.building_block == "bb101"
    assert host.custom_traits == ["CUSTOM_A", "CUSTOM_B"]
    assert host.conditions == {"Ready": "True", "Tainted": "False"}
    assert host.domain_capabilities == {"features": ["sev", "sgx"], "cpu_modes": ["host-model"]}
    assert counts(path) == (0, 2, 0, 0)
    assert Host.objects.get(name="h1").changed_xid == host.changed_xid


def test_facts_of_unknown_hosts_are_skipped_and_listed(tmp_path: Path) -> None:
    report = load(write(tmp_path, FACTS))
    assert [(remark.object_id, remark.reason) for remark in report.remarks] == [
        ("h1", "unknown_host")
    ]


def test_prune_forgets_the_facts_of_other_hosts(tmp_path: Path) -> None:
    make_hosts(1)
    make_host("old", building_block="bb9", conditions={"Ready": "False"})
    path = write(tmp_path, FACTS)
    assert counts(path) == (1, 0, 0, 0)
    assert counts(path, prune=True) == (0, 1, 1, 0)
    old = Host.objects.get(name="old")
    assert (old.building_block, old.conditions) == ("", {})
    assert Host.objects.get(name="h1").building_block == "bb101"


def test_a_host_that_was_not_brought_in_stays_out_of_service(tmp_path: Path) -> None:
    aborted = {"Onboarding": "False", "Ready": "False"}
    ready = {"reason": "Onboarding", "message": "aborted"}
    reasons = {"Onboarding": {"reason": "Aborted"}, "Ready": ready}
    for name in ("h1", "h2"):
        make_host(name, conditions=aborted, condition_reasons=reasons)
    path = write(tmp_path, FACTS)
    assert counts(path, prune=True) == (1, 0, 0, 0)
    assert counts(path, prune=True) == (0, 1, 0, 0)
    told, untold = Host.objects.order_by("name")
    assert told.conditions == aborted | {"Tainted": "False"}
    assert untold.conditions == aborted
    assert not told.is_ready
    assert not untold.is_ready


def test_facts_round_trip(tmp_path: Path) -> None:
    make_hosts(2)
    load(write(tmp_path, FACTS))
    first = tmp_path / "dump.json"
    first.write_bytes(dump())
    empty_database()
    load(first)
    assert dump() == first.read_bytes()
    assert json.loads(first.read_bytes())["headroom"]["hosts"] == [
        {
            "name": "h1",
            "building_block": "bb101",
            "custom_traits": ["CUSTOM_A", "CUSTOM_B"],
            "conditions": {"Ready": "True", "Tainted": "False"},
            "domain_capabilities": {"features": ["sev", "sgx"], "cpu_modes": ["host-model"]},
        }
    ]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "headroom.hosts[0].name: missing"),
        ({"name": "h1", "conditions": {"Ready": "yes"}}, "conditions.Ready: must be one of"),
        ({"name": "h1", "custom_traits": "A"}, "custom_traits: must be a list"),
        ({"name": "h1", "domain_capabilities": {"x": []}}, "domain_capabilities.x: must be one"),
        ({"name": "h1", "domain_capabilities": {"features": [1]}}, "features[0]: must be a text"),
    ],
)
def test_malformed_facts_change_nothing(tmp_path: Path, facts: dict[str, Any], words: str) -> None:
    make_hosts(1)
    with pytest.raises(RegionFileError) as error:
        load(write(tmp_path, facts))
    assert words in str(error.value)
    assert Host.objects.get().building_block == ""


def test_a_host_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RegionFileError, match="is defined twice"):
        load(write(tmp_path, FACTS, FACTS))
