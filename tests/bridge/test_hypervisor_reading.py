"""What a Hypervisor object says of its host (spec hosts, C.1 to C.3, C.7)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from bridge.hypervisors.reading import (
    building_block,
    object_node,
    quantity,
    read_hypervisor,
    stated_fields,
)
from bridge.hypervisors.writing import Malformed, told_by
from hosts.domain.readiness import Condition, compute_ready, hindering_conditions
from hosts.domain.vm_list import ReportedVM
from hosts.region.described import DescribedAggregate, DescribedHost
from hosts.region.described_cells import DescribedCell
from hosts.region.node import RegionFileError
from tests.bridge.hypervisor_objects import Json, hypervisor_object, instances, with_spec

GIB = 1 << 30
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(1 << 63), max_value=(1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def read(body: Json) -> DescribedHost:
    return read_hypervisor(object_node(body))


def condition(kind: str, status: str, reason: str = "") -> Json:
    return {"type": kind, "status": status, "reason": reason}


def test_a_whole_object() -> None:
    body = with_spec(
        hypervisor_object(
            "node007-bb12",
            hypervisorId="h-7",
            capacity={"cpu": "128", "memory": "1Ti"},
            effectiveCapacity={"cpu": "256", "memory": "1Ti"},
            allocation={"cpu": "3", "memory": "6Gi"},
            traits=["B", "A", "A"],
            aggregates=[{"name": "gold", "uuid": "a-1", "metadata": {"cpu": "fast"}}],
            capabilities={"cpuArch": "x86_64", "memory": "1Ti", "cpus": 128},
            domainCapabilities={
                "hypervisorType": "ch",
                "supportedCpuModes": ["host-passthrough"],
                "supportedDevices": ["video"],
                "supportedFeatures": ["sev"],
            },
            operatingSystem={"version": "1877.5", "variantID": "metal"},
            instances=instances(("vm-1", True), ("vm-2", False)),
            conditions=[condition("Ready", "True"), condition("Tainted", "True")],
        ),
        customTraits=["CUSTOM_X"],
        allowedProjects=["p-2", "p-1"],
        maintenance="ha",
        overcommit={"cpu": 2.0},
    )
    assert read(body) == DescribedHost(
        name="node007-bb12",
        openstack_id="h-7",
        zone="az-a",
        hypervisor_type="CH",
        cpu_arch="x86_64",
        os_version="1877.5",
        maintenance="ha",
        total_vcpus=128,
        total_memory_bytes=1024 * GIB,
        effective_vcpus=256,
        effective_memory_bytes=1024 * GIB,
        vcpus_ratio=Decimal(2),
        traits=("A", "B"),
        custom_traits=("CUSTOM_X",),
        aggregates=(DescribedAggregate(uuid="a-1", name="gold", metadata={"cpu": "fast"}),),
        allowed_projects=("p-1", "p-2"),
        conditions={"Ready": "True", "Tainted": "True"},
        domain_capabilities={
            "cpu_modes": ["host-passthrough"],
            "devices": ["video"],
            "features": ["sev"],
        },
        building_block="bb12",
        reported_instances=(
            ReportedVM(vm_uuid="vm-1", name="vm-1", is_active=True),
            ReportedVM(vm_uuid="vm-2", name="vm-2", is_active=False),
        ),
        reported_memory_bytes=6 * GIB,
        reported_vcpus=3,
    )


def test_reasons_are_kept_and_messages_where_they_say_why_nothing_is_taken() -> None:
    told: list[Json] = [
        condition("Ready", "False", "Maintenance") | {"message": "fans\0 " + "x" * 600},
        condition("Evicting", "True", "Running") | {"message": "7 left"},
        condition("HypervisorDisabled", "False"),
        condition("Terminating", "Unknown") | {"message": 7},
        {"type": "Tainted", "status": "False", "message": "fine"},
    ]
    host = read(hypervisor_object(conditions=told))
    assert host.condition_reasons == {
        "Evicting": {"reason": "Running"},
        "Ready": {"reason": "Maintenance", "message": "fans " + "x" * 495},
    }
    assert hindering_conditions(host.conditions, host.condition_reasons) == (
        "Ready is False (Maintenance: fans " + "x" * 495 + ")",
        "Terminating is Unknown",
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hypervisorId": ""}, {"reason": "Onboarding", "message": "waiting for the ids of Nova"}),
        ({}, {"reason": "Onboarding", "message": "not started"}),
        (
            {
                "conditions": [
                    condition("Onboarding", "True", "Testing") | {"message": "boots a VM"}
                ]
            },
            {"reason": "Onboarding", "message": "Testing: boots a VM"},
        ),
        ({"conditions": [condition("Offboarded", "True")]}, {"reason": "Offboarded"}),
    ],
)
def test_why_a_host_is_not_ready_that_nobody_states(changes: Json, why: Json) -> None:
    status: Json = {"conditions": []} | changes
    host = read(hypervisor_object(**status))
    assert host.conditions["Ready"] == "False"
    assert host.condition_reasons["Ready"] == why


def test_high_availability_is_wanted_unless_the_object_says_otherwise() -> None:
    assert read(hypervisor_object()).high_availability
    assert not read(with_spec(hypervisor_object(), highAvailability=False)).high_availability


def test_a_very_long_version_of_the_system_is_cut() -> None:
    body = hypervisor_object(operatingSystem={"version": "9" * 200})
    assert read(body).os_version == "9" * 64


def test_an_object_that_says_nothing_yet_has_no_room_and_is_not_ready() -> None:
    host = read({"metadata": {"name": "new"}})
    assert (host.effective_memory_bytes, host.effective_vcpus) == (0, 0)
    assert (host.reported_instances, host.reported_memory_bytes) == (None, None)
    assert host.conditions == {"Ready": "False"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"effectiveCapacity": None}, (64, 512 * GIB)),
        ({"effectiveCapacity": {"cpu": "128"}}, (128, 512 * GIB)),
        ({"capacity": None}, (64, 512 * GIB)),
        ({"effectiveCapacity": {"cpu": "1500m", "memory": "1.5Ki"}}, (1, 1536)),
        ({"effectiveCapacity": {"cpu": 10, "memory": 0}}, (10, 0)),
    ],
)
def test_effective_amounts_else_installed_ones(status: Json, expected: tuple[int, int]) -> None:
    host = read(hypervisor_object(**status))
    assert (host.effective_vcpus, host.effective_memory_bytes) == expected


@pytest.mark.parametrize(
    ("allocation", "expected"),
    [
        ({"cpu": "12500m", "memory": "7Gi"}, (13, 7 * GIB)),
        ({"cpu": "1"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_what_vms_take_is_said_whole_or_not_at_all(
    allocation: Json, expected: tuple[int | None, int | None]
) -> None:
    host = read(hypervisor_object(allocation=allocation))
    assert (host.reported_vcpus, host.reported_memory_bytes) == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [("64", 64), ("512Gi", 512 * GIB), ("1500m", Decimal("1.5")), ("2k", 2000), ("1e3", 1000),
     ("1E", 10**18), ("1Ki", 1024), (5, 5), (2.5, Decimal("2.5")), ("-1", -1)],
)  # fmt: skip
def test_quantities(text: object, number: Decimal | int) -> None:
    assert quantity(text) == number


@given(
    number=st.decimals(
        allow_nan=False, allow_infinity=False, places=3, min_value=0, max_value=9999
    ),
    suffix=st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "Pi"]),
)
def test_quantities_are_those_of_the_official_client(number: Decimal, suffix: str) -> None:
    theirs = parse_quantity(f"{number}{suffix}")  # type: ignore[no-untyped-call]  # the library's
    assert quantity(f"{number}{suffix}") == theirs


@pytest.mark.parametrize(
    "text", ["", "Gi", " 1", "1 ", "1Gb", "1_0", "NaN", "inf", "1e99", True, None, [], "1KiKi"]
)
def test_what_is_no_quantity(text: object) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        quantity(text)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (hypervisor_object(capacity={"cpu": "many"}), "capacity.cpu: is no quantity"),
        (hypervisor_object(capacity={"cpu": "-1"}), "capacity.cpu: -1 is out of range"),
        (hypervisor_object(capacity={"memory": "9Ei"}), "capacity.memory: "),
        (hypervisor_object(capacity=[]), "capacity: must be an object, not a list"),
        (hypervisor_object(instances=[{"name": "x"}]), "instances[0].id: missing"),
        (hypervisor_object(instances=[3]), "instances[0]: must be an object"),
        (hypervisor_object(instances={}), "instances: must be a list"),
        (hypervisor_object(conditions=[condition("Ready", "yes")]), "status: must be one of True"),
        (hypervisor_object(aggregates=[{"name": "x"}]), "aggregates[0].uuid: missing"),
        (hypervisor_object(traits="A"), "traits: must be a list, not a text"),
        (with_spec(hypervisor_object(), overcommit={"cpu": 0.9}), "overcommit.cpu: 0.9 is below 1"),
        (with_spec(hypervisor_object(), maintenance="soon"), "maintenance: must be one of manual"),
        ({"metadata": {}}, "metadata.name: missing"),
        ({"metadata": {"name": 3}}, "metadata.name: must be a text"),
        ({}, "metadata: missing"),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_names_its_field(body: Json, told: str) -> None:
    with pytest.raises(RegionFileError) as caught:
        read(body)
    assert told in caught.value.message


CELLS = [
    {"cellID": 0, "capacity": {"cpu": "10", "memory": "4Gi"}, "allocation": {"cpu": "9"}},
    {"cellID": 1, "capacity": {"cpu": "11", "memory": "5Gi"}},
]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"capacity": None, "cells": CELLS}, (21, 9 * GIB)),
        ({"capacity": {"cpu": "3", "memory": "1Gi"}, "cells": CELLS}, (3, GIB)),
        ({"capacity": {"cpu": "3"}, "cells": CELLS}, (3, 0)),
        ({"capacity": None, "cells": [*CELLS, {"cellID": 2, "capacity": {"cpu": "1"}}]}, (22, 0)),
        ({"capacity": None, "cells": []}, (0, 0)),
        ({"capacity": {"cpu": "3", "memory": "1Gi"}, "cells": "odd"}, (3, GIB)),
    ],
)
def test_what_cells_have_is_the_hosts_where_it_does_not_say(
    status: Json, expected: tuple[int, int]
) -> None:
    found = read(hypervisor_object(effectiveCapacity=None, **status))
    assert (found.total_vcpus, found.total_memory_bytes) == expected
    assert (found.effective_vcpus, found.effective_memory_bytes) == expected


def test_each_cell_is_described() -> None:
    may = {"effectiveCapacity": {"cpu": "20"}}
    found = read(hypervisor_object(cells=[CELLS[0] | may, CELLS[1], {"cellID": 2}]))
    assert found.cells == (
        DescribedCell(cell=0, resource="cpu", capacity=10, effective=20, allocated=9),
        DescribedCell(cell=0, resource="memory", capacity=4 * GIB),
        DescribedCell(cell=1, resource="cpu", capacity=11),
        DescribedCell(cell=1, resource="memory", capacity=5 * GIB),
    )
    odd = [{"cellID": -1, "capacity": {"cpu": "1"}}]
    for cells in ("odd", odd, [CELLS[0], CELLS[0]]):
        assert read(hypervisor_object(cells=cells)).cells == ()


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ("odd", "cells: must be a list"),
        ([CELLS[0], CELLS[0]], "cells[1].cellID: 0 is there twice"),
        ([{"capacity": {}}], "cells[0].cellID"),
        ([{"cellID": 0, "capacity": {"cpu": "lots"}}], "cells[0].capacity.cpu: is no quantity"),
    ],
)
def test_cells_that_are_needed_and_odd_name_their_field(cells: Any, told: str) -> None:
    body = hypervisor_object(capacity=None, cells=cells)
    with pytest.raises(RegionFileError) as caught:
        read(body)
    assert told in caught.value.message


def test_what_no_column_can_hold_is_malformed() -> None:
    name, told = told_by(hypervisor_object(traits=["A\0B"]))
    assert isinstance(told, Malformed)
    assert (name, "NUL" in told.problem) == ("node001-bb1", True)


@given(body=ANY_JSON)
def test_anything_is_read_or_malformed(body: Any) -> None:
    told_by(body)


@given(field=st.sampled_from(["metadata", "spec", "status"]), part=ANY_JSON)
def test_any_part_is_read_or_malformed(field: str, part: Any) -> None:
    _, told = told_by({**hypervisor_object(), field: part})
    assert isinstance(told, DescribedHost | Malformed)


@given(
    cells=ANY_JSON | st.lists(st.fixed_dictionaries({"cellID": ANY_JSON, "capacity": ANY_JSON})),
    capacity=st.none() | ANY_JSON,
)
def test_what_was_read_can_be_compared_with_fields_of_ours(cells: Any, capacity: Any) -> None:
    body = hypervisor_object(cells=cells, capacity=capacity)
    if not isinstance(told_by(body)[1], Malformed):
        stated_fields(object_node(body))


@pytest.mark.parametrize(
    ("name", "block"), [("node001-bb123", "bb123"), ("node001", ""), ("a-b-c", "b"), ("a-", "")]
)
def test_building_blocks(name: str, block: str) -> None:
    assert building_block(name) == block


@pytest.mark.parametrize(
    ("told", "kind"), [("ch", "CH"), ("kvm", "QEMU"), ("vz", ""), ("", ""), (None, "")]
)
def test_hypervisor_types(told: str | None, kind: str) -> None:
    host = read(hypervisor_object(domainCapabilities={"hypervisorType": told}))
    assert host.hypervisor_type == kind


DONE = condition("Onboarding", "False", "Succeeded")


@pytest.mark.parametrize(
    ("conditions", "maintenance", "expected"),
    [
        pytest.param([condition("Offboarded", "True")], "", "Offboarded", id="1"),
        pytest.param([condition("Terminating", "True")], "", "Terminating", id="2"),
        pytest.param([condition("Onboarding", "True", "Testing")], "", "Onboarding", id="3"),
        pytest.param([DONE, condition("Evicting", "True")], "manual", "Evicting", id="4a"),
        pytest.param([DONE, condition("Evicting", "False")], "auto", "Evicted", id="4b"),
        pytest.param([DONE], "ha", "Maintenance", id="4c"),
        pytest.param([], "", "Onboarding", id="5a"),
        pytest.param([condition("Onboarding", "False", "Aborted")], "", "Onboarding", id="5b"),
        pytest.param([condition("Onboarding", "False", "Handover")], "", "Onboarding", id="5c"),
        pytest.param([DONE], "", "Ready", id="6"),
        pytest.param([DONE, condition("Tainted", "True")], "", "Ready", id="tainted never blocks"),
        pytest.param(
            [condition("Terminating", "True"), condition("Offboarded", "True")],
            "",
            "Offboarded",
            id="1 before 2",
        ),
        pytest.param(
            [condition("Onboarding", "True", "Testing")], "manual", "Onboarding", id="3 before 4"
        ),
        pytest.param([], "manual", "Maintenance", id="4 before 5a"),
        pytest.param(
            [condition("Onboarding", "False", "Aborted")], "auto", "Maintenance", id="4 before 5b"
        ),
    ],
)
def test_readiness(conditions: list[Json], maintenance: str, expected: str) -> None:
    known = {
        one["type"]: Condition(status=one["status"], reason=one["reason"]) for one in conditions
    }
    ready = compute_ready(known, maintenance=maintenance, lifecycle_managed=True)
    assert (ready.reason, ready.is_ready) == (expected, expected == "Ready")


@pytest.mark.parametrize(
    ("conditions", "spec", "expected"),
    [
        ([condition("Ready", "False")], {"lifecycleEnabled": False}, "False"),
        ([], {"lifecycleEnabled": False}, "True"),
        ([condition("Onboarding", "True")], {"lifecycleEnabled": False}, "True"),
        ([condition("Terminating", "True")], {"lifecycleEnabled": False}, "False"),
        ([], {"lifecycleEnabled": False, "maintenance": "auto"}, "False"),
        ([DONE], {}, "Unknown"),
        ([], {}, "False"),
    ],
)
def test_readiness_that_nobody_stated(conditions: list[Json], spec: Json, expected: str) -> None:
    host = read(with_spec(hypervisor_object(conditions=conditions), **spec))
    assert host.conditions["Ready"] == expected
