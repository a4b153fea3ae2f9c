from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given

from hosts.domain.capacity import HostInventory, effective_amount
from scheduling import filters
from scheduling.engine import SLOT_PIPELINE, passing_hosts
from scheduling.evaluation import CompiledPipeline
from scheduling.filters import Filter, conditions_allow_placement
from scheduling.request import (
    PlacementRequest,
    traits_from_extra_specs,
)
from scheduling.resources import ZERO
from scheduling.table import HostTable
from scheduling.table_rows import HostRow

from .worlds import ask, gib, names_that_pass, readable, requests, roomy, verdict, worlds

ALL_FILTERS = SLOT_PIPELINE.filters


def only(step: Filter) -> CompiledPipeline:
    return CompiledPipeline(name="only", filters=(step,), weighers=())


READY = {"Ready": "True", "HypervisorDisabled": "False", "Terminating": "False"}


@pytest.mark.parametrize(
    ("conditions", "is_kept"),
    [
        pytest.param({**READY, "Tainted": "False"}, True, id="all as required"),
        pytest.param({**READY, "Ready": "False"}, False, id="Ready F, others fine"),
        pytest.param({**READY, "Terminating": "True"}, False, id="Terminating T"),
        pytest.param({**READY, "Tainted": "True"}, True, id="Tainted T, rest fine"),
        pytest.param(
            {**READY, "Onboarding": "True", "TraitsUpdated": "True", "AggregatesUpdated": "False"},
            True,
            id="Onboarding T, TraitsUpdated T, AggregatesUpdated F",
        ),
        pytest.param({"Ready": "True"}, True, id="only Ready, missing conditions are accepted"),
        pytest.param({"Terminating": "False"}, False, id="no Ready condition (decisions: fails)"),
        pytest.param({}, False, id="none at all (decisions: fails)"),
        pytest.param({**READY, "HypervisorDisabled": "True"}, False, id="Disabled T"),
        pytest.param({**READY, "Ready": "Unknown"}, False, id="Ready Unknown"),
        pytest.param({**READY, "Terminating": "Unknown"}, False, id="Terminating Unknown"),
    ],
)
def test_status_filter_keeps_hosts_whose_conditions_allow_placement(
    conditions: dict[str, str], is_kept: bool
) -> None:
    host = roomy("1", is_ready=conditions_allow_placement(conditions))
    kept = names_that_pass([host], ask(), only(filters.filter_status_conditions))
    assert kept == (["1"] if is_kept else [])


@pytest.mark.parametrize(
    ("zone", "kept"),
    [
        pytest.param("az-1", ["1", "2"], id="az-1"),
        pytest.param("az-2", ["3"], id="az-2"),
        pytest.param("az-9", [], id="az-9"),
        pytest.param("", ["1", "2", "3", "4", "5"], id="no zone requested"),
    ],
)
def test_zone_filter_keeps_hosts_of_the_requested_zone(zone: str, kept: list[str]) -> None:
    zones = {"1": "az-1", "2": "az-1", "3": "az-2", "4": "az-3", "5": ""}
    hosts = [roomy(name, zone=host_zone) for name, host_zone in zones.items()]
    assert names_that_pass(hosts, ask(zone=zone), only(filters.filter_correct_az)) == kept


@pytest.mark.parametrize(
    ("hosts", "ignore", "force", "kept"),
    [
        pytest.param("123", None, None, "123", id="null null"),
        pytest.param("123", "1", None, "23", id="ignore 1"),
        pytest.param("123", "123", None, "", id="ignore all"),
        pytest.param("12", "9", None, "12", id="ignore an unknown host"),
        pytest.param("123", None, "1", "1", id="force 1"),
        pytest.param("12", None, "9", "", id="force an unknown host"),
        pytest.param("12", "1", "1", "", id="ignore wins"),
        pytest.param("123", "1", "2", "2", id="ignore 1, force 2"),
        pytest.param("12", "", None, "12", id="empty ignore"),
        pytest.param("12", None, "", "", id="empty force"),
    ],
)
def test_host_instructions_ignore_first_and_then_force(
    hosts: str, ignore: str | None, force: str | None, kept: str
) -> None:
    request = ask(
        ignore_hosts=None if ignore is None else frozenset(ignore),
        force_hosts=None if force is None else frozenset(force),
    )
    step = only(filters.filter_host_instructions)
    assert names_that_pass([roomy(name) for name in hosts], request, step) == list(kept)


