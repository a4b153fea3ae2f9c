from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling import filters
from scheduling.engine import passing_hosts
from scheduling.explain import explain_host
from scheduling.filters import Filter
from scheduling.instances import InstanceIndex
from scheduling.intents import Intent
from scheduling.quota import QuotaFacts
from scheduling.request import InstanceGroup, RequestedDestination
from scheduling.step_catalogue import FILTERS
from scheduling.table import HostTable
from scheduling.table_rows import HostAggregate, HostRow
from scheduling.vm_keys import instance_key
from scheduling.weighing_text import WeighedHost, weighing_text

from .full_worlds import full_hosts, only
from .worlds import ask, gib, roomy

GROUP = InstanceGroup(policy="anti-affinity", members=frozenset({"v1", "v2"}))
MIGRATION = {"intent": Intent.LIVE_MIGRATION, "source_host": "s"}
SOURCE = roomy("s", cpu_arch="x86_64", features=("sev",), devices=("video",))
ROWS = [
    (
        filters.filter_status_conditions,
        {"is_ready": False},
        {},
        "the host must be ready, enabled and not terminating",
    ),
    (
        filters.filter_correct_az,
        {"zone": "az-2"},
        {"zone": "az-1"},
        "the host is in zone az-2, zone az-1 is asked for",
    ),
    (
        filters.filter_correct_az,
        {},
        {"zone": "az-1"},
        "the host has no zone, zone az-1 is asked for",
    ),
    (
        filters.filter_host_instructions,
        {},
        {"ignore_hosts": frozenset({"h"})},
        "the request must not ignore the host",
    ),
    (
        filters.filter_host_instructions,
        {},
        {"force_hosts": frozenset({"s"})},
        "the host must be among those that the request forces",
    ),
    (
        filters.filter_exclude_hosts(excluded_hosts=("h",)),
        {},
        {},
        "the pipeline must not exclude the host",
    ),
    (filters.filter_maintenance, {"maintenance": "manual"}, {}, "maintenance manual must end"),
    (
        filters.filter_image_properties,
        {},
        {"image_properties": {"img_hv_type": "vmware"}},
        "the image is made for vmware, the host runs KVM",
    ),
    (
        filters.filter_capabilities,
        {"cpu_arch": "x86_64"},
        {"hypervisor_type": "ch"},
        (
            "asked: capabilities:hypervisor_type ch;"
            " the host has hypervisor type qemu, CPU architecture x86_64"
        ),
    ),
    (
        filters.filter_has_requested_traits,
        {"traits": ("B", "C")},
        {"required_traits": frozenset({"A"}), "forbidden_traits": frozenset({"B"})},
        "missing traits: A; forbidden traits: B",
    ),
    (
        filters.filter_has_accelerators,
        {},
        {"extra_specs": {"accel:device_profile": "x"}},
        "missing traits: COMPUTE_ACCELERATORS",
    ),
    (
        filters.filter_external_customer(domain_name_prefixes=("iaas-",)),
        {},
        {"domain_name": "iaas-1"},
        "domain iaas-1 needs trait CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE",
    ),
    (
        filters.filter_allowed_projects,
        {"allowed_projects": ("q", "a")},
        {"project_id": "p"},
        "project p is not among the host's projects: a, q",
    ),
    (
        filters.filter_aggregate_metadata,
        {"aggregates": (HostAggregate(uuid="a", metadata={"filter_tenant_id": "q, a"}),)},
        {"project_id": "p"},
        "project p is not among the host's projects: a, q",
    ),
    (
        filters.filter_packed_virtqueue,
        {},
        {"extra_specs": {"hw:virtio_packed_ring": "true"}},
        "missing traits: COMPUTE_NET_VIRTIO_PACKED",
    ),
    (
        filters.filter_quota_enforcement(enforce=True),
        {},
        {
            "project_id": "p",
            "zone": "az-1",
            "flavor_group": "g",
            "quota": QuotaFacts(quota={"hw_version_g_cores": 0}),
        },
        "the project needs more quota: cores",
    ),
    (
        filters.filter_instance_group_affinity,
        {},
        {"instance_group": InstanceGroup(policy="affinity", hosts=frozenset({"s"}))},
        "the host must run a member of the server group",
    ),
    (
        filters.filter_instance_group_anti_affinity,
        {"instances": ("v1", "v2", "x")},
        {"instance_group": GROUP},
        "2 members of the server group are on the host, less than 1 may",
    ),
    (
        filters.filter_requested_destination,
        {},
        {"requested_destination": RequestedDestination(host="s")},
        "host s is asked for",
    ),
    (
        filters.filter_requested_destination,
        {},
        {"requested_destination": RequestedDestination(aggregates=("a1,a2", "a3"))},
        "the host must be in the aggregates a1,a2 and a3",
    ),
    (
        filters.filter_live_migratable,
        {"devices": ("video",)},
        MIGRATION,
        "CPU architecture unknown instead of x86_64; missing features: sev",
    ),
    (
        filters.filter_has_enough_capacity,
        {"effective": gib(1, 1)},
        {"memory_bytes": (1 << 30) + (1 << 28), "vcpus": 3},
        "short of 0.25 GiB of memory and 2 vCPUs",
    ),
]


