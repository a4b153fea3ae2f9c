"""The quota filter with the numbers of the quota controller (spec liquid, 14.2 and 14.6)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from capacity.models import FlavorGroupSnapshot
from capacity.nova.scheduling import run_scheduling
from commitments.domain.statuses import ResourceType
from commitments.models import Commitment
from commitments.services.quota_usage import reconcile_full
from hosts.models import Host, Instance
from journal.actors import Actor
from scheduling.intents import CallOptions
from scheduling.request import PlacementRequest
from scheduling.resources import GIB, MIB
from tests.factories import (
    make_assignment,
    make_commitment,
    make_group,
    make_host,
    make_quota,
    make_vm,
)

pytestmark = pytest.mark.django_db

PIPELINE = "kvm-general-purpose-load-balancing"
RAM, CORES, INSTANCES = (f"hw_version_hana_1_{name}" for name in ("ram", "cores", "instances"))
REJECT = "reject"
RECONCILED_AT = datetime(2026, 1, 1, tzinfo=UTC)
READ_ONLY = CallOptions(
    read_only=True,
    skip_history=True,
    skip_inflight=True,
    skip_committed_resource_tracking=True,
)


def verdict(
    *, memory_mib: int = 2048, vcpus: int = 1, count: int = 1, **fields: Any
) -> tuple[str, str]:
    request = PlacementRequest(
        request_key="new-vm",
        memory_bytes=memory_mib * MIB,
        vcpus=vcpus,
        num_instances=count,
        project_id="project-1",
        zone="az-a",
        flavor_name="small",
        extra_specs={"capabilities:hypervisor_type": "qemu", "quota:hw_version": "hana_1"},
        **fields,
    )
    result = run_scheduling(
        request,
        pipeline_name=PIPELINE,
        options=READ_ONLY,
        actor=Actor(name="nova"),
        request_id="req-1",
    )
    (labels,) = (
        event.labels for event in result.decision.events if event.step == "filter_quota_enforcement"
    )
    assert result.decision.ordered_hosts, "shadow mode removes nothing"
    return labels["decision"], labels["resource"]


@pytest.fixture(autouse=True)
def cloud() -> None:
    """A host with one VM of 4 GiB and 16 vCPUs."""
    make_group(flavors=[("small", 2048, 1), ("wide", 4096, 16)])
    host = make_host("h1", memory_gib=512, vcpus=512)
    make_vm("vm-1", host, flavor_name="wide", memory_gib=4, vcpus=16)


def cover_memory(gib: int = 4) -> Commitment:
    """Let a memory commitment cover the VM."""
    row = make_commitment(
        amount_gib=gib,
        used_memory_bytes=4 * GIB,
        used_vcpus=16,
        last_usage_reconcile_at=RECONCILED_AT,
    )
    make_assignment(row, Instance.objects.get(name="vm-1"))
    return row


@pytest.mark.sql("commitments_active")
@pytest.mark.parametrize(
    ("limits", "asked", "decision"),
    [
        pytest.param({CORES: 16}, {}, (REJECT, "cores"), id="cores under a memory commitment"),
        pytest.param({CORES: 17}, {}, ("accept_payg", ""), id="one core is left"),
        pytest.param({INSTANCES: 1}, {}, (REJECT, "instances"), id="instances are never covered"),
        pytest.param({INSTANCES: 2}, {}, ("accept_payg", ""), id="one instance is left"),
        pytest.param({RAM: 5}, {}, (REJECT, "ram"), id="memory: 5 - 4 committed - 0 used"),
        pytest.param({RAM: 6}, {}, ("accept_payg", ""), id="memory: 6 - 4 committed - 0 used"),
        pytest.param({RAM: 6}, {"memory_mib": 2049}, (REJECT, "ram"), id="a started GiB is asked"),
        pytest.param({RAM: 8}, {"count": 2}, ("accept_payg", ""), id="two instances"),
        pytest.param({RAM: 7}, {"count": 2}, (REJECT, "ram"), id="two instances, too many"),
        pytest.param({}, {}, ("accept_payg", ""), id="no entry is no limit"),
        pytest.param({CORES: -1, RAM: -1}, {}, ("accept_payg", ""), id="negative is no limit"),
    ],
)
def test_filter_judges_by_what_the_controller_counts(
    limits: dict[str, int], asked: dict[str, Any], decision: tuple[str, str]
) -> None:
    cover_memory()
    row = make_quota(quota_by_resource={"other": 1} | limits)
    assert verdict(**asked) == decision
    reconcile_full()
    row.refresh_from_db()
    counted = {name: row.payg_usage[name] for name in (RAM, CORES, INSTANCES)}
    assert counted == {RAM: 0, CORES: 16, INSTANCES: 1}
    assert verdict(**asked) == decision


def test_cores_commitments_take_their_used_cores_off() -> None:
    make_commitment(
        requested_amount=10,
        resource_type=ResourceType.CORES,
        used_vcpus=10,
        last_usage_reconcile_at=RECONCILED_AT,
    )
    make_quota(quota_by_resource={CORES: 7})
    assert verdict() == ("accept_payg", "")
    assert verdict(vcpus=2) == (REJECT, "cores")


def test_memory_is_cut_per_vm_as_in_the_rows() -> None:
    """14.2: 8160 MiB count as 7 GiB, here with the VM of 4 GiB: 11."""
    vm = make_vm("odd", Host.objects.get(), memory_gib=0, vcpus=1)
    Instance.objects.filter(pk=vm.pk).update(memory_bytes=8160 * MIB)
    make_quota(quota_by_resource={RAM: 13})
    assert verdict() == ("accept_payg", "")
    assert verdict(memory_mib=2049) == (REJECT, "ram")


def test_any_commitment_with_room_is_enough() -> None:
    cover_memory(gib=6)
    make_quota(quota_by_resource={RAM: 0, CORES: 0, INSTANCES: 0})
    assert verdict() == ("accept_cr", "")
    assert verdict(memory_mib=2049) == (REJECT, "ram")


def test_what_was_accepted_counts_and_not_what_is_wanted() -> None:
    row = cover_memory(gib=6)
    Commitment.objects.filter(pk=row.pk).update(requested_amount=64 * GIB)
    make_quota(quota_by_resource={RAM: 0})
    assert verdict() == ("accept_cr", "")
    assert verdict(memory_mib=4096) == (REJECT, "ram")


def test_no_row_lets_pass() -> None:
    make_quota(zone="az-b")
    assert verdict() == ("accept_no_quota", "")


def test_groups_that_are_not_ready_stop_no_request() -> None:
    make_quota(quota_by_resource={CORES: 16})
    FlavorGroupSnapshot.objects.update(is_ready=False)
    assert verdict() == (REJECT, "cores")
