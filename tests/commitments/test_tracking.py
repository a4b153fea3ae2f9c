from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone
from prometheus_client import REGISTRY

from capacity.models import (
    AllocationState,
    HostCapacity,
    Reservation,
    ReservationAllocation,
    ReservationKind,
    SchedulingDecision,
)
from capacity.nova.scheduling import SchedulingResult, run_scheduling
from commitments.domain.statuses import CommitmentStatus, ResourceType
from journal.actors import Actor
from scheduling.intents import CallOptions, Intent
from scheduling.request import PlacementRequest
from scheduling.resources import GIB
from tests.factories import (
    make_assignment,
    make_commitment,
    make_group,
    make_host,
    make_quota,
    make_slot,
    make_vm,
)

pytestmark = pytest.mark.django_db
PIPELINE = "kvm-general-purpose-load-balancing"
VM = "11111111-2222-4333-8444-555555555555"


@pytest.fixture(autouse=True)
def _tracking(settings: Any) -> None:
    switch(settings, committed_resource_tracking=True)


def switch(settings: Any, **fields: Any) -> None:
    current = settings.HEADROOM
    scheduler = current.scheduler.model_copy(update=fields)
    settings.HEADROOM = current.model_copy(update={"scheduler": scheduler})


def place(
    *, vm_uuid: str = VM, options: CallOptions | None = None, memory_gib: int = 4, **fields: Any
) -> SchedulingResult:
    fields.setdefault("flavor_name", "small")
    request = PlacementRequest(
        request_key=vm_uuid,
        memory_bytes=memory_gib * GIB,
        vcpus=1,
        project_id=fields.pop("project_id", "project-1"),
        extra_specs=fields.pop("extra_specs", {"capabilities:hypervisor_type": "qemu"}),
        **fields,
    )
    return run_scheduling(
        request,
        pipeline_name=PIPELINE,
        options=options or CallOptions(max_candidates=3),
        actor=Actor(name="nova"),
        request_id="req-1",
    )


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"cortex_nova_{name}_total", labels) or 0.0


def listed(vm_uuid: str = VM) -> list[tuple[str, str]]:
    rows = ReservationAllocation.objects.filter(vm_uuid=vm_uuid)
    return sorted(rows.values_list("reservation__target_host__name", "state"))


def test_a_placed_vm_goes_into_a_slot_of_its_project_on_the_target() -> None:
    make_group()
    slot = make_slot(make_commitment(), make_host("h1"))
    before = counted("placement", flavor_group="hana_1", intent="create", cr_slot="slot_used")
    result = place()
    assert result.outcome_class == "slot_used"
    assert result.flavor_group == "hana_1"
    allocation = ReservationAllocation.objects.get()
    assert (allocation.reservation_id, allocation.vm_uuid) == (slot.pk, VM)
    assert allocation.state == AllocationState.EXPECTED
    assert (allocation.memory_bytes, allocation.vcpus) == (4 * GIB, 1)
    after = counted("placement", flavor_group="hana_1", intent="create", cr_slot="slot_used")
    assert after == before + 1


def test_a_vm_expected_in_its_slot_and_held_in_flight_is_counted_once() -> None:
    make_group()
    host = make_host("h1", memory_gib=16)
    make_slot(make_commitment(), host, memory_gib=8, vcpus=2)
    place()
    room = HostCapacity.objects.get(host=host)
    assert room.in_flight_memory_bytes == 4 * GIB
    assert room.committed_memory_bytes == 8 * GIB


def test_one_vm_of_a_request_for_several_takes_its_own_size_of_the_slot() -> None:
    make_group()
    host = make_host("h1", memory_gib=16)
    slot = make_slot(make_commitment(), host, memory_gib=8, vcpus=2)
    place(num_instances=3, intent=Intent.CREATE)
    allocation = ReservationAllocation.objects.get()
    assert (allocation.memory_bytes, allocation.vcpus) == (4 * GIB, 1)
    room = HostCapacity.objects.get(host=host)
    assert room.in_flight_memory_bytes == 3 * 4 * GIB
    place(vm_uuid="another", options=CallOptions(skip_inflight=True))
    assert set(slot.allocations.values_list("vm_uuid", flat=True)) == {VM, "another"}


def test_a_refusal_of_several_vms_looks_for_a_slot_with_room_for_one() -> None:
    make_group()
    host = make_host("h1", memory_gib=16)
    slot = make_slot(make_commitment(), host, memory_gib=8, vcpus=2)
    make_vm(host=host, slot=slot, memory_gib=6)
    refused = place(force_hosts=frozenset(), num_instances=3, intent=Intent.CREATE)
    assert refused.outcome_class == "slot_blocked"