def test_every_filter_of_the_catalogue_says_what_would_have_to_change() -> None:
    assert {row[0].name for row in ROWS} == set(FILTERS)


@pytest.mark.parametrize(
    ("step", "host", "request_", "remedy"), ROWS, ids=[row[0].name for row in ROWS]
)
def test_explanation_says_what_would_have_to_change(
    step: Filter, host: Mapping[str, Any], request_: Mapping[str, Any], remedy: str
) -> None:
    table = HostTable.from_rows([roomy("h", **host), SOURCE])
    explained = explain_host(table, ask(**request_), only(step), "h")
    assert [objection.remedy for objection in explained.objections] == [remedy]


@pytest.mark.parametrize(
    ("step", "request_"),
    [
        (filters.filter_has_requested_traits, {"forbidden_traits": frozenset({"A"})}),
        (filters.filter_instance_group_anti_affinity, {"instance_group": GROUP}),
        (filters.filter_live_migratable, MIGRATION),
    ],
)
def test_unknown_host_is_called_unknown(step: Filter, request_: Mapping[str, Any]) -> None:
    bare = roomy("s")
    explained = explain_host(HostTable.from_rows([bare]), ask(**request_), only(step), "gone")
    assert explained.objections[0].remedy == "the host is not known"


def test_mask_cache_does_not_grow_without_bound() -> None:
    table = HostTable.from_rows([roomy("h", zone="az-1")])
    for number in range(1200):
        passing_hosts(table, ask(zone=f"az-{number}"), only(filters.filter_correct_az))
    assert len(table.mask_cache) <= 512
    assert passing_hosts(table, ask(zone="az-1"), only(filters.filter_correct_az)).all()


@given(
    before=st.lists(full_hosts, max_size=5, unique_by=lambda row: row.name),
    changed=st.lists(full_hosts, max_size=4, unique_by=lambda row: row.name),
    removed=st.frozensets(st.sampled_from(["host-0", "host-1", "host-2"])),
)
def test_vms_are_found_on_their_hosts_after_any_change(
    before: list[HostRow], changed: list[HostRow], removed: frozenset[str]
) -> None:
    gone = removed - {row.name for row in changed}
    table = HostTable.from_rows(before).replace_rows(changed, removed=gone)
    rows = {row.name: row for row in before if row.name not in gone}
    rows.update({row.name: row for row in changed})
    for number in range(7):
        vm = f"vm-{number}"
        found = {table.names[row] for row in table.instance_index.rows_of(vm)}
        assert found == {name for name, row in rows.items() if vm in row.instances}
    for name, row in rows.items():
        index = table.row_of[name]
        assert table.building_blocks[table.building_block[index]] == row.building_block
        assert table.instance_index.lists(index, row.instances)
        assert table.instance_index.keys_on(index) == set(map(instance_key, row.instances))


def test_uuids_are_other_vms_where_they_are_written_otherwise() -> None:
    texts = (
        "0012a4c6-0000-0000-0000-00000000000f",
        "0012A4C6-0000-0000-0000-00000000000F",
        "0012a4c60000000000000000000000ff",
        "vm",
    )
    index = InstanceIndex.build([(), texts, texts[:1]])
    assert [len(index.keys_on(row)) for row in range(3)] == [0, 4, 1]
    assert index.lists(2, texts[:1])
    assert [index.rows_of(text) for text in texts] == [(1, 2), (1,), (1,), (1,)]
    assert index.are_listing(4).tolist() == [False, True, True, False]
    later = index.updated({0: ("other",), 1: ()})
    assert (later.lists(0, ["other"]), later.lists(1, [])) == (True, True)
    assert later.are_listing(4).tolist() == [True, False, True, False]
    assert index.lists(0, [])


def test_many_changes_are_merged_into_the_base() -> None:
    index = InstanceIndex.build([("a", "b"), ("b",)])
    assert index.rows_of("b") == (0, 1)
    many = tuple(f"vm-{number}" for number in range(2000))
    merged = index.updated({0: many})
    assert not merged.moved
    assert [merged.rows_of(vm) for vm in ("a", "b", "vm-7")] == [(), (1,), (0,)]


def test_changed_instance_list_leaves_masks_alone() -> None:
    table = HostTable.from_rows([roomy("h"), roomy("i")])
    changed = table.replace_rows([replace(roomy("h"), instances=("v",))])
    assert changed.mask_cache is table.mask_cache
    assert changed.instance_index.rows_of("v") == (0,)


def test_gap_is_not_called_narrow_when_a_counterfactual_was_given() -> None:
    def host(name: str, *parts: float) -> WeighedHost:
        named = tuple((str(number), part) for number, part in enumerate(parts))
        return WeighedHost(name=name, input_weight=0.0, contributions=named)

    text = weighing_text([host("a", 0.5, 0.0), host("b", 0.496, 0.003), host("c", 0.0, 0.4)])
    assert "Without 0, c would be first." in text
    assert "narrow" not in text
