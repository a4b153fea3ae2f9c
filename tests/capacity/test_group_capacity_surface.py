from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.utils import timezone

from capacity.figures.group_capacity import ensure_fresh
from capacity.metrics.gauges import CAPACITY
from capacity.models import CapacityComputation, GroupCapacity
from capacity.tasks import refresh_group_capacity
from journal.metrics import metric_name, metrics_page
from tests.factories import make_commitment, make_group, make_host, make_slot, make_vm

pytestmark = pytest.mark.django_db

GROUP = 'az="az-a",flavor_group="hana_1"'
SMALLEST = f'{GROUP},flavor_name="small"'


def gauges() -> dict[str, float]:
    """Return every sample as ``name{labels}`` without the common start of the names."""
    samples = {}
    for family in CAPACITY.collect():
        for sample in family.samples:
            labels = ",".join(f'{name}="{label}"' for name, label in sorted(sample.labels.items()))
            suffix = sample.name.removeprefix("cortex_committed_resource_")
            samples[f"{suffix}{{{labels}}}"] = sample.value
    return samples


def make_region() -> None:
    make_group(flavors=(("small", 4096, 1),))
    host = make_host("h1", memory_gib=32, vcpus=64)
    make_vm(host=host, zone="az-b")
    make_vm(host=host, flavor_name="unknown")
    commitment = make_commitment(amount_gib=8)
    make_slot(commitment, host)
    make_slot(commitment, None)


def test_gauges_have_the_names_and_labels_of_the_specification() -> None:
    make_region()
    ensure_fresh(["az-a"])
    samples = gauges()
    assert samples.pop('capacity_computed_timestamp_seconds{az="az-a"}') > 1e9
    assert samples == {
        f"capacity_vm_slots_empty_datacenter{{{SMALLEST}}}": 8,
        f"capacity_vm_slots_placeable{{{SMALLEST}}}": 5,
        f"capacity_hosts_empty_datacenter{{{SMALLEST}}}": 1,
        f"capacity_hosts_placeable{{{SMALLEST}}}": 1,
        f"running_instances{{{SMALLEST}}}": 1,
        f"free_capacity_gib{{{SMALLEST}}}": 20,
        f"exclusively_free_capacity_gib{{{SMALLEST}}}": 20,
        f"exclusively_free_slots{{{SMALLEST}}}": 5,
        f"committed_gib{{{GROUP}}}": 8,
        f"committed_reservations{{{GROUP}}}": 1,
        f"capacity_ready{{{GROUP}}}": 1,
        f"reserved_unused_gib{{{GROUP}}}": 4,
        'capacity_misplaced_vms{az="az-a"}': 1,
        'capacity_ungrouped_vms{az="az-a"}': 1,
    }


def test_gauges_of_rows_that_are_gone_disappear() -> None:
    make_region()
    ensure_fresh(["az-a"])
    GroupCapacity.objects.all().delete()
    assert not [name for name in gauges() if "flavor_group" in name]


@pytest.mark.parametrize(
    ("age_seconds", "ready"),
    [(0, 1), (3 * 300 - 5, 1), (3 * 300 + 5, 0), (-24 * 3600, 0)],
    ids=["fresh", "within three intervals", "older than three intervals", "a day ahead"],
)
def test_row_that_nobody_computes_any_more_is_not_ready(age_seconds: int, ready: int) -> None:
    """Spec liquid, 20 row 14: rows must not stay ready for ever."""
    make_region()
    ensure_fresh(["az-a"])
    CapacityComputation.objects.update(computed_at=timezone.now() - timedelta(seconds=age_seconds))
    assert gauges()[f"capacity_ready{{{GROUP}}}"] == ready


def test_the_metrics_page_carries_the_gauges_and_survives_a_failing_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_region()
    ensure_fresh(["az-a"])
    name = metric_name("committed_resource_exclusively_free_slots").encode()
    assert name in metrics_page()

    def fail() -> None:
        raise DatabaseError

    monkeypatch.setattr(CAPACITY, "collect", fail)
    assert name not in metrics_page()


def test_the_task_says_how_many_zones_it_computed() -> None:
    make_region()
    make_host("h2", zone="az-b")
    assert refresh_group_capacity() == {"computed": 2}


def test_the_task_is_not_ready_before_the_first_extraction() -> None:
    make_host("h1")
    assert refresh_group_capacity() == {"not_ready": 1}


def test_the_command_prints_every_row_and_zone() -> None:
    make_region()
    out = StringIO()
    call_command("refresh_capacity", stdout=out)
    text = out.getvalue()
    assert "hana_1" in text
    assert "4 (1 VMs)" in text
    assert "computed" in text


def test_the_command_prints_json() -> None:
    make_region()
    out = StringIO()
    call_command("refresh_capacity", "--json", "--zone", "az-a", stdout=out)
    answer = json.loads(out.getvalue())
    assert answer["zones"] == [
        {
            "zone": "az-a",
            "outcome": "computed",
            "changed_groups": ["hana_1"],
            "failed_groups": [],
        }
    ]
    assert answer["groups"][0]["exclusively_free_slots"] == 5


def test_the_command_refuses_a_zone_it_does_not_know() -> None:
    make_region()
    with pytest.raises(CommandError, match="no hosts in zone az-x; known: az-a"):
        call_command("refresh_capacity", "--zone", "az-x")


def test_the_command_says_that_flavor_groups_are_missing() -> None:
    make_host("h1")
    with pytest.raises(CommandError, match="not been extracted"):
        call_command("refresh_capacity")
