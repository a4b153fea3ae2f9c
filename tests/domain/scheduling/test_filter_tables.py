from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from scheduling import filters
from scheduling.engine import schedule
from scheduling.evaluation import PipelineRunError, StepFailedError
from scheduling.filters import Filter
from scheduling.filters.operators import is_operator, is_unreadable, satisfies
from scheduling.intents import Intent
from scheduling.record import record_run
from scheduling.request import (
    InstanceGroup,
    PlacementRequest,
    RequestedDestination,
    UnplaceableRequestError,
    max_per_host_from_rule,
)
from scheduling.table import HostTable
from scheduling.table_rows import HostAggregate, HostRow

from .full_worlds import EXTERNAL, NO_VM, kept, only
from .worlds import ask, gib, readable, roomy

CREATE = Intent.CREATE


def table_of(*rows: HostRow) -> HostTable:
    return HostTable.from_rows(rows)


def events_of(
    table: HostTable, request: PlacementRequest, step: Filter
) -> list[tuple[str, dict[str, str]]]:
    record = record_run(table, request, only(step))
    return [(event.event, dict(event.labels)) for event in record.events]


# --- 7.1 hosts that nobody knows ----------------------------------------------------------------

UNKNOWN = ("1", "unknown")


@pytest.mark.parametrize(
    ("step", "fields", "keeps_unknown"),
    [
        (filters.filter_status_conditions, {}, False),
        (filters.filter_has_enough_capacity, {}, False),
        (filters.filter_correct_az, {"zone": ""}, True),
        (filters.filter_correct_az, {"zone": "az-1"}, False),
        (filters.filter_capabilities, {}, True),
        (
            filters.filter_capabilities,
            {"extra_specs": {"capabilities:hypervisor_type": "QEMU"}},
            False,
        ),
        (filters.filter_has_requested_traits, {}, True),
        (filters.filter_has_requested_traits, {"extra_specs": {"trait:X": "forbidden"}}, False),
        (filters.filter_has_accelerators, {}, True),
        (filters.filter_has_accelerators, {"extra_specs": {"accel:device_profile": ""}}, False),
        (
            filters.filter_external_customer(domain_name_prefixes=("iaas-",)),
            {"domain_name": "iaas-1"},
            False,
        ),
        (
            filters.filter_instance_group_anti_affinity,
            {"instance_group": InstanceGroup(policy="anti-affinity", members=frozenset({"v"}))},
            False,
        ),
        (
            filters.filter_live_migratable,
            {"intent": Intent.LIVE_MIGRATION, "source_host": "1"},
            False,
        ),
        (
            filters.filter_requested_destination,
            {"requested_destination": RequestedDestination(aggregates=("a1",))},
            False,
        ),
        (filters.filter_image_properties, {"image_properties": {"img_hv_type": "kvm"}}, True),
        (filters.filter_allowed_projects, {"project_id": "p"}, True),
        (filters.filter_aggregate_metadata, {"project_id": "p"}, True),
        (filters.filter_host_instructions, {}, True),
        (
            filters.filter_host_instructions,
            {"force_hosts": frozenset({"1", "unknown"})},
            True,
        ),
        (
            filters.filter_instance_group_affinity,
            {"instance_group": InstanceGroup(policy="affinity", hosts=frozenset(UNKNOWN))},
            True,
        ),
        (filters.filter_exclude_hosts(excluded_hosts=("x",)), {}, True),
        (filters.filter_maintenance, {}, True),
    ],
    ids=readable,
)
def test_unknown_hosts_of_a_request(
    step: Filter, fields: Mapping[str, Any], keeps_unknown: bool
) -> None:
    known = roomy(
        "1",
        zone="az-1",
        traits=("COMPUTE_ACCELERATORS", EXTERNAL),
        aggregates=(HostAggregate(uuid="a1"),),
    )
    request = ask(hosts=UNKNOWN, **fields)
    assert kept(table_of(known), request, step) == list(UNKNOWN if keeps_unknown else ("1",))


def test_known_host_that_the_request_does_not_name_stays_out() -> None:
    table = table_of(roomy("1"), roomy("2"))
    assert kept(table, ask(hosts=("2", "2")), filters.filter_status_conditions) == ["2"]


