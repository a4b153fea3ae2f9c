from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.names import (
    InvalidResourceName,
    flavor_group_and_type_from_resource,
    flavor_group_from_resource,
    is_commitment_uuid,
    resource_name_cores,
    resource_name_instances,
    resource_name_ram,
)
from commitments.domain.statuses import ResourceType

MEMORY, CORES = ResourceType.MEMORY, ResourceType.CORES


def test_resource_names_are_built_from_the_group() -> None:
    assert resource_name_ram("2101") == "hw_version_2101_ram"
    assert resource_name_cores("2101") == "hw_version_2101_cores"
    assert resource_name_instances("hana_medium_v2") == "hw_version_hana_medium_v2_instances"


@pytest.mark.parametrize(
    ("name", "ram_only", "typed"),
    [
        ("hw_version_hana_medium_v2_ram", "hana_medium_v2", ("hana_medium_v2", MEMORY)),
        ("hw_version_2101_cores", None, ("2101", CORES)),
        ("hw_version_2101_instances", None, None),
        ("hw_version_2101", None, None),
        ("hw_version__ram", None, None),
        ("hw_version__cores", None, None),
        ("ram_2101", None, None),
        ("invalid", None, None),
        ("", None, None),
        ("hw_version_x_ram_cores", None, ("x_ram", CORES)),
        ("hw_version_x_cores_ram", "x_cores", ("x_cores", MEMORY)),
        ("hw_version_ram", None, None),
        ("hw_version_cores", None, None),
    ],
)
def test_resource_names_are_parsed_as_the_table_says(
    name: str, ram_only: str | None, typed: tuple[str, ResourceType] | None
) -> None:
    if ram_only is None:
        with pytest.raises(InvalidResourceName):
            flavor_group_from_resource(name)
    else:
        assert flavor_group_from_resource(name) == ram_only
    if typed is None:
        with pytest.raises(InvalidResourceName):
            flavor_group_and_type_from_resource(name)
    else:
        assert flavor_group_and_type_from_resource(name) == typed


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("ram_2101", "prefix"),
        ("hw_version_2101", "suffix"),
        ("hw_version__ram", "empty"),
        ("hw_version_ram", "empty"),
        ("hw_version_cores", "empty"),
    ],
)
def test_the_error_names_the_resource_and_the_failed_check(name: str, problem: str) -> None:
    with pytest.raises(InvalidResourceName, match=problem) as caught:
        flavor_group_and_type_from_resource(name)
    assert caught.value.resource_name == name
    assert name in str(caught.value)


@pytest.mark.parametrize("group", ["2101", "hana_1", "hana_medium_v2"])
def test_a_group_survives_the_round_trip(group: str) -> None:
    assert flavor_group_from_resource(resource_name_ram(group)) == group


@given(st.text(min_size=1))
def test_any_group_survives_the_typed_round_trip(group: str) -> None:
    assert flavor_group_and_type_from_resource(resource_name_ram(group)) == (group, MEMORY)
    assert flavor_group_and_type_from_resource(resource_name_cores(group)) == (group, CORES)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("550e8400-e29b-41d4-a716-446655440000", True),
        ("abc123", True),
        ("abc12", False),
        ("a" * 40, True),
        ("a" * 41, False),
        ("abc_123", False),
        ("abc123\n", False),
        ("abcdeé", False),
    ],
)
def test_commitment_uuids_are_checked_by_pattern(text: str, is_valid: bool) -> None:
    assert is_commitment_uuid(text) == is_valid
