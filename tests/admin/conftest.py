from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from django.db import transaction
from django.utils import timezone

from bridge.models import MirrorState, OwnedFieldConflict
from capacity.models import FlavorGroupRule, ReservationKind
from commitments.domain.statuses import CommitmentStatus
from commitments.models import (
    CompactionRun,
    Condition,
    RefusedChange,
    ServiceInfoVersion,
    SlotCheck,
    SyncRun,
    UsageCheck,
)
from failover.drill_models import (
    CoverageAccount,
    EvacuationMove,
    EvacuationPlan,
    FailureDrill,
    ShadowPlan,
)
from failover.models import (
    FailoverDecision,
    FailoverEvent,
    FailoverPolicy,
    FailoverReservation,
    FailoverRun,
    FailoverZone,
)
from hosts.agents.models import EnrolmentToken, HostAgent, HostKey, HostLease
from hosts.agents.rollout_models import AgentRollout
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.models import (
    Aggregate,
    Eviction,
    FeedPass,
    Host,
    HostLifecycle,
    Image,
    Instance,
    OvercommitRule,
    PlannedHostChange,
    Region,
    ServerGroup,
    ServerMigration,
)
from journal.actors import Actor
from journal.models import (
    BeatEntry,
    CheckFinding,
    Heartbeat,
    Lease,
    LogConsumer,
    ProcessClock,
)
from journal.services import Change, record_changes
from placement.models import CheckOutcome, HybridReport, ShadowDifference, SplitWrite
from tests import factories
from tests.capacity.decision_records import store_decision
from tests.kept_rows import KeptRows
from tests.placement.rows import grow_providers
from webhooks.models import Delivery, Endpoint

DECISION = {
    "pipeline": "slots",
    "candidates_in": 24,
    "removals": [{"step": "capacity", "removed": 18, "remaining": 6}],
    "host": "h1",
    "top": [
        {"host": "h1", "score": 0.9, "contributions": {"bin_packing": 0.9}},
        {"host": "h2", "score": 0.8, "contributions": {"bin_packing": 0.8}},
    ],
    "closest": None,
}
NUMBERS = itertools.count(1)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
"""Before every history that a page reads: how much is read of it depends on how much there is."""


def grow_region(count: int) -> None:
    """Add ``count`` of everything that lists show, with VMs in slots on hosts."""
    now = timezone.now()
    for _ in range(count):
        number = next(NUMBERS)
        project = factories.make_project(f"project-{number}")
        host = factories.make_host(f"grown-{number}", traits=["CUSTOM_X"])
        factories.make_group(f"group_{number}", flavors=[(f"f{number}", 4096, 1)])
        commitment = factories.make_commitment(
            project_id=project.openstack_id, end_time=now + timedelta(days=9)
        )
        slot = factories.make_slot(commitment, host, decision=DECISION)
        vm = factories.make_vm(host=host, slot=slot, project_id=project.openstack_id)
        factories.make_assignment(commitment, vm)
        factories.make_event(commitment, after=commitment.accepted_spec, explanation=DECISION)
        factories.make_commitment(
            state=CommitmentStatus.PENDING,
            ready_status=False,
            ready_reason=Condition.RESERVING,
            ready_message="no host has room",
            next_reconcile_at=now + timedelta(minutes=5),
        )
        factories.make_group_capacity(f"group_{number}")
        factories.make_capacity_history(group_name=f"group_{number}", at=now)
        factories.make_host_history(host.name, day=now.date())
        factories.make_commitment_hour(commitment, at=LONG_AGO + timedelta(hours=number))
        factories.make_quota(project.openstack_id)
        store_decision(vm_uuid=vm.openstack_id)
        make_failover_rows(number, host, vm)
        FlavorGroupRule.objects.create(group_name="x", flavor_pattern=f"x{number}*")
        Aggregate.objects.create(
            uuid=f"aggregate-{number}", name="az", metadata={"availability_zone": "az-a"},
            host_names=[host.name],
        )  # fmt: skip
        Image.objects.create(openstack_id=f"image-{number}")
        ServerGroup.objects.create(openstack_id=f"sg-{number}", members=[vm.openstack_id])
        SyncRun.objects.create(started_at=now, finished_at=now, source="import", outcome="done")
        CompactionRun.objects.create(
            zone="az-a", started_at=now, finished_at=now, outcome="limited", hosts_planned=3,
            hosts_freed=2, slots_moved=9, counts={"vms": 4},
        )  # fmt: skip
        RefusedChange.objects.create(
            request_id=f"req-{number}", actor="limes", zone="az-a", reason="no room",
            asked=[{"commitment": f"c-{number}", "project": "p", "resource": "r",
                    "old_status": None, "new_status": "confirmed", "amount_units": 3}],
            refused=[{"commitment": f"c-{number}", "message": "no room", "advice": ""}],
        )  # fmt: skip
        record = Change(
            action="commitment_accepted", object_type="Commitment",
            object_id=commitment.commitment_uuid, after={"amount": 1}, topic="commitment",
        )  # fmt: skip
        grow_providers(f"grown-{number}", consumer_uuid=UUID(int=number))
        with transaction.atomic():
            record_changes([record], actor=Actor(name="limes"), request_id=f"req-{number}")