@pytest.mark.parametrize(
    ("extra_specs", "kept"),
    [
        pytest.param({}, "1234", id="no extra specs"),
        pytest.param({"hw:cpu_policy": "dedicated"}, "1234", id="only other keys"),
        pytest.param({"capabilities:hypervisor_type": "CH"}, "13", id="CH"),
        pytest.param({"capabilities:hypervisor_type": "QEMU"}, "24", id="QEMU"),
        pytest.param({"capabilities:hypervisor_type": "KVM"}, "24", id="KVM (product: is QEMU)"),
        pytest.param({"capabilities:hypervisor_type": "ch"}, "13", id="ch (product: any case)"),
        pytest.param({"capabilities:hypervisor_type": "qemu"}, "24", id="qemu (product: any case)"),
        pytest.param({"capabilities:hypervisor_type": "vmware"}, "", id="a type nobody has"),
        pytest.param(
            {"capabilities:hypervisor_type": "<or> CH <or> QEMU"}, "1234", id="operator, as Nova"
        ),
    ],
)
def test_capabilities_filter_keeps_hosts_of_the_requested_type(
    extra_specs: dict[str, str], kept: str
) -> None:
    types = {"1": "ch", "2": "kvm", "3": "ch", "4": "kvm"}
    hosts = [roomy(name, hypervisor_type=kind) for name, kind in types.items()]
    request = ask(extra_specs=extra_specs)
    assert names_that_pass(hosts, request, only(filters.filter_capabilities)) == list(kept)


@pytest.mark.parametrize("host_type", ["", "unknown", "vmware"])
def test_host_of_unknown_type_has_no_capabilities_even_when_its_type_is_asked_for(
    host_type: str,
) -> None:
    hosts = [roomy("1", hypervisor_type=host_type), roomy("2", hypervisor_type="ch")]
    step = only(filters.filter_capabilities)
    assert names_that_pass(hosts, ask(hypervisor_type="CH"), step) == ["2"]
    assert names_that_pass(hosts, ask(hypervisor_type=host_type), step) == []


TRAITS_OF = {"1": "AB", "2": "AC", "3": "BC", "4": "D", "5": "", "6": "ABCD"}


@pytest.mark.parametrize(
    ("extra_specs", "candidates", "kept"),
    [
        pytest.param({}, "123", "123", id="none"),
        pytest.param({"trait:A": "required"}, "1234", "12", id="A required"),
        pytest.param(
            {"trait:A": "required", "trait:B": "required"}, "1236", "16", id="A, B required"
        ),
        pytest.param({"trait:A": "forbidden"}, "12345", "345", id="A forbidden"),
        pytest.param(
            {"trait:A": "forbidden", "trait:B": "forbidden"}, "12345", "45", id="A, B forbidden"
        ),
        pytest.param({"trait:A": "required", "trait:D": "forbidden"}, "1246", "12", id="A not D"),
        pytest.param({"trait:X": "required"}, "123", "", id="X required"),
        pytest.param({"trait:X": "forbidden"}, "123", "123", id="X forbidden"),
        pytest.param({"trait:A": "required"}, "5", "", id="A required, no traits"),
        pytest.param({"trait:A": "forbidden"}, "5", "5", id="A forbidden, no traits"),
        pytest.param({"trait:A": "invalid"}, "123", "123", id="A invalid"),
        pytest.param(
            {"trait:A": "required", "hw:cpu_policy": "required"}, "13", "1", id="other key too"
        ),
        pytest.param(
            {"trait:A": "required", "trait:B": "required", "trait:D": "forbidden"},
            "123456",
            "1",
            id="A, B required, D forbidden",
        ),
        pytest.param({"trait:A": "Required"}, "1234", "12", id="product: any case of required"),
        pytest.param({"trait:A": "FORBIDDEN"}, "15", "5", id="product: any case of forbidden"),
        pytest.param({"trait:a": "required"}, "123", "", id="trait names are case sensitive"),
    ],
)
def test_traits_filter_keeps_hosts_with_required_and_without_forbidden_traits(
    extra_specs: dict[str, str], candidates: str, kept: str
) -> None:
    required, forbidden = traits_from_extra_specs(extra_specs)
    request = ask(required_traits=required, forbidden_traits=forbidden)
    hosts = [roomy(name, traits=tuple(TRAITS_OF[name])) for name in candidates]
    step = only(filters.filter_has_requested_traits)
    assert names_that_pass(hosts, request, step) == list(kept)


@pytest.mark.parametrize(
    ("project_id", "kept"),
    [("", "12345"), ("a", "1235"), ("b", "125"), ("z", "15"), ("A", "15")],
    ids=["no project", "a", "b", "z", "A"],
)
def test_allowed_projects_filter_removes_hosts_closed_to_the_project(
    project_id: str, kept: str
) -> None:
    allowed = {"1": "", "2": "ab", "3": "a", "4": "c", "5": ""}
    hosts = [roomy(name, allowed_projects=tuple(projects)) for name, projects in allowed.items()]
    request = ask(project_id=project_id)
    assert names_that_pass(hosts, request, only(filters.filter_allowed_projects)) == list(kept)


def host_with(free: tuple[int, int], **fields: object) -> HostRow:
    vcpus, memory_gib = free
    return roomy("h", effective=gib(memory_gib, vcpus), **fields)


