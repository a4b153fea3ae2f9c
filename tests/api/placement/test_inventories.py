"""Inventories and the generation of their provider (spec placement, 4.3, 5.2)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.placement.client import PlacementClient, placement_settings, uuid

pytestmark = pytest.mark.django_db

DEFAULTS = {
    "total": 8,
    "reserved": 0,
    "min_unit": 1,
    "max_unit": 2147483647,
    "step_size": 1,
    "allocation_ratio": 1.0,
}


def test_fields_left_out_have_defaults_whole_floats_are_integers(
    placement: PlacementClient,
) -> None:
    provider = placement.make_provider(VCPU={"total": 8.0})
    shown = placement.get(f"/resource_providers/{provider}/inventories")
    assert shown.json == {
        "resource_provider_generation": 1,
        "inventories": {"VCPU": DEFAULTS},
    }
    one = placement.get(f"/resource_providers/{provider}/inventories/VCPU").json
    assert one == {"resource_provider_generation": 1, **DEFAULTS}


@pytest.mark.parametrize("ratio", [16.0, 1.1, 0.333333333333, 1e-9, 3.40282e38])
def test_ratios_come_back_as_they_were_sent(placement: PlacementClient, ratio: float) -> None:
    inventory = {"total": 2147483647, "allocation_ratio": ratio}
    provider = placement.make_provider(VCPU=inventory)
    shown = placement.get(f"/resource_providers/{provider}/inventories/VCPU").json
    assert shown["allocation_ratio"] == ratio


def test_a_class_is_added_once(placement: PlacementClient) -> None:
    provider = placement.make_provider()
    path = f"/resource_providers/{provider}/inventories"
    answer = placement.post(path, {"resource_class": "VCPU", "total": 8})
    assert answer.status == 201
    assert answer.json == {"resource_provider_generation": 1, **DEFAULTS}
    assert answer.headers["location"].endswith(f"{path}/VCPU")
    again = placement.post(path, {"resource_class": "VCPU", "total": 8})
    assert (again.status, again.error["code"]) == (409, "placement.concurrent_update")
    assert "Update conflict" in again.error["detail"]
    unknown = placement.post(path, {"resource_class": "NOPE", "total": 8})
    assert unknown.status == 400
    assert "No such resource class NOPE" in unknown.error["detail"]


def test_every_write_raises_the_generation_by_one(placement: PlacementClient) -> None:
    provider = placement.make_provider()
    path = f"/resource_providers/{provider}/inventories"
    empty: dict[str, Any] = {"inventories": {}}
    writes = [
        ("PUT", path, {**empty, "resource_provider_generation": 0}),
        ("PUT", path, {"inventories": {"VCPU": {"total": 1}}, "resource_provider_generation": 1}),
        ("PUT", path, {"inventories": {"VCPU": {"total": 1}}, "resource_provider_generation": 2}),
        ("PUT", f"{path}/VCPU", {"total": 2, "resource_provider_generation": 3}),
        ("DELETE", f"{path}/VCPU", None),
        ("DELETE", path, None),
        ("DELETE", path, None),
    ]
    for count, (method, where, body) in enumerate(writes, 1):
        assert placement.call(method, where, body).status in {200, 204}
        assert placement.generation(provider) == count


def test_a_stale_generation_is_refused(placement: PlacementClient) -> None:
    provider = placement.make_provider(VCPU=8)
    path = f"/resource_providers/{provider}/inventories"
    stale = {"resource_provider_generation": 0}
    for where, body in (
        (path, {**stale, "inventories": {}}),
        (f"{path}/VCPU", {**stale, "total": 1}),
    ):
        answer = placement.put(where, body)
        assert (answer.status, answer.error["code"]) == (409, "placement.concurrent_update")
        assert "resource provider generation conflict" in answer.error["detail"]


@pytest.mark.parametrize(
    ("inventory", "before_1_26", "since_1_26"),
    [
        pytest.param({"total": 4, "reserved": 4}, 400, 200, id="all reserved"),
        pytest.param({"total": 4, "reserved": 5}, 400, 400, id="more than all reserved"),
        pytest.param({"total": 1, "allocation_ratio": 0.5}, 400, 200, id="less than one"),
        pytest.param({"total": 1, "min_unit": 5, "max_unit": 2}, 200, 200, id="no unit fits"),
    ],
)
@pytest.mark.parametrize("version", ["1.25", "1.26"])
def test_inventories_that_hold_nothing(
    placement: PlacementClient,
    inventory: dict[str, Any],
    before_1_26: int,
    since_1_26: int,
    version: str,
) -> None:
    provider = placement.make_provider()
    body = {"resource_provider_generation": 0, "inventories": {"VCPU": inventory}}
    path = f"/resource_providers/{provider}/inventories"
    answer = placement.put(path, body, version=version)
    assert answer.status == (before_1_26 if version == "1.25" else since_1_26)
    if answer.status == 400:
        word = "or equal to total" if version == "1.25" else "greater than total"
        assert "Unable to update inventory" in answer.error["detail"]
        assert word in answer.error["detail"]


def test_impossible_units_are_refused_where_configured(
    placement: PlacementClient, settings: Any
) -> None:
    placement_settings(settings, strict_inventory=True)
    provider = placement.make_provider()
    body = {"resource_class": "VCPU", "total": 1, "min_unit": 5, "max_unit": 2}
    assert placement.post(f"/resource_providers/{provider}/inventories", body).status == 400


@pytest.mark.parametrize("ratio", [b"NaN", b"Infinity", b"-Infinity", b"1e400"])
def test_ratios_that_are_no_numbers(placement: PlacementClient, ratio: bytes) -> None:
    provider = placement.make_provider()
    body = b'{"resource_class": "VCPU", "total": 1, "allocation_ratio": ' + ratio + b"}"
    assert placement.post(f"/resource_providers/{provider}/inventories", body).status == 400


def test_what_is_in_use_stays(placement: PlacementClient) -> None:
    provider = placement.make_provider(VCPU=8, DISK_GB=8, MEMORY_MB=8)
    placement.allocate(uuid(), {provider: {"DISK_GB": 1, "VCPU": 1}})
    path = f"/resource_providers/{provider}/inventories"
    all_gone = placement.delete(path)
    assert all_gone.error["code"] == "placement.inventory.inuse"
    message = f"Inventory for 'VCPU, DISK_GB' on resource provider '{provider}' in use"
    assert message in all_gone.error["detail"]
    body = {"resource_provider_generation": 2, "inventories": {"VCPU": {"total": 1}}}
    replaced = placement.put(path, body)
    assert (replaced.status, replaced.error["code"]) == (409, "placement.inventory.inuse")
    one = placement.delete(f"{path}/VCPU")
    assert (one.status, one.error["code"]) == (409, "placement.concurrent_update")
    assert "Unable to delete inventory of class VCPU" in one.error["detail"]
    assert placement.delete(f"{path}/MEMORY_MB").status == 204
    gone = placement.delete(f"{path}/MEMORY_MB")
    assert gone.status == 404
    assert "No inventory of class MEMORY_MB found for delete" in gone.error["detail"]
    assert set(placement.used(provider)) == {"VCPU", "DISK_GB"}


def test_inventory_may_shrink_below_its_usage(placement: PlacementClient) -> None:
    provider = placement.make_provider(VCPU=8)
    placement.allocate(uuid(), {provider: {"VCPU": 8}})
    placement.set_inventory(provider, VCPU=4)
    assert placement.used(provider) == {"VCPU": 8}


@pytest.mark.parametrize(
    ("name", "status", "fragment"),
    [
        ("DISK_GB", 400, "No inventory record with resource class"),
        ("NOPE", 404, "No such resource class"),
    ],
)
def test_a_class_that_is_not_there_is_not_changed(
    placement: PlacementClient, name: str, status: int, fragment: str
) -> None:
    provider = placement.make_provider(VCPU=8)
    path = f"/resource_providers/{provider}/inventories/{name}"
    answer = placement.put(path, {"total": 1, "resource_provider_generation": 1})
    assert answer.status == status
    assert fragment in answer.error["detail"]
    shown = placement.get(path)
    assert shown.status == 404
    assert f"No inventory of class {name} for {provider}" in shown.error["detail"]


def test_usages_list_every_class_of_the_provider(placement: PlacementClient) -> None:
    provider = placement.make_provider(VCPU=8, DISK_GB=8)
    placement.allocate(uuid(), {provider: {"VCPU": 3}})
    shown = placement.get(f"/resource_providers/{provider}/usages").json
    assert shown == {"resource_provider_generation": 2, "usages": {"VCPU": 3, "DISK_GB": 0}}


@pytest.mark.parametrize(
    "rest", ["", "/inventories", "/usages", "/aggregates", "/traits", "/allocations"]
)
@pytest.mark.parametrize(
    "name",
    ["bogus", "AAAAAAAA-AAAA-4AAA-8AAA-AAAAAAAAAAAA", "5bc8fbbc-bde5-4099-8164-d8399f767c45"],
)
def test_unknown_providers(placement: PlacementClient, rest: str, name: str) -> None:
    answer = placement.get(f"/resource_providers/{name}{rest}")
    assert answer.status == 404
    assert f"No resource provider with uuid {name} found" in answer.error["detail"]