def make_failover_rows(number: int, host: Host, vm: Instance) -> None:
    """Make one of each row of drills, evacuations, coverage and the loop."""
    now = timezone.now()
    zone = f"zone-{number}"
    worst = {
        "name": host.name, "affected_vms": 3, "protected_vms": 1, "unprotected_vms": 2,
        "reasons": {"no_slots": 2}, "vms": [vm.openstack_id],
    }  # fmt: skip
    FailureDrill.objects.create(
        zone=zone, scope="host", started_at=now, finished_at=now, cases=9, simulated=4, vms=3,
        unprotected_vms=2, worst=[worst], hosts=[[host.name, "bb1", 3, 2, 1, 4]],
    )  # fmt: skip
    CoverageAccount.objects.create(
        zone=zone, accounted_at=now, owed_vms=3, uncovered_vms=2, owed_vm_seconds=1000,
        uncovered_vm_seconds=1, bounded_at=now,
    )  # fmt: skip
    plan = EvacuationPlan.objects.create(
        zone=zone, started_at=now, changed_at=now, failed_hosts=[host.name]
    )
    EvacuationMove.objects.create(
        plan=plan, vm_uuid=vm.openstack_id, state="planned", from_host=host, target_host=host,
        changed_at=now,
    )  # fmt: skip
    ShadowDifference.objects.create(
        request_id=f"req-{number}", query="resources=VCPU:1", minor=36,
        reason="other candidates", sample={"ours": [], "theirs": []},
    )  # fmt: skip
    HybridReport.objects.create(
        seconds=1.5, providers_there=1000, split_consumers=number, counts={"trait": 1, "owner": 0},
        findings=[{"kind": "trait", "subject": "CUSTOM_A", "detail": "unknown there"}],
    )  # fmt: skip
    CheckOutcome.objects.create(test=f"usages-{number}", mode="hybrid", outcome="passed")
    SplitWrite.objects.create(
        ends_at=now, request_id=f"req-{number}", actor="nova", minor=36, before={}, after={},
        theirs={}, body={}, consumers=[], error="it answered 503",
    )  # fmt: skip
    ShadowPlan.objects.create(
        zone=zone, state="proposed", computed_at=now, reserved_memory_bytes=9, shadow_memory_bytes=4
    )
    slot = factories.make_reservation(factories.make_host(f"spare-{number}"))
    factories.make_allocation(slot, vm)
    FailoverReservation.objects.create(reservation=slot, name=f"failover-{number}")
    FailoverPolicy.objects.create(flavor_pattern=f"f{number}*", required_count=2)
    FailoverZone.objects.create(zone=zone, brake_reason="vm_list_empty", braked_at=now)
    run = FailoverRun.objects.create(
        zone=zone, started_at=now, finished_at=now, outcome="done", counts={"created": 1}
    )
    FailoverDecision.objects.create(
        vm_uuid=vm.openstack_id, zone=zone, run=run, required_count=2, current_count=1, since=now
    )
    FailoverEvent.objects.create(
        happened_at=now, reason="CoverageLost", is_warning=True, zone=zone,
        vm_uuid=vm.openstack_id, host_name=host.name,
    )  # fmt: skip