def test_repeating_a_placement_leaves_the_vm_where_it_is() -> None:
    make_group()
    make_slot(make_commitment(), make_host("h1"))
    place()
    first = ReservationAllocation.objects.get()
    assert place().outcome_class == "slot_used"
    assert ReservationAllocation.objects.get() == first


def test_a_vm_placed_again_elsewhere_is_expected_there_alone() -> None:
    make_group()
    commitment = make_commitment()
    make_slot(commitment, make_host("h1"))
    place()
    make_slot(commitment, make_host("h2"))
    place(ignore_hosts=frozenset({"h1"}))
    assert listed() == [("h2", "expected")]


def test_a_vm_that_moves_keeps_the_slot_it_was_seen_in_until_it_arrives() -> None:
    make_group()
    commitment = make_commitment()
    host = make_host("h1")
    make_vm(host=host, slot=make_slot(commitment, host), openstack_id=VM)
    make_slot(commitment, make_host("h2"))
    place(intent=Intent.LIVE_MIGRATION, ignore_hosts=frozenset({"h1"}))
    assert listed() == [("h1", "confirmed"), ("h2", "expected")]


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        ("no commitment", "no_cr"),
        ("commitment pending", "no_cr"),
        ("commitment used up", "no_cr"),
        ("commitment of cores", "no_cr"),
        ("commitment of another zone", "no_cr"),
        ("slot full", "slot_missed"),
        ("no slot", "slot_missed"),
        ("slot not ready", "slot_missed"),
        ("slot of another project", "slot_missed"),
    ],
)
def test_a_placement_without_a_slot_writes_nothing(case: str, outcome: str) -> None:
    make_group()
    host = make_host("h1")
    cases: dict[str, dict[str, Any]] = {
        "commitment pending": {"state": CommitmentStatus.PENDING},
        "commitment used up": {"used_memory_bytes": 16 * GIB},
        "commitment of cores": {"resource_type": ResourceType.CORES, "requested_amount": 4},
        "commitment of another zone": {"zone": "az-b"},
    }
    if case != "no commitment":
        commitment = make_commitment(**cases.get(case, {}))
        if case == "slot of another project":
            make_slot(make_commitment(project_id="project-2"), host)
        elif case == "slot not ready":
            make_slot(commitment, host, is_ready=False)
        elif case != "no slot":
            slot = make_slot(commitment, host)
            if case == "slot full":
                make_vm(host=host, slot=slot)
    result = place(zone="az-a")
    assert result.host_names == ("h1",)
    assert result.outcome_class == outcome
    assert listed() == []


def test_a_flavor_in_no_group_is_pay_as_you_go() -> None:
    make_group()
    make_slot(make_commitment(), make_host("h1"))
    result = place(flavor_name="unknown")
    assert (result.outcome_class, result.flavor_group) == ("", "")
    assert listed() == []


def test_a_slot_without_free_cpu_takes_a_vm_that_its_memory_holds() -> None:
    make_group()
    host = make_host("h1")
    slot = make_slot(make_commitment(), host, memory_gib=8, vcpus=1)
    make_vm(host=host, slot=slot, memory_gib=4, vcpus=1)
    assert place().outcome_class == "slot_used"
    assert listed() == [("h1", "expected")]


def test_a_refusal_of_a_flavor_in_no_group_is_not_counted() -> None:
    make_group()
    make_commitment()
    make_host("h1")
    result = place(flavor_name="unknown", force_hosts=frozenset())
    assert (result.host_names, result.outcome_class, result.flavor_group) == ((), "", "")


def test_a_refusal_without_group_knowledge_is_an_error() -> None:
    make_host("h1")
    labels = {"flavor_group": "unknown", "intent": "create", "cr_slot": "error"}
    before = counted("no_host_found", **labels)
    assert place(force_hosts=frozenset()).outcome_class == "error"
    assert counted("no_host_found", **labels) == before + 1


def test_the_group_may_be_told_by_its_alias() -> None:
    make_group()
    make_slot(make_commitment(), make_host("h1"))
    specs = {"capabilities:hypervisor_type": "qemu", "quota:hw_version": "hana_1"}
    assert place(flavor_name="unknown", extra_specs=specs).outcome_class == "slot_used"


def test_missing_group_knowledge_is_an_error_and_the_vm_is_placed() -> None:
    make_host("h1")
    before = counted("placement", flavor_group="unknown", intent="create", cr_slot="error")
    result = place()
    assert result.host_names == ("h1",)
    assert result.outcome_class == "error"
    after = counted("placement", flavor_group="unknown", intent="create", cr_slot="error")
    assert after == before + 1


