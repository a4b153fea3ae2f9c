from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from capacity.metrics.reservations import RESERVATIONS
from capacity.models import Reservation, ReservationKind
from journal.metrics import metric_name
from scheduling.resources import GIB
from tests.factories import (
    make_allocation,
    make_commitment,
    make_group,
    make_host,
    make_reservation,
    make_slot,
    make_vm,
)

pytestmark = pytest.mark.django_db


def samples(suffix: str, **labels: str) -> list[tuple[Mapping[str, str], float]]:
    return [
        (sample.labels, sample.value)
        for family in RESERVATIONS.collect()
        for sample in family.samples
        if family.name == metric_name(suffix)
        and all(sample.labels[name] == wanted for name, wanted in labels.items())
    ]


def figure(suffix: str, **labels: str) -> float:
    found = samples(suffix, **labels)
    assert len(found) == 1, found
    return found[0][1]


@pytest.mark.parametrize(
    ("is_ready", "reason", "status", "error"),
    [
        pytest.param(True, "ReservationActive", "True", "", id="ready"),
        pytest.param(None, "", "Unknown", "", id="no condition"),
        pytest.param(False, "NoHostsFound", "False", "NoHostsFound", id="not ready"),
    ],
)
def test_reservations_are_counted_by_readiness_and_reason(
    is_ready: bool | None, reason: str, status: str, error: str
) -> None:
    """The reason, since messages differ from slot to slot (spec commitments, 20.1, B 20)."""
    host = make_host()
    for message in ("3 of 7 hosts are full", "no host, no hope"):
        make_reservation(host, is_ready=is_ready, ready_reason=reason, ready_message=message)

    assert figure("reservations", status_ready=status, status_error=error) == 2
    memory = figure(
        "reservations_allocated_resources",
        status_ready=status,
        status_error=error,
        host="h1",
        resource="memory",
    )
    assert memory == 2 * Reservation.objects.values_list("memory_bytes", flat=True)[0]


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        (ReservationKind.COMMITTED, "CommittedResourceReservation"),
        (ReservationKind.FAILOVER, "FailoverReservation"),
        (ReservationKind.IN_FLIGHT, "InFlightReservation"),
    ],
)
def test_state_has_the_kinds_of_the_reference(kind: str, label: str) -> None:
    host = make_host()
    if kind == ReservationKind.COMMITTED:
        make_group()
        make_slot(make_commitment(), host)
    elif kind == ReservationKind.FAILOVER:
        make_reservation(host)
    else:
        end = timezone.now() + timedelta(minutes=15)
        flying: dict[str, Any] = {"vm_uuid": str(uuid4()), "end_time": end, "placement_id": uuid4()}
        make_reservation(host, kind=kind, **flying)
    assert figure("reservation_state", type=label, state="ready") == 1


def test_amounts_are_summed_by_host_and_vanish_with_the_rows() -> None:
    host = make_host()
    make_reservation(host, memory_gib=4, vcpus=1)
    make_reservation(host, memory_gib=8, vcpus=2)
    suffix = "reservations_allocated_resources"

    assert figure(suffix, host="h1", resource="memory") == 12 * GIB
    assert figure(suffix, host="h1", resource="cpu") == 3
    Reservation.objects.all().delete()
    assert samples(suffix) == []


def test_host_is_divided_into_what_fills_it() -> None:
    host = make_host(memory_gib=64, vcpus=32, building_block="bb1")
    make_group()
    slot = make_slot(make_commitment(), host, memory_gib=16, vcpus=4)
    make_allocation(slot, make_vm(host=host, memory_gib=4, vcpus=1))
    make_vm(host=host, memory_gib=8, vcpus=2)
    make_reservation(host, memory_gib=8, vcpus=2)
    make_reservation(host, memory_gib=2, vcpus=1, is_ready=False)
    suffix = "kvm_host_capacity_usage"

    assert {
        kind: figure(suffix, compute_host="h1", resource="ram", type=kind) / GIB
        for kind in ("utilized", "reserved", "failover", "available")
    } == {"utilized": 12, "reserved": 12, "failover": 8, "available": 32}
    assert figure(suffix, compute_host="h1", resource="cpu", type="available") == 32 - 3 - 3 - 2
    assert figure("kvm_host_capacity_total", compute_host="h1", resource="ram") == 64 * GIB
    labels = samples("kvm_host_capacity_total", resource="ram")[0][0]
    assert (labels["building_block"], labels["availability_zone"]) == ("bb1", "az-a")


def test_overfull_host_has_nothing_available() -> None:
    host = make_host(memory_gib=8)
    make_vm(host=host, memory_gib=16)

    assert figure("kvm_host_capacity_usage", resource="ram", type="available") == 0


def test_slot_whose_vms_outgrew_it_reserves_nothing() -> None:
    host = make_host()
    make_group()
    slot = make_slot(make_commitment(), host, memory_gib=4)
    make_allocation(slot, make_vm(host=host, memory_gib=8))

    assert figure("kvm_host_capacity_usage", resource="ram", type="reserved") == 0


@pytest.mark.parametrize(
    ("traits", "label", "expected"),
    [
        pytest.param([], "workload_type", "general-purpose", id="general purpose"),
        pytest.param(["CUSTOM_HANA_EXCLUSIVE_HOST"], "workload_type", "hana", id="HANA"),
        pytest.param([], "cpu_architecture", "cascade-lake", id="default architecture"),
        pytest.param(
            ["CUSTOM_HW_SAPPHIRE_RAPIDS"], "cpu_architecture", "sapphire-rapids", id="newer"
        ),
        pytest.param(["CUSTOM_DECOMMISSIONING"], "decommissioned", "true", id="decommissioned"),
        pytest.param(
            ["CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE"], "external_customer", "true", id="external"
        ),
    ],
)
def test_labels_follow_traits(traits: list[str], label: str, expected: str) -> None:
    make_host(custom_traits=traits)

    assert samples("kvm_host_capacity_total", resource="cpu")[0][0][label] == expected


def test_hosts_tell_the_version_of_their_system() -> None:
    make_host(os_version="1877.5")

    assert samples("kvm_host_capacity_total", resource="cpu", os_version="1877.5")


def test_host_without_capacity_is_skipped() -> None:
    make_host(
        memory_gib=0,
        total_memory_bytes=0,
        effective_memory_bytes=0,
        effective_vcpus=0,
        total_vcpus=0,
    )

    assert samples("kvm_host_capacity_total") == []