@pytest.mark.parametrize(
    ("host", "request_", "is_kept"),
    [
        pytest.param(host_with((8, 16)), ask(8, 4), True, id="C01 h1"),
        pytest.param(host_with((4, 8)), ask(8, 4), True, id="C01 h2, exact fit"),
        pytest.param(host_with((0, 0)), ask(8, 4), False, id="C01 h4, no capacity data"),
        pytest.param(host_with((8, 16), committed=gib(16, 8)), ask(8, 4), False, id="C02 h1"),
        pytest.param(host_with((8, 16), committed=gib(10, 5)), ask(8, 4), False, id="C04 cpu"),
        pytest.param(host_with((8, 16), failover=gib(16, 8)), ask(8, 4), False, id="F01 h1"),
        pytest.param(host_with((80, 960)), ask(480, 40), True, id="480 on 960"),
        pytest.param(
            host_with((40, 480), committed=gib(480, 40)), ask(480, 40), False, id="480 beside 480"
        ),
        pytest.param(
            host_with((80, 960), committed=gib(480, 40)), ask(480, 40), True, id="480 in the rest"
        ),
        pytest.param(
            host_with((60, 960), committed=gib(480, 40)), ask(480, 40), False, id="480, no vCPUs"
        ),
        pytest.param(
            host_with((40, 480), allocated=gib(100, 0)), ask(480, 40), False, id="480 beside VMs"
        ),
        pytest.param(host_with((8, 16), in_flight=gib(9, 1)), ask(8, 4), False, id="in flight"),
        pytest.param(
            host_with((4, 16), allocated=gib(4, 5)), ask(1, 1), False, id="over-allocated"
        ),
        pytest.param(host_with((8, 16), allocated=gib(0, 6)), ask(1, 4), False, id="8 cpu, 6 used"),
        pytest.param(
            host_with((8, 16), allocated=gib(0, 6)),
            ask(1, 4, assume_empty_hosts=True),
            True,
            id="8 cpu, 6 used, hosts assumed empty",
        ),
        pytest.param(
            host_with((8, 1)),
            PlacementRequest(request_key="r", memory_bytes=2**30 + 1, vcpus=1),
            False,
            id="one byte short (product: exact)",
        ),
    ],
)
def test_capacity_filter_keeps_hosts_with_room(
    host: HostRow, request_: PlacementRequest, is_kept: bool
) -> None:
    kept = names_that_pass([host], request_, only(filters.filter_has_enough_capacity))
    assert kept == (["h"] if is_kept else [])


@pytest.mark.parametrize(
    ("capacity", "ratio", "asked", "is_kept"),
    [
        pytest.param(4, 2, 5, True, id="capacity 4, effective 8, request 5"),
        pytest.param(2, 1, 4, False, id="capacity only 2, request 4"),
        pytest.param(8, 1, 4, True, id="capacity only 8, request 4"),
        pytest.param(0, 1, 1, False, id="no capacity"),
    ],
)
def test_capacity_filter_goes_by_the_effective_capacity(
    capacity: int, ratio: int, asked: int, is_kept: bool
) -> None:
    """A host whose overcommit nobody says has its capacity as effective capacity."""
    vcpus = effective_amount(HostInventory(total=capacity, ratio=Decimal(ratio)))
    step = only(filters.filter_has_enough_capacity)
    assert names_that_pass([host_with((vcpus, 64))], ask(1, asked), step) == ["h"] * is_kept


@pytest.mark.parametrize(
    ("vcpus", "ignored", "is_kept"),
    [
        (12, (), False),
        (12, ("committed",), False),
        (12, ("failover",), False),
        (12, ("committed", "failover"), True),
        (10, (), False),
        (10, ("committed",), True),
        (10, ("failover",), False),
        (10, ("committed", "failover"), True),
        (8, (), False),
        (8, ("committed",), True),
        (8, ("failover",), True),
        (8, ("committed", "failover"), True),
        (6, (), True),
    ],
    ids=readable,
)
def test_ignored_kinds_block_nothing(vcpus: int, ignored: tuple[str, ...], is_kept: bool) -> None:
    host = host_with((12, 24), committed=gib(8, 4), failover=gib(4, 2))
    request = ask(1, vcpus, ignored_kinds=frozenset(ignored))
    kept = names_that_pass([host], request, only(filters.filter_has_enough_capacity))
    assert kept == (["h"] if is_kept else [])


@pytest.mark.parametrize("step", ALL_FILTERS, ids=[step.name for step in ALL_FILTERS])
def test_filter_of_an_empty_table_keeps_nothing(step: Filter) -> None:
    assert names_that_pass([], ask(zone="az-1", project_id="p"), only(step)) == []


@pytest.mark.parametrize("step", ALL_FILTERS, ids=[step.name for step in ALL_FILTERS])
def test_each_filter_equals_the_per_host_rule(step: Filter) -> None:
    @given(rows=worlds, request=requests)
    def check(rows: list[HostRow], request: PlacementRequest) -> None:
        mask = passing_hosts(HostTable.from_rows(rows), request, only(step))
        assert mask.tolist() == [verdict(step.name, row, request, ZERO) for row in rows]

    check()