# --- 7.5 images ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "intent", "expected", "event_intent"),
    [
        pytest.param({"img_hv_type": "kvm"}, None, "123", None, id="kvm"),
        pytest.param({"hypervisor_type": "vmware"}, None, "3", None, id="vmware"),
        pytest.param({"img_hv_type": "baremetal"}, None, "3", None, id="baremetal"),
        pytest.param({}, None, "123", "unknown", id="none"),
        pytest.param(None, CREATE, "123", "create", id="properties missing"),
        pytest.param({"img_hv_type": "xen"}, None, "123", "unknown", id="xen"),
        pytest.param({"hypervisor_type": "vmware"}, CREATE, "3", None, id="create"),
        pytest.param(
            {"img_hv_type": "KVM", "hypervisor_type": "vmware"}, CREATE, "123", None, id="first key"
        ),
        *(
            pytest.param({"hypervisor_type": "vmware"}, intent, "123", None, id=intent.value)
            for intent in sorted(NO_VM)
        ),
    ],
)
def test_images_of_other_hypervisors_remove_kvm_hosts(
    properties: Mapping[str, object] | None,
    intent: Intent | None,
    expected: str,
    event_intent: str | None,
) -> None:
    table = table_of(roomy("1"), roomy("2"))
    request = ask(hosts=("1", "2", "3"), image_properties=properties, intent=intent)
    step = filters.filter_image_properties
    assert kept(table, request, step) == list(expected)
    wanted = [("image_properties_hv_type_undetermined", {"intent": event_intent})]
    assert events_of(table, request, step) == (wanted if event_intent else [])


# --- 7.6 capabilities ---------------------------------------------------------------------------

HYPERVISOR, ARCH = "capabilities:hypervisor_type", "capabilities:cpu_arch"
FOUR = (
    roomy("1", hypervisor_type="ch", cpu_arch="x86_64"),
    roomy("2", hypervisor_type="kvm", cpu_arch="x86_64"),
    roomy("3", hypervisor_type="ch", cpu_arch="aarch64"),
    roomy("4", hypervisor_type="kvm", cpu_arch="aarch64"),
)


@pytest.mark.parametrize(
    ("extra_specs", "expected"),
    [
        ({}, "1234"),
        ({"hw:cpu_policy": "dedicated"}, "1234"),
        ({HYPERVISOR: "CH"}, "13"),
        ({HYPERVISOR: "QEMU"}, "24"),
        ({ARCH: "x86_64"}, "12"),
        ({HYPERVISOR: "CH", ARCH: "x86_64"}, "1"),
        ({HYPERVISOR: "QEMU", ARCH: "aarch64"}, "4"),
        ({HYPERVISOR: "KVM"}, "24"),
        ({HYPERVISOR: "ch"}, "13"),
        ({HYPERVISOR: "ironic"}, ""),
        ({ARCH: "X86_64"}, ""),
        ({ARCH: "s>=x86_64"}, ""),
        ({ARCH: "s>= x86_64"}, "12"),
        ({ARCH: "s< b"}, "34"),
        ({ARCH: "<in> 64"}, "1234"),
        ({ARCH: "<all-in> 64 aa"}, "34"),
        ({HYPERVISOR: "<or> CH <or> KVM"}, "1234"),
        ({HYPERVISOR: "<or> CH"}, "13"),
        ({HYPERVISOR: "<in> CH QEMU"}, "13"),
        ({HYPERVISOR: "s!= CH"}, "24"),
        ({"capabilities:gpu": "yes"}, ""),
        ({"capabilities:gpu": "s!= yes"}, ""),
    ],
    ids=readable,
)
def test_capabilities_follow_novas_operators(extra_specs: Mapping[str, str], expected: str) -> None:
    before = dict(extra_specs)
    request = ask(extra_specs=extra_specs)
    assert kept(table_of(*FOUR), request, filters.filter_capabilities) == list(expected)
    assert extra_specs == before


def test_host_of_unknown_type_is_removed_with_an_event_if_it_is_a_candidate() -> None:
    strange = {"5": "odd", "6": "", "7": "odd"}
    table = table_of(*FOUR, *(roomy(name, hypervisor_type=one) for name, one in strange.items()))
    request = ask(extra_specs={HYPERVISOR: "CH"})
    step = filters.filter_capabilities
    assert kept(table, request, step) == ["1", "3"]
    assert unknown_types(table, request) == {"odd": 2, "": 1}
    assert unknown_types(table, replace(request, hosts=("1", "2", "6", "gone"))) == {"": 1}
    assert unknown_types(table, replace(request, hosts=("1", "2"))) == {}