def test_a_failure_of_tracking_never_fails_the_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    make_group()
    make_slot(make_commitment(), make_host("h1"))

    def broken(*_: Any, **__: Any) -> None:
        ReservationAllocation.objects.raw("SELECT no_such_column")[0]

    monkeypatch.setattr("commitments.hooks_tracking.expect_in_slots", broken)
    result = place()
    assert result.host_names == ("h1",)
    assert result.outcome_class == "error"
    assert Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT).count() == 1


def test_the_skip_option_and_the_switch_write_nothing(settings: Any) -> None:
    make_group()
    make_slot(make_commitment(), make_host("h1"))
    options = CallOptions(max_candidates=3, skip_committed_resource_tracking=True)
    assert place(options=options).outcome_class == ""
    switch(settings, committed_resource_tracking=False)
    assert place().outcome_class == ""
    assert listed() == []


def test_a_vm_without_in_flight_rows_is_booked_too() -> None:
    make_group()
    slot = make_slot(make_commitment(), make_host("h1"))
    place(options=CallOptions(skip_inflight=True))
    assert ReservationAllocation.objects.get().reservation_id == slot.pk
    assert not Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT).exists()


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        ("no commitment", "no_cr"),
        ("pending only", "no_cr"),
        ("used up", "cr_exhausted"),
        ("slot fully allocated", "slot_exhausted"),
        ("no slot", "slot_exhausted"),
        ("slot of another project", "slot_exhausted"),
        ("slot free", "slot_blocked"),
        ("slot partly used", "slot_blocked"),
    ],
)
def test_a_refusal_tells_why_the_commitment_did_not_help(case: str, outcome: str) -> None:
    make_group()
    host = make_host("h1", memory_gib=16)
    state = CommitmentStatus.PENDING if case == "pending only" else CommitmentStatus.CONFIRMED
    used = 16 * GIB if case == "used up" else 0
    if case != "no commitment":
        commitment = make_commitment(state=state, used_memory_bytes=used)
        if case == "slot of another project":
            make_slot(make_commitment(project_id="project-2"), host)
        elif case != "no slot":
            slot = make_slot(commitment, host, memory_gib=8, vcpus=2)
            taken = {"slot fully allocated": 8, "slot partly used": 6}.get(case)
            if taken:
                make_vm(host=host, slot=slot, memory_gib=taken)
    labels = {"flavor_group": "hana_1", "intent": "create", "cr_slot": outcome}
    before = counted("no_host_found", **labels)
    result = place(force_hosts=frozenset())
    assert result.host_names == ()
    assert result.outcome_class == outcome
    assert counted("no_host_found", **labels) == before + 1


def test_refusals_of_internal_runs_are_not_counted() -> None:
    make_group()
    make_host("h1")
    intents = (Intent.CAPACITY_PROBE, Intent.RESERVE_FOR_COMMITTED_RESOURCE)
    for intent in intents:
        assert place(force_hosts=frozenset(), intent=intent).outcome_class == ""
    read_only = CallOptions(
        read_only=True,
        skip_history=True,
        skip_inflight=True,
        skip_committed_resource_tracking=True,
    )
    assert place(force_hosts=frozenset(), options=read_only).outcome_class == ""


@pytest.mark.django_db(transaction=True)
def test_the_class_is_kept_on_the_decision() -> None:
    make_group()
    make_host("h1")
    make_commitment(used_memory_bytes=16 * GIB)
    place(force_hosts=frozenset())
    decision = SchedulingDecision.objects.get()
    assert (decision.outcome_class, decision.flavor_group_name) == ("cr_exhausted", "hana_1")
    assert not decision.is_successful


def verdict(zone: str = "az-a", memory_gib: int = 4) -> tuple[str, str]:
    result = place(zone=zone, memory_gib=memory_gib)
    labels = [
        event.labels for event in result.decision.events if event.step == "filter_quota_enforcement"
    ]
    assert len(labels) == 1
    return labels[0]["decision"], labels[0]["resource"]


def test_quota_is_judged_by_the_projects_commitments_and_usage() -> None:
    make_group()
    host = make_host("h1")
    assert verdict(zone="") == ("accept_skipped_missing_data", "")
    assert verdict() == ("accept_no_quota", "")
    vm = make_vm(host=host)
    make_quota(quota_by_resource={"hw_version_hana_1_ram": 7})
    assert verdict() == ("reject", "ram")
    commitment = make_commitment(
        amount_gib=4, used_memory_bytes=4 * GIB, last_usage_reconcile_at=timezone.now()
    )
    make_assignment(commitment, vm)
    assert verdict(memory_gib=2) == ("accept_payg", "")
    make_commitment(amount_gib=8)
    assert verdict(memory_gib=8) == ("accept_cr", "")
