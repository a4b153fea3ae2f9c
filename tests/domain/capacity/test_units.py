from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from capacity.groups.units import (
    Unit,
    UnitError,
    bytes_to_declared_units,
    declared_units_to_bytes,
    declared_units_to_gib,
    format_unit,
    gib_to_declared_units,
    parse_unit,
    ram_unit_mib,
    ram_unit_text,
    usage_units,
)
from scheduling.resources import GIB, MIB


def fixed_group(smallest_mib: int) -> FlavorGroupDef:
    smallest = FlavorSpec(name="s", vcpus=1, memory_bytes=smallest_mib * MIB)
    return FlavorGroupDef(name="g", flavors=(smallest,), ram_core_ratio_mib=smallest_mib)


VARIABLE = FlavorGroupDef(
    name="v",
    flavors=(FlavorSpec(name="s", vcpus=1, memory_bytes=2048 * MIB),),
    ram_core_ratio_min_mib=1024,
    ram_core_ratio_max_mib=2048,
)


@pytest.mark.parametrize(
    ("ram_unit_gib", "five_units_gib", "ten_gib_units"),
    [
        pytest.param(None, 5, 10, id="unset"),
        pytest.param(0, 5, 10, id="zero"),
        pytest.param(2, 10, 5, id="2"),
        pytest.param(480, 2400, 0, id="480"),
    ],
)
def test_declared_units_and_gib_convert_both_ways(
    ram_unit_gib: int | None, five_units_gib: int, ten_gib_units: int
) -> None:
    unit_mib = ram_unit_mib(ram_unit_gib)

    assert declared_units_to_gib(5, unit_mib) == five_units_gib
    assert gib_to_declared_units(10, unit_mib) == ten_gib_units
    assert declared_units_to_bytes(5, unit_mib) == five_units_gib * GIB


@pytest.mark.parametrize("unit_mib", [1024, 1536, 16384, 491520])
def test_the_unlimited_marker_passes_through_both_conversions(unit_mib: int) -> None:
    assert gib_to_declared_units(-1, unit_mib) == -1
    assert declared_units_to_gib(-1, unit_mib) == -1


@pytest.mark.parametrize(
    ("smallest_mib", "units", "gib"),
    [pytest.param(2048, 5, 10, id="fixed 2048"), pytest.param(1024, 7, 7, id="one to one")],
)
def test_the_unit_derived_from_flavors_converts_to_gib(
    smallest_mib: int, units: int, gib: int
) -> None:
    unit_mib = fixed_group(smallest_mib).derived_ram_unit_mib

    assert declared_units_to_gib(units, unit_mib) == gib
    assert gib_to_declared_units(gib, unit_mib) == units


@given(st.integers(0, 1 << 20), st.integers(1, 4096))
def test_units_survive_the_way_to_bytes_and_back(units: int, unit_gib: int) -> None:
    unit_mib = ram_unit_mib(unit_gib)

    assert bytes_to_declared_units(declared_units_to_bytes(units, unit_mib), unit_mib) == units


@pytest.mark.parametrize("units", [-1, 1 << 33])
def test_an_amount_that_cannot_be_stored_is_an_error(units: int) -> None:
    with pytest.raises(UnitError, match="not a storable amount"):
        declared_units_to_bytes(units, 1024)


def test_a_ram_unit_over_the_limit_is_an_error() -> None:
    with pytest.raises(UnitError, match="exceeds"):
        ram_unit_mib(1 << 34)
    with pytest.raises(UnitError, match="out of range"):
        ram_unit_text(1 << 44)


@pytest.mark.parametrize(
    ("unit_mib", "text"),
    [
        (1024, "GiB"),
        (2048, "2 GiB"),
        (491520, "480 GiB"),
        (1536, "1536 MiB"),
        (1048576, "TiB"),
        (16384, "16 GiB"),
        (1536 * 1024, "1536 GiB"),
        (2048 * 1024, "2 TiB"),
    ],
)
def test_a_ram_unit_is_told_in_its_shortest_exact_form(unit_mib: int, text: str) -> None:
    assert ram_unit_text(unit_mib) == text