def unknown_types(table: HostTable, request: PlacementRequest) -> dict[str, int]:
    events = record_run(table, request, only(filters.filter_capabilities)).events
    assert {one.event for one in events} <= {"filter_capabilities_unknown_hypervisor_type"}
    return {one.labels["hypervisor_type"]: one.count for one in events}


def test_unreadable_number_removes_the_hosts_with_an_event() -> None:
    request = ask(extra_specs={ARCH: ">= 4"})
    table = table_of(*FOUR)
    assert kept(table, request, filters.filter_capabilities) == []
    assert events_of(table, request, filters.filter_capabilities) == [
        ("filter_capabilities_unreadable_number", {"key": ARCH})
    ]
    with_number = table_of(*FOUR, roomy("5", hypervisor_type="kvm", cpu_arch="4"))
    offered = replace(request, hosts=("5",))
    assert kept(with_number, offered, filters.filter_capabilities) == ["5"]
    assert events_of(with_number, offered, filters.filter_capabilities) == []
    nobody_has = ask(extra_specs={"capabilities:gpu": ">= 4"})
    assert events_of(table, nobody_has, filters.filter_capabilities) == []


@pytest.mark.parametrize(
    ("actual", "wanted", "is_satisfied"),
    [
        ("4", "= 4", True),
        ("5", "= 4", True),
        ("3", ">= 4", False),
        ("4", "<= 4", True),
        ("5", "<= 4", False),
        ("4.0", "== 4", True),
        ("4", "!= 4", False),
        ("5", "!= 4", True),
        ("abc", "s== abc", True),
        ("abc", "s!= abc", False),
        ("abc", "s< b", True),
        ("abc", "s<= abc", True),
        ("abc", "s> abc", False),
        ("abc", "s>= abc", True),
        ("abc", "<in> b", True),
        ("abc", "<in> x", False),
        ("abc", "<in>", False),
        ("abc", "<all-in> a c", True),
        ("abc", "<all-in> a x", False),
        ("abc", "<or> x <or> abc", True),
        ("abc", "<or> x <or> y", False),
        ("abc", "abc", True),
        ("a b", "a b", True),
        ("", "", True),
        ("x", ">= 4", False),
        ("4", ">= x", False),
        ("4", ">=", False),
        (None, "abc", False),
        (None, "!= 4", False),
    ],
    ids=readable,
)
def test_operator(actual: str | None, wanted: str, is_satisfied: bool) -> None:
    assert satisfies(actual, wanted) is is_satisfied


def test_only_comparisons_of_numbers_can_be_unreadable() -> None:
    assert [is_unreadable(actual, wanted) for actual, wanted in (("x", ">= 1"), ("1", ">="))] == [
        True,
        True,
    ]
    readable = (("1", ">= 1"), ("x", "s>= 1"), ("x", ""), (None, ">= 1"))
    assert not any(is_unreadable(actual, wanted) for actual, wanted in readable)
    assert is_operator("<or>")
    assert not is_operator("or")


# --- 7.8 external customers ---------------------------------------------------------------------

CUSTOMER_HOSTS = (
    roomy("1", traits=(EXTERNAL,)),
    roomy("2", custom_traits=(EXTERNAL,)),
    roomy("3"),
    roomy("4"),
)


