from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.groups.flavor_groups import (
    FlavorGroupDef,
    FlavorSpec,
    GroupRule,
    build_flavor_groups,
    flavor_group_problem,
)
from scheduling.resources import MIB


def flavor(
    name: str, vcpus: int, memory_mib: int, hw: str | None = "v2", kind: str | None = "qemu"
) -> FlavorSpec:
    extra = {}
    if hw is not None:
        extra["quota:hw_version"] = hw
    if kind is not None:
        extra["capabilities:hypervisor_type"] = kind
    return FlavorSpec(name=name, vcpus=vcpus, memory_bytes=memory_mib * MIB, extra_specs=extra)


SPEC_FLAVORS = (
    flavor("hana_c30_m480_v2", 30, 491520),
    flavor("hana_c60_m960_v2", 60, 983040),
    flavor("hana_c240_m3840_v2", 240, 3932160),
    flavor("gp_c8_m32_v2", 8, 32768),
    flavor("gp_c16_m64_v2", 16, 65536),
    flavor("gp_c12_m32_v2", 12, 32768),
    flavor("gp_c12_m32_alt", 12, 32768),
    flavor("vmwa_c32_m512_v1", 32, 524288, "v1", "VMware vCenter Server"),
    flavor("gp_c4_m16_ch", 4, 16384, "ch", "CH"),
)


@given(st.permutations(SPEC_FLAVORS))
def test_the_specification_example_is_grouped_whatever_the_input_order(
    flavors: list[FlavorSpec],
) -> None:
    build = build_flavor_groups(flavors)

    assert [group.name for group in build.groups] == ["ch", "v2"]
    ch, v2 = build.groups
    assert [f.name for f in v2.flavors] == [
        "hana_c240_m3840_v2",
        "hana_c60_m960_v2",
        "hana_c30_m480_v2",
        "gp_c16_m64_v2",
        "gp_c12_m32_alt",
        "gp_c12_m32_v2",
        "gp_c8_m32_v2",
    ]
    assert v2.largest.name == "hana_c240_m3840_v2"
    assert v2.smallest.name == "gp_c8_m32_v2"
    assert not v2.has_fixed_ratio
    assert (v2.ram_core_ratio_mib, v2.ram_core_ratio_min_mib, v2.ram_core_ratio_max_mib) == (
        None,
        2730,
        16384,
    )
    assert v2.derived_ram_unit_mib == 1024
    assert ch.has_fixed_ratio
    assert ch.ram_core_ratio_mib == 4096
    assert ch.derived_ram_unit_mib == 16384
    assert build.skipped == (("vmwa_c32_m512_v1", "hypervisor_type_not_served"),)


def test_flavors_with_one_ratio_make_a_fixed_group() -> None:
    (group,) = build_flavor_groups(
        [flavor("a", 2, 8192), flavor("b", 4, 16384), flavor("c", 8, 32768)]
    ).groups

    assert group.ram_core_ratio_mib == 4096
    assert group.has_fixed_ratio
    assert group.derived_ram_unit_mib == 8192


def test_flavors_without_vcpus_do_not_count_for_the_ratio() -> None:
    (group,) = build_flavor_groups([flavor("a", 0, 1024), flavor("b", 2, 8192)]).groups

    assert group.ram_core_ratio_mib == 4096


def test_a_group_whose_flavors_have_no_vcpus_has_no_ratio() -> None:
    (group,) = build_flavor_groups([flavor("a", 0, 1024)]).groups

    assert not group.has_fixed_ratio
    assert group.ram_core_ratio_min_mib is None
    assert group.derived_ram_unit_mib == 1024


@pytest.mark.parametrize(
    ("given_flavor", "reason"),
    [
        pytest.param(flavor("x", 1, 1024, hw=None), "no_flavor_group", id="no group spec"),
        pytest.param(flavor("x", 1, 1024, hw=""), "no_flavor_group", id="empty group spec"),
        pytest.param(flavor("x", 1, 1024, kind=None), "hypervisor_type_not_served", id="no type"),
        pytest.param(flavor("x", 1, 1024, kind=""), "hypervisor_type_not_served", id="empty type"),
        pytest.param(flavor("x", 1, 0), "invalid_flavor_group", id="ratio zero"),
    ],
)
def test_a_flavor_left_out_is_listed_with_its_reason(given_flavor: FlavorSpec, reason: str) -> None:
    build = build_flavor_groups([given_flavor])

    assert build.groups == ()
    assert build.skipped == (("x", reason),)