@pytest.mark.parametrize(
    ("text", "unit", "printed"),
    [
        ("", Unit(base="", factor=1), ""),
        ("piece", Unit(base="piece", factor=1), "piece"),
        ("1000 piece", Unit(base="piece", factor=1000), "1000 piece"),
        ("1024 B", Unit(base="B", factor=1024), "KiB"),
        ("1000 B", Unit(base="B", factor=1000), "1000 B"),
        ("2048 B", Unit(base="B", factor=2048), "2 KiB"),
        (f"{1 << 34} B", Unit(base="B", factor=1 << 34), "16 GiB"),
        ("16384 MiB", Unit(base="B", factor=1 << 34), "16 GiB"),
        ("1024 MiB", Unit(base="B", factor=1 << 30), "GiB"),
        ("480 GiB", Unit(base="B", factor=480 << 30), "480 GiB"),
        ("1024 GiB", Unit(base="B", factor=1 << 40), "TiB"),
        ("EiB", Unit(base="B", factor=1 << 60), "EiB"),
        ("15 EiB", Unit(base="B", factor=15 << 60), "15 EiB"),
    ],
)
def test_a_unit_is_read_and_printed_as_the_table_says(text: str, unit: Unit, printed: str) -> None:
    assert parse_unit(text) == unit
    assert str(unit) == printed


@pytest.mark.parametrize(
    "text",
    [
        "4 mib",
        "x GiB",
        "-1 GiB",
        "1.5 GiB",
        "0 GiB",
        "16 EiB",
        " GiB",
        "1  GiB",
        "1 ",
        "9" * 5000 + " B",
        "1",
    ],
)
def test_a_malformed_or_too_large_unit_is_an_error(text: str) -> None:
    with pytest.raises(UnitError):
        parse_unit(text)


@given(st.sampled_from(["piece", "B"]), st.integers(1, (1 << 64) - 1))
def test_printing_a_unit_loses_nothing(base: str, factor: int) -> None:
    unit = Unit(base=base, factor=factor)

    assert parse_unit(format_unit(unit)) == unit


@pytest.mark.parametrize(
    ("group", "memory_mib", "units"),
    [
        pytest.param(fixed_group(1024), 4096, 4, id="fixed 1024, 4096"),
        pytest.param(fixed_group(1024), 1024, 1, id="fixed 1024, 1024"),
        pytest.param(fixed_group(32752), 65520, 2, id="fixed 32752"),
        pytest.param(VARIABLE, 2048, 2, id="variable 2048"),
        pytest.param(VARIABLE, 2032, 2, id="variable 2032"),
        pytest.param(VARIABLE, 1008, 1, id="variable 1008"),
        pytest.param(VARIABLE, 1000, 0, id="variable 1000"),
        pytest.param(VARIABLE, 0, 0, id="variable 0"),
        pytest.param(None, 2032, 2, id="unknown group"),
    ],
)
def test_ram_units_of_one_vm_follow_the_table(
    group: FlavorGroupDef | None, memory_mib: int, units: int
) -> None:
    assert usage_units(memory_mib * MIB, group=group, unit_mib=1024) == units


def test_ram_units_of_several_vms_add_up() -> None:
    units = [
        usage_units(m * MIB, group=VARIABLE, unit_mib=1024) for m in (2048, 4096, 16384, 32768)
    ]

    assert sum(units) == 54


def test_a_variable_group_counts_in_its_declared_unit() -> None:
    assert usage_units(4096 * MIB, group=VARIABLE, unit_mib=2048) == 2
    assert usage_units(4000 * MIB, group=VARIABLE, unit_mib=2048, tolerance_mib=0) == 1


@given(st.integers(0, 1 << 24))
def test_every_ram_unit_is_whole_mebibytes_on_the_wire(unit_gib: int) -> None:
    unit = parse_unit(ram_unit_text(ram_unit_mib(unit_gib)))

    assert unit.factor // parse_unit("MiB").factor == max(unit_gib, 1) * 1024
