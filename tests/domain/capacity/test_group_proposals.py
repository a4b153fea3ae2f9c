from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.groups.flavor_groups import (
    SKIPPED_HYPERVISOR_TYPE,
    FlavorSpec,
    GroupRule,
    build_flavor_groups,
    group_name_of,
)
from capacity.groups.proposals import proposed_rules, proposed_settings

GIB = 1 << 30


def flavor(name: str, memory_gib: float = 4, vcpus: int = 1, **specs: str) -> FlavorSpec:
    named = {key.replace("__", ":"): text for key, text in specs.items()}
    return FlavorSpec(name=name, vcpus=vcpus, memory_bytes=int(memory_gib * GIB), extra_specs=named)


def pairs(*flavors: FlavorSpec, rules: tuple[GroupRule, ...] = ()) -> list[tuple[str, str]]:
    return [(rule.flavor_pattern, rule.group) for rule in proposed_rules(flavors, rules)]


def test_names_that_begin_alike_share_a_group() -> None:
    named = [flavor(name) for name in ("m1.small", "m1.large", "hana_c1", "hana_c2", "tiny")]
    assert pairs(*named) == [("hana_*", "hana"), ("m1.*", "m1"), ("tiny", "tiny")]


def test_flavors_that_demand_other_hardware_get_a_group_of_their_own() -> None:
    plain = flavor("gpu_a", trait__CUSTOM_GPU_HOST="required", trait__CUSTOM_HANA="forbidden")
    more = flavor("gpu_b", trait__CUSTOM_GPU_HOST="required", trait__CUSTOM_L40="required")
    assert pairs(plain, more) == [("gpu_b", "gpu_l40"), ("gpu_*", "gpu")]


def test_flavors_that_have_a_group_or_are_not_served_get_none() -> None:
    declared = flavor("a_1", quota__hw_version="v2", capabilities__hypervisor_type="QEMU")
    ruled, foreign = flavor("b_1"), flavor("c_1", capabilities__hypervisor_type="vmware")
    assert pairs(declared, ruled, foreign, rules=(GroupRule(group="b", flavor_pattern="b*"),)) == []


@pytest.mark.parametrize(
    ("flavors", "unit_gib"),
    [
        ([flavor("a_1", 4, 1), flavor("a_2", 8, 2)], 4),
        ([flavor("a_1", 4, 1), flavor("a_2", 16, 2)], 1),  # the ratio varies
        ([flavor("a_1", 1.5, 1)], 1),  # no whole GiB
    ],
    ids=["smallest flavor", "ratio varies", "no whole GiB"],
)
def test_memory_is_committed_in_smallest_flavors(flavors: list[FlavorSpec], unit_gib: int) -> None:
    rules = proposed_rules(flavors, ())
    ((name, group),) = proposed_settings(flavors, rules, ()).items()
    assert (name, group.ram_unit_gib) == ("a", unit_gib)
    assert (group.ram.handles_commitments, group.cores.handles_commitments) == (True, False)
    assert proposed_settings(flavors, rules, ["a"]) == {}


TEXTS = st.text("ab1._-[*?]A/", min_size=1, max_size=6)
DEMANDS = st.dictionaries(
    st.sampled_from(["trait:CUSTOM_X", "trait:CUSTOM_Y", "aggregate_instance_extra_specs:z"]),
    st.sampled_from(["required", "forbidden", "w"]),
)
FLAVORS = st.lists(
    st.builds(
        lambda name, specs, memory: FlavorSpec(
            name=name, vcpus=1, memory_bytes=memory * GIB, extra_specs=specs
        ),
        TEXTS,
        DEMANDS,
        st.integers(1, 9),
    ),
    max_size=8,
    unique_by=lambda one: one.name,
)


@given(FLAVORS)
def test_every_flavor_has_a_group_then_and_nothing_is_left_to_propose(
    flavors: list[FlavorSpec],
) -> None:
    rules = proposed_rules(flavors, ())
    assert all(group_name_of(one, rules) for one in flavors)
    assert proposed_rules(flavors, rules) == ()
    built = build_flavor_groups(flavors, rules)
    assert [reason for _, reason in built.skipped if reason == SKIPPED_HYPERVISOR_TYPE] == []
    assert set(proposed_settings(flavors, rules, ())) == {group.name for group in built.groups}
