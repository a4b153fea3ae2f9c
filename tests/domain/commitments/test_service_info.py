from __future__ import annotations

from typing import Any

import pytest

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from capacity.groups.group_settings import GroupSettings, ResourceFlags
from capacity.groups.units import parse_unit
from commitments.domain.service_info import (
    compose_service_info,
    declaration_problem,
    gib_half_up,
    ram_unit_warning,
    ratio_attributes,
)
from scheduling.resources import MIB


def group(name: str = "g", memory_mib: int = 4096, **ratios: Any) -> FlavorGroupDef:
    flavor = FlavorSpec(name="small", vcpus=1, memory_bytes=memory_mib * MIB)
    return FlavorGroupDef(name=name, flavors=(flavor,), **ratios)


@pytest.mark.parametrize(
    ("ratio_mib", "expected"), [(4096, 4), (4094, 4), (512, 1), (2560, 3), (511, 0), (2559, 2)]
)
def test_ratio_in_gib_rounds_halves_up(ratio_mib: int, expected: int) -> None:
    assert gib_half_up(ratio_mib) == expected
    assert ratio_attributes(group(ram_core_ratio_mib=ratio_mib)) == {"ramCoreRatio": expected}


def test_variable_group_has_smallest_and_largest_ratio() -> None:
    variable = group(ram_core_ratio_min_mib=2048, ram_core_ratio_max_mib=16384)
    assert ratio_attributes(variable) == {"ramCoreRatioMin": 2, "ramCoreRatioMax": 16}


def test_group_without_ratio_has_no_attributes() -> None:
    resources: Any = compose_service_info([group()], {})["resources"]
    assert all("attributes" not in resource for resource in resources.values())


@pytest.mark.parametrize("name", ["foo+private", "ümlaut", "a b", "a/b", "x\n"])
def test_group_with_a_name_that_limes_refuses_is_not_declared(name: str) -> None:
    assert declaration_problem(group(name)) is not None


@pytest.mark.parametrize("name", ["2101", "hana_medium_v2", "a.b-c"])
def test_group_with_a_plain_name_is_declared(name: str) -> None:
    assert declaration_problem(group(name, ram_core_ratio_mib=4096)) is None


def test_group_whose_flavors_have_no_memory_is_not_declared() -> None:
    assert declaration_problem(group(memory_mib=0, ram_core_ratio_mib=4096)) is not None


@pytest.mark.parametrize(
    ("unit_gib", "unit", "words"),
    [
        (0, "GiB", "GiB of RAM"),
        (1, "GiB", "GiB of RAM"),
        (16, "16 GiB", "multiples of 16 GiB"),
        (480, "480 GiB", "multiples of 480 GiB"),
        (1024, "TiB", "multiples of 1024 GiB"),
        (1536, "1536 GiB", "multiples of 1536 GiB"),
        (2048, "2 TiB", "multiples of 2048 GiB"),
    ],
)
def test_ram_resource_names_its_unit(unit_gib: int, unit: str, words: str) -> None:
    resources: Any = compose_service_info([group()], {"g": GroupSettings(ram_unit_gib=unit_gib)})[
        "resources"
    ]
    assert resources["hw_version_g_ram"]["unit"] == unit
    assert resources["hw_version_g_ram"]["displayName"] == f"{words} (usable by: small)"
    assert resources["hw_version_g_cores"]["unit"] == "piece"


def test_settings_of_the_group_replace_the_catch_all_completely() -> None:
    flags = ResourceFlags(handles_commitments=True, has_capacity=True, has_quota=True)
    configured = {"*": GroupSettings(cores=flags), "g": GroupSettings(ram=flags)}
    resources: Any = compose_service_info([group(), group("h")], configured)["resources"]
    assert resources["hw_version_g_ram"]["handlesCommitments"] is True
    assert "handlesCommitments" not in resources["hw_version_g_cores"]
    assert resources["hw_version_g_cores"]["hasCapacity"] is False
    assert resources["hw_version_h_cores"]["hasQuota"] is True


def test_the_three_resources_of_a_group_share_their_attributes_and_topology() -> None:
    attributes = {"ramCoreRatio": 4}
    resources: Any = compose_service_info([group(ram_core_ratio_mib=4096)], {})["resources"]
    assert list(resources) == [f"hw_version_g_{kind}" for kind in ("ram", "cores", "instances")]
    for resource in resources.values():
        assert (resource["topology"], resource["attributes"]) == ("az-separated", attributes)
        assert resource["needsResourceDemand"] is False


def test_order_of_groups_does_not_matter() -> None:
    one, two = group("a"), group("b")
    assert compose_service_info([one, two], {}) == compose_service_info([two, one], {})


FIXED = {"ram_core_ratio_mib": 4096}


@pytest.mark.parametrize(
    ("memory_mib", "ratios", "units", "warning"),
    [
        pytest.param(16384, FIXED, {"g": 16}, None, id="fixed, unit of the smallest flavor"),
        pytest.param(16368, FIXED, {"g": 16}, None, id="fixed, rounded to GiB"),
        pytest.param(512, FIXED, {"g": 1}, None, id="fixed, never below 1 GiB"),
        pytest.param(16384, FIXED, {"g": 1}, "smallest flavor has 16 GiB", id="fixed, other unit"),
        pytest.param(16384, FIXED, {"*": 1}, "smallest flavor has 16 GiB", id="fixed, unit of *"),
        pytest.param(16384, {}, {"g": 1}, None, id="variable"),
        pytest.param(16384, {}, {"g": 0}, "unset", id="unset"),
        pytest.param(16384, FIXED, {"*": 0}, "unset", id="unset in *"),
        pytest.param(16384, FIXED, {}, None, id="not configured"),
    ],
)
def test_questionable_ram_unit_is_told(
    memory_mib: int, ratios: dict[str, Any], units: dict[str, int], warning: str | None
) -> None:
    configured = {name: GroupSettings(ram_unit_gib=unit_gib) for name, unit_gib in units.items()}
    told = ram_unit_warning(group(memory_mib=memory_mib, **ratios), configured)
    assert (told is None) is (warning is None)
    assert (warning or "") in (told or "")


OF_LIQUID_NOVA = {"cores", "ram", "instances", "server_groups", "instances_hana_c30_m480_v2"}


@pytest.mark.parametrize("name", ["2101", "hana_medium_v2", "cores", "instances", "ram"])
def test_no_resource_has_a_name_that_liquid_nova_uses_itself(name: str) -> None:
    resources: Any = compose_service_info([group(name)], {})["resources"]
    assert all(resource.startswith("hw_version_") for resource in resources)
    assert not OF_LIQUID_NOVA & set(resources)


@pytest.mark.parametrize("unit_gib", [0, 1, 2, 16, 365, 480, 1024, 1536, 2048, 1 << 20])
def test_declared_memory_is_whole_mib_as_quota_of_nova_has_to_be(unit_gib: int) -> None:
    resources: Any = compose_service_info([group()], {"g": GroupSettings(ram_unit_gib=unit_gib)})[
        "resources"
    ]
    unit = parse_unit(resources["hw_version_g_ram"]["unit"])
    assert 3 * unit.factor // parse_unit("MiB").factor == 3 * 1024 * max(unit_gib, 1)


def test_needs_of_metadata_are_told() -> None:
    info = compose_service_info([group()], {})
    told = {key: value for key, value in info.items() if key.endswith("NeedsProjectMetadata")}
    assert told == {
        "quotaUpdateNeedsProjectMetadata": True,
        "commitmentHandlingNeedsProjectMetadata": True,
    }