@pytest.mark.parametrize(
    ("domain_name", "ignored", "intent", "hosts", "expected"),
    [
        ("ext-customer1", (), CREATE, "1234", "12"),
        ("internal-x", (), CREATE, "1234", "1234"),
        ("partner-y", (), CREATE, "1234", "12"),
        ("ext-test", ("ext-test",), CREATE, "1234", "1234"),
        (None, (), CREATE, "1234", "1234"),
        ("EXT-customer", (), CREATE, "1234", "1234"),
        ("ext-", (), CREATE, "1234", "12"),
        ("ext-customer1", (), Intent.RESERVE_FOR_FAILOVER, "1234", "12"),
        ("ext-customer1", (), Intent.REUSE_FAILOVER_RESERVATION, "1234", "12"),
        ("ext-customer1", (), Intent.CAPACITY_PROBE, "1234", "1234"),
        ("ext-customer1", (), Intent.RESERVE_FOR_COMMITTED_RESOURCE, "1234", "12"),
        (None, (), Intent.RESERVE_FOR_COMMITTED_RESOURCE, "1234", "1234"),
        ("ext-customer1", (), CREATE, "34", ""),
    ],
    ids=readable,
)
def test_external_customers_stay_on_their_hosts(
    domain_name: str | None, ignored: tuple[str, ...], intent: Intent, hosts: str, expected: str
) -> None:
    step = filters.filter_external_customer(
        domain_name_prefixes=("ext-", "partner-"), ignored_domain_names=ignored
    )
    request = ask(domain_name=domain_name, intent=intent, hosts=tuple(hosts))
    assert kept(table_of(*CUSTOMER_HOSTS), request, step) == list(expected)


def test_domain_that_cannot_be_looked_up_fails_the_request() -> None:
    step = filters.filter_external_customer(domain_name_prefixes=("ext-",))
    request = ask(domain_is_unresolved=True)
    with pytest.raises(StepFailedError, match="could not be looked up"):
        kept(table_of(*CUSTOMER_HOSTS), request, step)
    decision = schedule(table_of(*CUSTOMER_HOSTS), request, only(step))
    assert decision.host_name is None
    assert decision.failure.startswith("filter_external_customer: ")


def test_external_customer_filter_needs_a_prefix() -> None:
    with pytest.raises(ValueError, match="at least one"):
        filters.filter_external_customer(domain_name_prefixes=())


# --- 7.9, 7.17, 7.18 ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra_specs", "expected"),
    [({}, "12"), ({"accel:device_profile": "gpu"}, "1"), ({"accel:device_profile": ""}, "1")],
    ids=readable,
)
def test_accelerator_profile_wants_hosts_with_accelerators(
    extra_specs: Mapping[str, str], expected: str
) -> None:
    table = table_of(roomy("1", traits=("COMPUTE_ACCELERATORS",)), roomy("2"))
    request = ask(extra_specs=extra_specs)
    assert kept(table, request, filters.filter_has_accelerators) == list(expected)


@pytest.mark.parametrize(
    ("excluded", "expected"),
    [((), "123"), (("1",), "23"), (("1", "1", "9"), "23"), (("123",), "123")],
    ids=readable,
)
def test_excluded_hosts_are_removed_by_exact_name(excluded: tuple[str, ...], expected: str) -> None:
    step = filters.filter_exclude_hosts(excluded_hosts=excluded)
    assert kept(table_of(*map(roomy, "123")), ask(), step) == list(expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "12"),
        ({"extra_specs": {"hw:virtio_packed_ring": "false"}}, "1"),
        ({"image_properties": {"hw_virtio_packed_ring": True}}, "1"),
    ],
    ids=readable,
)
def test_packed_virtqueue_wants_hosts_with_it(fields: Mapping[str, Any], expected: str) -> None:
    table = table_of(roomy("1", traits=("COMPUTE_NET_VIRTIO_PACKED",)), roomy("2"))
    assert kept(table, ask(**fields), filters.filter_packed_virtqueue) == list(expected)


def test_maintenance_filter_keeps_unset_auto_and_ha() -> None:
    modes = {"1": "", "2": "auto", "3": "ha", "4": "manual", "5": "termination", "6": "odd"}
    table = table_of(*(roomy(name, maintenance=mode) for name, mode in modes.items()))
    assert kept(table, ask(), filters.filter_maintenance) == ["1", "2", "3"]


# --- 7.10 server groups -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (None, "123"),
        (InstanceGroup(policy="affinity", hosts=frozenset("12")), "12"),
        (InstanceGroup(policy="affinity", hosts=frozenset("9")), ""),
        (InstanceGroup(policy="affinity"), "123"),
        (InstanceGroup(policy="Affinity", hosts=frozenset("1")), "123"),
        (InstanceGroup(policy="anti-affinity", hosts=frozenset("1")), "123"),
    ],
    ids=readable,
)
def test_affinity_keeps_the_hosts_of_the_group(group: InstanceGroup | None, expected: str) -> None:
    table = table_of(*map(roomy, "123"))
    request = ask(instance_group=group)
    assert kept(table, request, filters.filter_instance_group_affinity) == list(expected)