def test_an_invalid_group_does_not_take_the_others_with_it() -> None:
    build = build_flavor_groups(
        [flavor("a", 2, 0, "bad"), flavor("b", 1, 1024, "bad"), flavor("c", 1, 1024, "good")]
    )

    assert [group.name for group in build.groups] == ["good"]
    assert build.skipped == (("a", "invalid_flavor_group"), ("b", "invalid_flavor_group"))


def test_two_flavors_of_one_name_are_both_left_out() -> None:
    build = build_flavor_groups(
        [flavor("a", 2, 2048, "one"), flavor("a", 4, 4096, "two"), flavor("b", 1, 1024, "one")]
    )

    assert [group.name for group in build.groups] == ["one"]
    assert build.skipped == (("a", "duplicate_flavor_name"),)


def test_the_first_matching_rule_wins_and_the_extra_spec_wins_over_rules() -> None:
    rules = (
        GroupRule(group="first", flavor_pattern="g_c2*"),
        GroupRule(group="second", flavor_pattern="g_*"),
    )
    build = build_flavor_groups(
        [
            flavor("g_c2_m8", 2, 8192, hw=None),
            flavor("g_c4_m16", 4, 16384, hw=None),
            flavor("g_c8_m32", 8, 32768, hw="spec"),
            flavor("G_c8_m32", 8, 32768, hw=None),
            flavor("g_plain", 1, 1024, hw=None, kind=None),
            flavor("g_vmware", 1, 1024, hw=None, kind="vmware"),
        ],
        rules,
    )

    assert {g.name: [f.name for f in g.flavors] for g in build.groups} == {
        "first": ["g_c2_m8"],
        "second": ["g_c4_m16", "g_plain"],
        "spec": ["g_c8_m32"],
    }
    assert build.skipped == (
        ("G_c8_m32", "no_flavor_group"),
        ("g_vmware", "hypervisor_type_not_served"),
    )


@pytest.mark.parametrize(
    ("ratio", "low", "high", "smallest_mib", "is_valid", "is_fixed"),
    [
        pytest.param(None, None, None, 1024, True, False, id="none set"),
        pytest.param(None, None, None, 0, True, False, id="none set, no memory"),
        pytest.param(4096, None, None, 1024, True, True, id="only ratio"),
        pytest.param(4096, None, None, 0, False, True, id="only ratio, no memory"),
        pytest.param(4096, 4096, 4096, 1024, True, True, id="all equal"),
        pytest.param(4096, 4096, 4096, 0, False, True, id="all equal, no memory"),
        pytest.param(None, 2048, 4096, 1024, True, False, id="min below max"),
        pytest.param(None, 2048, 4096, 0, False, False, id="min below max, no memory"),
        pytest.param(None, 4096, 4096, 1024, False, False, id="min equals max"),
        pytest.param(None, 4096, 2048, 1024, False, False, id="min above max"),
        pytest.param(4096, 2048, 8192, 1024, False, False, id="all set but different"),
        pytest.param(None, 2048, None, 1024, False, False, id="only min"),
        pytest.param(None, None, 2048, 1024, False, False, id="only max"),
        pytest.param(4096, 2048, None, 1024, False, False, id="ratio and min"),
    ],
)
def test_group_validation_follows_the_table(
    *,
    ratio: int | None,
    low: int | None,
    high: int | None,
    smallest_mib: int,
    is_valid: bool,
    is_fixed: bool,
) -> None:
    group = FlavorGroupDef(
        name="g",
        flavors=(flavor("f", 1, smallest_mib),),
        ram_core_ratio_mib=ratio,
        ram_core_ratio_min_mib=low,
        ram_core_ratio_max_mib=high,
    )

    assert (flavor_group_problem(group) is None) == is_valid
    assert group.has_fixed_ratio == is_fixed


@given(
    st.lists(
        st.builds(
            flavor,
            st.sampled_from("abcdefgh"),
            st.integers(0, 4),
            st.integers(0, 4).map(lambda n: n * 1024),
            st.sampled_from([None, "", "x", "y"]),
            st.sampled_from([None, "qemu", "QEMU", "ch", "vmware"]),
        ),
        max_size=8,
    )
)
def test_every_flavor_name_is_either_in_one_valid_group_or_skipped(
    flavors: list[FlavorSpec],
) -> None:
    build = build_flavor_groups(flavors)
    grouped = [f.name for g in build.groups for f in g.flavors]

    assert len(grouped) == len(set(grouped))
    assert set(grouped) | {name for name, _ in build.skipped} == {f.name for f in flavors}
    assert all(flavor_group_problem(group) is None for group in build.groups)
    assert build == build_flavor_groups(list(reversed(flavors)))