_kept: dict[str, KeptRows] = {}


@pytest.fixture
def region(db: None, request: pytest.FixtureRequest) -> None:
    """A row of everything; made by the first test of a module, copied for its others."""
    module = request.module.__name__
    if module in _kept:
        _kept[module].put()
        return
    _kept.clear()  # its times are of another hour
    made = KeptRows.made_by(make_one_of_each)
    if made.may_be_put:
        _kept[module] = made


def make_one_of_each() -> None:
    factories.make_domain()
    factories.make_group_settings("*")
    grow_region(2)
    host = factories.make_host("failover-host")
    factories.make_reservation(host, kind=ReservationKind.FAILOVER)
    PlannedHostChange.objects.create(edit="drain", at=timezone.now(), host=host)
    OvercommitRule.objects.create(position=1, has_trait="CUSTOM_FAST", cpu_ratio=Decimal(4))
    AgentRollout.objects.create(version="1.0.0", reason="new", opened_by="ann")
    HostLifecycle.objects.create(
        host_name=host.name, kind="in", phase="testing", reason="new", opened_by="ann"
    )
    Eviction.objects.create(host=host, reason="new disks", opened_by="ann", outstanding_vms=1)
    factories.make_vm("unplaced", None, status="ERROR")
    for state in list(CommitmentStatus):
        factories.make_commitment(state=state, is_accepted=False)
    token = EnrolmentToken.objects.create(
        token_sha256="0" * 64,
        name_glob="failover-*",
        expires_at=timezone.now(),
        uses_left=1,
        created_by="ann",
    )
    agent = HostAgent.objects.create(
        host_name=host.name,
        report={"cpu": {"capacity": 4}},
        reported_at=timezone.now(),
        generated_at=timezone.now(),
    )
    HostKey.objects.create(agent=agent, kid="Vkdap1RjR0wChd9d", public_key=b"k" * 32, token=token)
    HostLease.objects.create(agent=agent)
    asked = Workload.objects.create(
        agent=agent,
        gwid="1-1",
        owner_kind="slot",
        owner_id="1",
        type="accounting",
        seq=1,
        fence_epoch=1,
    )
    WorkloadResult.objects.create(
        workload=asked, attempt=1, kind="result", state="ok", document={}, signature=b""
    )
    Region.objects.create(name="test")
    ServiceInfoVersion.objects.create(content_hash="x", version=3)
    SlotCheck.objects.create(zone="az-a", is_refused=True, message="the VM list shrank")
    UsageCheck.objects.create(snapshot="1:1:", group_fingerprint="x", checked_at=timezone.now())
    Heartbeat.objects.create(name="beat", beaten_at=timezone.now())
    FeedPass.objects.create(kind="servers", passes=3, listed_at=timezone.now(), failures=1)
    ServerMigration.objects.create(
        uuid="m", vm_uuid="v", migration_type="resize", status="finished"
    )
    mirrored = factories.make_commitment()
    MirrorState.objects.create(kind="CommittedResource", source_id=mirrored.pk, name="mirrored")
    OwnedFieldConflict.objects.create(host_name="node1", field="overcommit", problem="theirs")
    LogConsumer.objects.create(name="bridge")
    told = Endpoint.objects.create(name="one", url="https://one.example/", secret_name="one")
    Delivery.objects.create(
        endpoint=told,
        event_id=1,
        topic="t",
        object_type="Thing",
        object_id="a",
        payload={"n": 1},
        occurred_at=timezone.now(),
    )
    CheckFinding.objects.create(
        check_name="broker",
        severity="error",
        found="ConnectionError",
        todo="see to REDIS_URL",
        looked_at=timezone.now(),
    )
    ProcessClock.objects.create(
        process="celery@worker", deviation_seconds=0.25, looked_at=timezone.now()
    )
    BeatEntry.objects.create(entry="heartbeat", last_run_at=timezone.now(), epoch=1)
    now = timezone.now()
    Lease.objects.create(
        name="beat", holder="host:1", epoch=1, taken_at=now, renewed_at=now, expires_at=now
    )