RUNNING = {"1": (), "2": ("v1",), "3": ("v2", "v3"), "4": ("v1", "v2"), "5": ("v4", "v5", "v6")}


@pytest.mark.parametrize(
    ("policy", "members", "limit", "vm", "hosts", "expected"),
    [
        pytest.param(None, (), 1, "new", "12345", "12345", id="no group"),
        pytest.param("affinity", ("v1",), 1, "new", "12345", "12345", id="affinity"),
        pytest.param("soft-anti-affinity", ("v1",), 1, "new", "1234", "1234", id="soft"),
        pytest.param("anti-affinity", (), 1, "new", "1234", "1234", id="no members"),
        pytest.param("anti-affinity", ("v1", "v2"), 1, "new", "1234", "1", id="default"),
        pytest.param("anti-affinity", ("v1", "v2", "v3"), 2, "new", "1234", "12", id="limit 2"),
        pytest.param("anti-affinity", ("v4", "v5", "v6"), 3, "new", "15", "1", id="limit 3"),
        pytest.param("anti-affinity", ("v1", "v2"), 1, "v1", "124", "124", id="runs v1"),
        pytest.param("anti-affinity", ("v1", "v2", "v3"), 1, "v2", "1234", "134", id="runs v2"),
        pytest.param("anti-affinity", ("v1", "v2", "v3"), 1, "new", "234", "", id="none"),
        pytest.param(
            "anti-affinity", ("v1", "v2", "v3", "v4", "v5"), 1, "new", "12345", "1", id="v1-v5"
        ),
        pytest.param("anti-affinity", ("v1", "v2", "v3"), 10, "new", "1234", "1234", id="10"),
    ],
)
def test_anti_affinity_removes_hosts_with_enough_members(  # noqa: PLR0917 - columns of the table
    policy: str | None, members: tuple[str, ...], limit: int, vm: str, hosts: str, expected: str
) -> None:
    table = table_of(*(roomy(name, instances=vms) for name, vms in RUNNING.items()))
    group = None
    if policy is not None:
        group = InstanceGroup(policy=policy, members=frozenset(members), max_per_host=limit)
    request = ask(request_key=vm, instance_group=group, hosts=tuple(hosts))
    assert kept(table, request, filters.filter_instance_group_anti_affinity) == list(expected)


@pytest.mark.parametrize(
    ("rule", "limit"),
    [
        (None, 1),
        (3, 3),
        (2.0, 2),
        (2.5, 1),
        ("4", 4),
        (" 4 ", 4),
        ("x", 1),
        (0, 1),
        (-2, 1),
        (True, 1),
        ([3], 1),
        ("9" * 5000, 1),
        (1e300, (1 << 31) - 1),
        (10**30, (1 << 31) - 1),
    ],
    ids=lambda one: readable(one)[:20],
)
def test_group_limit_takes_every_whole_number(rule: object, limit: int) -> None:
    assert max_per_host_from_rule(rule) == limit


# --- 7.13 aggregates ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "project", "is_kept"),
    [
        ((), "p", True),
        (({},), "p", True),
        (({"filter_tenant_id": "a"},), "a", True),
        (({"filter_tenant_id": "a"},), "b", False),
        (({"filter_tenant_id": "a"},), "", False),
        (({"filter_tenant_id": ""},), "", True),
        (({"filter_tenant_id": "a"}, {"filter_tenant_id": "b"}), "b", True),
        (({"filter_tenant_id": "a"}, {"filter_tenant_id": "b"}), "c", False),
        (({"filter_tenant_id": "a,b,c"},), "b", True),
        (({"filter_tenant_id": "a,b,c"},), "d", False),
        (({"filter_tenant_id": "a, b , c"},), "b", True),
        (
            ({"filter_tenant_id": "a", "filter_tenant_id1": "b", "filter_tenant_id2": "c"},),
            "c",
            True,
        ),
        (({"filter_tenant_id1": "d,e"},), "e", True),
        (({"filter_tenant_id": ""},), "p", True),
    ],
    ids=readable,
)
def test_aggregate_metadata_restricts_tenants(
    metadata: tuple[Mapping[str, str], ...], project: str, is_kept: bool
) -> None:
    aggregates = tuple(
        HostAggregate(uuid=str(number), metadata=one) for number, one in enumerate(metadata)
    )
    table = table_of(roomy("h", aggregates=aggregates))
    found = kept(table, ask(project_id=project), filters.filter_aggregate_metadata)
    assert found == (["h"] if is_kept else [])


