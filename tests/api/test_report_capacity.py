from __future__ import annotations

from typing import Any

import pytest

from capacity.figures.group_capacity import ensure_fresh
from capacity.models import FlavorGroup
from commitments.domain.conformance import check_capacity, check_info
from commitments.metrics import REPORTED_CAPACITY
from scheduling.resources import MIB
from tests.api.conftest import Configure
from tests.api.liquid_client import LiquidClient, assert_text
from tests.factories import (
    make_commitment,
    make_group,
    make_group_capacity,
    make_host,
    make_snapshot,
    make_vm,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_refresh")]

RAM = "hw_version_hana_1_ram"
CORES = "hw_version_hana_1_cores"
INSTANCES = "hw_version_hana_1_instances"
FIXED = [("small", 16384, 4)]
VARIABLE = [("small", 2048, 1), ("wide", 2048, 4)]
EMPTY: dict[str, Any] = {
    "exclusively_free_memory_bytes": 0,
    "exclusively_free_vcpus": 0,
    "exclusively_free_slots": 0,
    "running_slots": None,
}


def entry(report: dict[str, Any], resource: str, zone: str) -> dict[str, int]:
    found: dict[str, int] = report["resources"][resource]["perAZ"][zone]
    return found


def test_no_flavor_groups_but_extracted_leaves_resources_out(liquid: LiquidClient) -> None:
    make_snapshot()
    assert set(liquid.report_capacity("az-a")) == {"infoVersion"}


def test_group_without_rows_has_exactly_the_zones_asked_for_and_no_usage(
    liquid: LiquidClient,
) -> None:
    make_group()
    report = liquid.report_capacity("a", "b", "d")
    assert set(report["resources"]) == {RAM, CORES, INSTANCES}
    for resource in report["resources"].values():
        assert resource["perAZ"] == {zone: {"capacity": 0} for zone in ("a", "b", "d")}


def test_no_zones_give_three_resources_with_empty_maps(liquid: LiquidClient) -> None:
    make_group()
    report = liquid.report_capacity()
    assert report["resources"] == {name: {"perAZ": {}} for name in (RAM, CORES, INSTANCES)}


def test_each_answer_has_its_own_zones(liquid: LiquidClient) -> None:
    make_group()
    make_group_capacity(zone="az-a")
    assert set(liquid.report_capacity("az-a", "az-b")["resources"][RAM]["perAZ"]) == {
        "az-a",
        "az-b",
    }
    assert set(liquid.report_capacity("az-c")["resources"][RAM]["perAZ"]) == {"az-c"}


def test_zone_named_twice_counts_once(liquid: LiquidClient) -> None:
    make_group()
    make_group_capacity(zone="az-a")
    assert set(liquid.report_capacity("az-a", "az-a")["resources"][RAM]["perAZ"]) == {"az-a"}


def test_fixed_ratio_group_counts_slots(liquid: LiquidClient) -> None:
    make_group(flavors=FIXED, ram_unit_gib=16)
    make_group_capacity(
        zone="az-a", **{**EMPTY, "running_instances": 200, "exclusively_free_slots": 800}
    )
    report = liquid.report_capacity("az-a", "az-b")
    assert entry(report, RAM, "az-a") == {"capacity": 1000, "usage": 200}
    assert entry(report, RAM, "az-b") == {"capacity": 0}


def test_row_that_is_not_ready_fails_the_whole_report(liquid: LiquidClient) -> None:
    make_group()
    make_group_capacity(zone="az-a")
    make_group_capacity(zone="az-b", is_ready=False)
    response = liquid.send("POST", liquid.capacity, {"allAZs": ["az-a", "az-b"]})
    assert_text(response, 503, "hana_1", "az-b", "not ready")


def test_row_that_is_not_ready_in_a_zone_not_asked_for_does_not_matter(
    liquid: LiquidClient,
) -> None:
    make_group()
    make_group_capacity(zone="az-a")
    make_group_capacity(zone="az-b", is_ready=False)
    assert entry(liquid.report_capacity("az-a"), CORES, "az-a") == {"capacity": 100, "usage": 0}


def test_group_without_capacity_flags_is_not_even_looked_at(liquid: LiquidClient) -> None:
    make_group(capacity=())
    make_group_capacity(zone="az-a", is_ready=False)
    assert "resources" not in liquid.report_capacity("az-a")


def test_resource_without_capacity_flag_is_left_out(liquid: LiquidClient) -> None:
    make_group(capacity=("ram", "cores"))
    assert set(liquid.report_capacity("az-a")["resources"]) == {RAM, CORES}


@pytest.mark.parametrize(("vm_mib", "expected"), [(2048, (8, 3)), (2032, (7, 2))])
def test_variable_ratio_group_sums_first_and_divides_once(
    liquid: LiquidClient, vm_mib: int, expected: tuple[int, int]
) -> None:
    make_group(flavors=VARIABLE, ram_unit_gib=2)
    make_group_capacity(
        zone="az-a",
        **{
            **EMPTY,
            "running_memory_bytes": 3 * vm_mib * MIB,
            "exclusively_free_memory_bytes": 5 * vm_mib * MIB,
        },
    )
    got = entry(liquid.report_capacity("az-a"), RAM, "az-a")
    assert (got["capacity"], got["usage"]) == expected


@pytest.mark.parametrize(("is_included", "expected"), [(True, 10), (False, 8)])
def test_reserved_unused_room_is_capacity_unless_switched_off(
    liquid: LiquidClient, configure: Configure, is_included: bool, expected: int
) -> None:
    configure(liquid={"capacity_includes_reserved": is_included})
    make_group(flavors=FIXED, ram_unit_gib=16)
    make_group_capacity(
        zone="az-a",
        **{
            **EMPTY,
            "running_instances": 3,
            "exclusively_free_slots": 5,
            "reserved_unused_slots": 2,
            "reserved_unused_vcpus": 8,
        },
    )
    report = liquid.report_capacity("az-a")
    assert entry(report, RAM, "az-a") == {"capacity": expected, "usage": 3}
    assert entry(report, INSTANCES, "az-a") == {"capacity": expected, "usage": 3}
    assert entry(report, CORES, "az-a")["capacity"] == (8 if is_included else 0)


def test_running_slots_replace_running_vms_for_memory_only(liquid: LiquidClient) -> None:
    make_group(flavors=FIXED, ram_unit_gib=16)
    make_group_capacity(
        zone="az-a",
        **{**EMPTY, "running_instances": 2, "running_slots": 5, "exclusively_free_slots": 5},
    )
    report = liquid.report_capacity("az-a")
    assert entry(report, RAM, "az-a") == {"capacity": 10, "usage": 5}
    assert entry(report, INSTANCES, "az-a") == {"capacity": 7, "usage": 2}


@pytest.mark.parametrize("includes_reserved", [True, False])
def test_retired_group_reports_usage_plus_held(
    liquid: LiquidClient, configure: Any, *, includes_reserved: bool
) -> None:
    configure(liquid={"capacity_includes_reserved": includes_reserved})
    make_group(flavors=FIXED, ram_unit_gib=16)
    make_commitment()
    make_group_capacity(
        zone="az-a",
        **{**EMPTY, "running_instances": 2, "running_slots": 3, "reserved_unused_slots": 4},
    )
    FlavorGroup.objects.update(is_retired=True)
    info, report = liquid.get_info(), liquid.report_capacity("az-a", "az-b")
    assert info["resources"][RAM]["hasCapacity"]
    assert check_capacity(report, info, ["az-a", "az-b"]) == ()
    assert entry(report, RAM, "az-a") == {"capacity": 7, "usage": 3}
    assert entry(report, INSTANCES, "az-a") == {"capacity": 6, "usage": 2}
    assert entry(report, RAM, "az-b") == {"capacity": 0}


def test_reported_capacity_gauge_follows_the_last_report(liquid: LiquidClient) -> None:
    make_group(flavors=FIXED, ram_unit_gib=16)
    make_group_capacity(zone="az-a", **{**EMPTY, "exclusively_free_slots": 7})

    def shown() -> dict[tuple[str, str, str], float]:
        return {
            (s.labels["resource"], s.labels["az"], s.labels["unit_size"]): s.value
            for metric in REPORTED_CAPACITY.collect()
            for s in metric.samples
        }

    liquid.report_capacity("az-a")
    assert shown()[RAM, "az-a", "16"] == 7
    assert shown()[INSTANCES, "az-a", "1"] == 7
    liquid.report_capacity("az-b")
    assert set(shown()) == {(RAM, "az-b", "16"), (CORES, "az-b", "1"), (INSTANCES, "az-b", "1")}


@pytest.mark.django_db(transaction=True)  # a transaction that wrote keeps nothing in caches
def test_report_needs_the_same_few_queries_for_any_number_of_groups(
    liquid: LiquidClient, django_assert_max_num_queries: Any
) -> None:
    for number in range(20):
        make_group(f"g{number}", flavors=[(f"f{number}", 1024, 1)])
        make_group_capacity(f"g{number}", "az-a")
    liquid.get_info()
    with django_assert_max_num_queries(5):
        liquid.report_capacity("az-a", "az-b")


class TestComputedRows:
    @pytest.fixture(autouse=True)
    def real(self, monkeypatch: pytest.MonkeyPatch, no_refresh: None) -> None:
        monkeypatch.setattr("commitments.services.reports.ensure_fresh", ensure_fresh)

    def test_report_tells_what_hosts_and_vms_say(self, liquid: LiquidClient) -> None:
        make_group(flavors=[("small", 4096, 1)], ram_unit_gib=4)
        host = make_host(memory_gib=64, vcpus=32)
        make_vm(host=host, memory_gib=4)
        info, report = liquid.get_info(), liquid.report_capacity("az-a", "az-x")
        assert check_capacity(report, info, ["az-a", "az-x"]) == ()
        assert entry(report, RAM, "az-a") == {"capacity": 16, "usage": 1}
        assert entry(report, RAM, "az-x") == {"capacity": 0}

    def test_placeable_vms_of_every_flavor_are_told_when_asked_for(
        self, liquid: LiquidClient, configure: Configure
    ) -> None:
        make_group(flavors=[("small", 4096, 1), ("large", 32768, 8)], ram_unit_gib=4)
        make_group("silent", flavors=[("other", 4096, 1)], capacity=())
        for name, gib in (("h1", 40), ("h2", 24)):
            make_host(name, memory_gib=gib, vcpus=64)
        plain = liquid.get_info()
        assert (plain["capacityMetricFamilies"], "metrics" in liquid.report_capacity("az-a")) == (
            {},
            False,
        )
        configure(liquid={"report_placeable_vms": True})
        info, report = liquid.get_info(), liquid.report_capacity("az-a", "az-x")
        assert info["version"] > plain["version"]
        assert (check_info(info), check_capacity(report, info, ["az-a", "az-x"])) == ((), ())
        (family,) = report["metrics"].values()
        assert family == [
            {"v": 1, "l": ["hana_1", "az-a", "large"]},
            {"v": 16, "l": ["hana_1", "az-a", "small"]},
        ]
        assert check_capacity(liquid.report_capacity(), info, []) == ()