# --- 7.14 live migration ------------------------------------------------------------------------


def can(name: str, arch: str = "x86_64", **fields: tuple[str, ...]) -> HostRow:
    return roomy(name, cpu_arch=arch, **fields)


@pytest.mark.parametrize(
    ("source", "target", "is_kept"),
    [
        (can("s"), can("t", "aarch64"), False),
        (
            can("s", cpu_modes=("host-model", "host-passthrough")),
            can("t", cpu_modes=("host-model",)),
            False,
        ),
        (can("s", features=("sev",)), can("t", features=("sev", "sgx")), True),
        (can("s", features=("sev", "sgx")), can("t", features=("sev",)), False),
        (can("s", devices=("video",)), can("t"), False),
        (can("s"), can("t", devices=("video",)), True),
    ],
    ids=readable,
)
def test_live_migration_needs_everything_of_the_source(
    source: HostRow, target: HostRow, is_kept: bool
) -> None:
    table = table_of(source, target)
    request = ask(intent=Intent.LIVE_MIGRATION, source_host="s", hosts=("t",))
    step = filters.filter_live_migratable
    assert kept(table, request, step) == (["t"] if is_kept else [])
    for other in (replace(request, intent=CREATE), replace(request, source_host="")):
        assert kept(table, other, step) == ["t"]


def test_unknown_source_host_fails_the_request() -> None:
    request = ask(intent=Intent.LIVE_MIGRATION, source_host="gone")
    with pytest.raises(PipelineRunError, match="filter_live_migratable: source host gone"):
        kept(table_of(roomy("1")), request, filters.filter_live_migratable)


# --- 7.15 requested destination -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregates", "host", "hosts", "expected"),
    [
        (("a1",), "", {"1": "a1", "2": "a2", "3": "a1 a3"}, "13"),
        (("a1,a3",), "", {"1": "a1", "2": "a2", "3": "a3", "4": "a4"}, "13"),
        (("a1", "a2"), "", {"1": "a1", "2": "a1 a2", "3": "a2"}, "2"),
        (("a1,a2", "a3"), "", {"1": "a1 a3", "2": "a2 a3", "3": "a1", "4": "a3"}, "12"),
        (("a1",), "2", {"1": "a1", "2": "a1", "3": "a2"}, "2"),
        ((), "9", {"1": "", "2": ""}, ""),
        (("a1",), "", {"1": "a1", "2": ""}, "1"),
        ((), "", {"1": "", "2": ""}, "12"),
    ],
    ids=readable,
)
def test_requested_destination(
    aggregates: tuple[str, ...], host: str, hosts: Mapping[str, str], expected: str
) -> None:
    table = table_of(
        *(
            roomy(name, aggregates=tuple(HostAggregate(uuid=uuid) for uuid in uuids.split()))
            for name, uuids in hosts.items()
        )
    )
    request = ask(requested_destination=RequestedDestination(host=host, aggregates=aggregates))
    step = filters.filter_requested_destination
    assert kept(table, request, step) == list(expected)
    for intent in NO_VM:
        assert kept(table, replace(request, intent=intent), step) == list(hosts)


# --- 7.11 step C --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "is_kept"), [(0, True), (1, True), (2, True), (3, False)], ids=readable
)
def test_all_instances_must_fit_on_one_host(count: int, is_kept: bool) -> None:
    table = table_of(roomy("h", effective=gib(16, 8)))
    found = kept(table, ask(8, 4, num_instances=count), filters.filter_has_enough_capacity)
    assert found == (["h"] if is_kept else [])


def test_request_without_size_fails_only_where_room_is_asked_for() -> None:
    table = table_of(roomy("h"))
    with pytest.raises(UnplaceableRequestError):
        schedule(table, ask(0, 1), only(filters.filter_has_enough_capacity))
    assert schedule(table, ask(0, 1), only(filters.filter_status_conditions)).host_name == "h"
