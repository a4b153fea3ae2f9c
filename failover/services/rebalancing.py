"""Shadow plans and carrying them out, make before break (spec failover, 17.4).

A plan is carried out in single steps, one VM and one transaction each, as far as the rules allow
the states in between. In a small or crowded zone they hardly do; then all memberships are exchanged
in one transaction, after room for every new slot was taken beside that of the old ones. Either way
nobody ever sees a VM with fewer slots than it had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

import numpy as np
import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction

from capacity.locks import zone_lock
from capacity.models import Reservation, ReservationAllocation, ReservationKind
from capacity.selectors.host_table import current_host_table
from failover.domain.covering import plan_cover
from failover.domain.drill_columns import best_bound, coverage_costs, drill_state_of
from failover.domain.drill_state import DrillState
from failover.domain.plan import CleaningPlan, HostChooser, PlanOptions, ReuseOrder
from failover.domain.rebalance import RebalancePlan, RebalanceStep, TargetSlot, plan_rebalance
from failover.domain.shadow import bare_zone, zone_after
from failover.domain.zone_columns import ZoneSnapshot
from failover.drill_models import ShadowPlan, ShadowState
from failover.selectors.drills import zone_snapshot
from failover.selectors.scheduler import SchedulerHosts
from failover.selectors.zone import failover_zones
from failover.services.writing import (
    SlotToWrite,
    UserToWrite,
    delete_unused,
    delete_users,
    take_room,
    touch,
    write_slots,
    write_users,
)
from hosts.models import Host, Instance
from journal.actors import Actor
from journal.errors import Busy, HeadroomError
from journal.services import Change, record_changes
from scheduling.resources import ResourceVector
from scheduling.table import HostTable

log = structlog.get_logger(__name__)

MOST_SWAPPED: Final = 20_000
KEPT: Final = timedelta(days=90)
LIVE_STATES: Final = (ShadowState.PROPOSED, ShadowState.RUNNING)

Choosers = Callable[[ZoneSnapshot], HostChooser]


class NoShadowPlan(HeadroomError):  # noqa: N818 - a state of the zone, not a defect
    """The zone has no shadow plan that is worth carrying out."""

    code = "no_shadow_plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalancing:
    """What was done, or would be.

    Attributes:
        zone: Where.
        reserved_before: Memory of the slots before, in bytes.
        reserved_after: Memory of the slots after.
        steps: Steps that were planned.
        done: Steps that were carried out; for an exchange, memberships.
        refused: Steps that others got in the way of.
        blocked: Memberships of the plan that single steps cannot reach.
        is_exchange: Whether all memberships are exchanged at once.
        plan: The single steps, empty for an exchange.
    """

    zone: str
    reserved_before: int
    reserved_after: int
    steps: int
    done: int = 0
    refused: int = 0
    blocked: int = 0
    is_exchange: bool = False
    plan: tuple[RebalanceStep, ...] = field(default=(), repr=False)


class HostsWithoutSlots(SchedulerHosts):
    """What the scheduler would say if the zone had no failover slots."""

    @cached_property
    def table(self) -> HostTable:
        """Hosts of all zones; those of the zone without failover blocks."""
        table = current_host_table()
        rows = [table.row_of[name] for name in self.snapshot.hosts.names if name in table.row_of]
        nothing = np.zeros(len(rows), dtype=np.int64)
        return table.replace_columns(
            rows, {"failover_memory_bytes": nothing, "failover_vcpus": nothing}
        )


def compute_shadow_plan(
    zone: str,
    *,
    request_id: str,
    now: datetime,
    choosers: Choosers = HostsWithoutSlots,
) -> ShadowPlan:
    """Plan a zone from scratch and store the plan with what it would save.

    It is proposed when it covers every VM at least as well and saves more than the threshold; else
    it is kept for the record. An older plan becomes obsolete.

    Args:
        zone: The zone.
        request_id: Correlation id.
        now: The present.
        choosers: What the scheduler says about hosts of a zone without slots.
    """
    chosen = settings.HEADROOM.failover
    snapshot = zone_snapshot(zone, now=now)
    bare = bare_zone(snapshot)
    options = PlanOptions(
        reuse_order=ReuseOrder(chosen.reuse_order),
        max_users=chosen.max_users_per_reservation,
        consolidate=chosen.consolidate,
    )
    shadow = zone_after(bare, plan_cover(bare, CleaningPlan(), choosers(bare), options))
    cost, costs = coverage_costs(shadow)[0], coverage_costs(snapshot)
    before = int(snapshot.slots.memory_bytes.sum())
    after = cost.reserved_memory_bytes or 0
    is_worth = _covers_as_well(snapshot, shadow) and (
        before - after > chosen.rebalance_threshold_ratio * before
    )
    row = ShadowPlan(
        zone=zone,
        state=ShadowState.PROPOSED if is_worth else ShadowState.NOT_WORTH,
        computed_at=now,
        request_id=request_id,
        reserved_memory_bytes=before,
        shadow_memory_bytes=after,
        lower_bound_bytes=best_bound(costs),
        vm_memory_bytes=cost.vm_memory_bytes,
        slots=_stored(shadow) if is_worth else [],
    )
    with transaction.atomic(durable=True):
        zone_lock([zone])
        ShadowPlan.objects.filter(zone=zone, state__in=LIVE_STATES).update(
            state=ShadowState.OBSOLETE, slots=[]
        )
        ShadowPlan.objects.filter(zone=zone, computed_at__lt=now - KEPT).delete()
        row.save()
    return row


def _covers_as_well(snapshot: ZoneSnapshot, shadow: ZoneSnapshot) -> bool:
    required = snapshot.vms.required
    now = np.minimum(snapshot.cover, required)
    return bool(np.all(np.minimum(shadow.cover, required) >= now))


def _stored(shadow: ZoneSnapshot) -> list[dict[str, Any]]:  # Any: JSON
    """Return the slots of a plan as stored; a slot bears the label of its first user."""
    vms, slots = shadow.vms, shadow.slots
    starts, rows = (column.tolist() for column in shadow.members_of_slot)
    users = shadow.members.vm.tolist()
    stored = []
    for number, host in enumerate(slots.host.tolist()):
        listed = [users[row] for row in rows[starts[number] : starts[number + 1]]]
        flavor, group = vms.labels[vms.label_code[listed[0]]]
        stored.append(
            {
                "host": shadow.hosts.names[host],
                "memory_bytes": int(slots.memory_bytes[number]),
                "vcpus": int(slots.vcpus[number]),
                "flavor": flavor,
                "group": group,
                "vms": [vms.uuids[vm] for vm in listed],
            }
        )
    return stored


def rebalance_zone(
    zone: str,
    *,
    actor: Actor,
    request_id: str,
    now: datetime,
    most_steps: int | None = None,
    is_dry_run: bool = False,
) -> Rebalancing:
    """Carry out the zone's shadow plan, or say what would be done.

    Args:
        zone: The zone.
        actor: Who does it.
        request_id: Correlation id.
        now: The present.
        most_steps: Most single steps; the setting's when left out.
        is_dry_run: Whether to write nothing.

    Raises:
        NoShadowPlan: the zone has no plan that is worth it.
        Busy: the zone stayed locked by others.
    """
    row = ShadowPlan.objects.filter(zone=zone, state__in=LIVE_STATES).order_by("-id").first()
    if row is None:
        raise NoShadowPlan(f"zone {zone} has no shadow plan that saves enough")
    work = _Work(
        row=row,
        snapshot=zone_snapshot(zone, now=now),
        actor=actor,
        request_id=request_id,
        now=now,
    )
    limit = settings.HEADROOM.failover.rebalance_steps_per_run
    plan = work.steps(limit if most_steps is None else most_steps)
    exchanged = _exchanged(work, plan)
    if exchanged is not None:
        return exchanged if is_dry_run else work.exchange(exchanged)
    outcome = Rebalancing(
        zone=zone,
        reserved_before=plan.reserved_before,
        reserved_after=plan.reserved_after,
        steps=len(plan.steps),
        blocked=plan.blocked,
        plan=plan.steps,
    )
    return outcome if is_dry_run else work.carry_out(outcome)


def _exchanged(work: _Work, plan: RebalancePlan) -> Rebalancing | None:
    """Return the exchange of all memberships where single steps get stuck early; None else."""
    memberships = sum(len(target.users) for target in work.targets)
    gained = plan.reserved_before - plan.reserved_after
    possible = plan.reserved_before - work.row.shadow_memory_bytes
    if not plan.blocked or gained * 2 >= possible or memberships > MOST_SWAPPED:
        return None
    return Rebalancing(
        zone=work.row.zone,
        reserved_before=plan.reserved_before,
        reserved_after=sum(target.size.memory_bytes for target in work.targets),
        steps=memberships,
        blocked=0,
        is_exchange=True,
    )


@dataclass(slots=True, kw_only=True)
class _Work:
    """One rebalancing; gone when it ends."""

    row: ShadowPlan
    snapshot: ZoneSnapshot
    actor: Actor
    request_id: str
    now: datetime
    state: DrillState = field(init=False)
    targets: tuple[TargetSlot, ...] = field(init=False)
    keys: dict[int, int] = field(default_factory=dict)
    chooser: HostChooser = field(init=False)

    def __post_init__(self) -> None:
        self.state = drill_state_of([self.snapshot])
        self.chooser = HostsWithoutSlots(self.snapshot)
        self.targets = tuple(
            TargetSlot(
                number=number,
                host=slot["host"],
                size=ResourceVector(memory_bytes=slot["memory_bytes"], vcpus=slot["vcpus"]),
                users=tuple(slot["vms"]),
            )
            for number, slot in enumerate(self.row.slots)
            if slot["host"] in self.state.hosts
        )

    def steps(self, most: int) -> RebalancePlan:
        """Return the single steps."""
        return plan_rebalance(self.state, self.targets, most_steps=most, may_use=self._may_use)

    def _may_use(self, uuid: str, host: str) -> bool:
        """Ask the scheduler whether a VM may run on a host: the validation of a step."""
        snapshot = self.snapshot
        mask = self.chooser.compatible(int(snapshot.vms.class_code[snapshot.vm_row[uuid]]))
        return bool(mask[snapshot.host_row[host]]) and self.state.hosts[host].is_alive

    def carry_out(self, outcome: Rebalancing) -> Rebalancing:
        """Carry out the single steps, each in a transaction of its own."""
        self._mark(ShadowState.RUNNING, 0)
        done = refused = 0
        for step in outcome.plan:
            if self._step(step):
                done += 1
            else:
                refused += 1
        is_over = len(outcome.plan) < settings.HEADROOM.failover.rebalance_steps_per_run
        self._mark(ShadowState.DONE if is_over else ShadowState.RUNNING, done)
        return replace(outcome, done=done, refused=refused)

    def exchange(self, outcome: Rebalancing) -> Rebalancing:
        """Exchange all memberships in one transaction."""
        done = self._attempted(self._swap)
        self._mark(ShadowState.DONE if done else ShadowState.OBSOLETE, outcome.steps * done)
        return replace(outcome, done=outcome.steps * done, refused=outcome.steps * (not done))

    def _step(self, step: RebalanceStep) -> bool:
        return self._attempted(lambda: self._move(step))

    def _attempted(self, work: Callable[[], bool]) -> bool:
        """Run a piece of work under the zone's lock; undo it if others got in the way."""
        try:
            with transaction.atomic(durable=True):
                zone_lock([self.row.zone])
                done = work()
                if not done:
                    transaction.set_rollback(True)
                return done
        except Busy:
            raise
        except (IntegrityError, DatabaseError) as error:
            log.info("rebalance_step_refused", zone=self.row.zone, error=str(error))
            return False

    def _move(self, step: RebalanceStep) -> bool:
        """Let one VM join and then leave; False if the world is not what the step stands on."""
        vm = _located([step.vm]).get(step.vm)
        if vm is None or vm.host is None or vm.host.name != self.state.vms[step.vm].host:
            return False
        target = self.row.slots[step.target]
        reservation_id = self._reservation(step, target)
        if reservation_id is None:
            return False
        write_users([_user(reservation_id, vm)], now=self.now)
        touch([reservation_id], now=self.now)
        if step.leaves:
            return self._leave(step)
        return True

    def _reservation(self, step: RebalanceStep, target: dict[str, Any]) -> int | None:
        """Return the key of the slot to join, made if there is none yet."""
        known = self.keys.get(step.target)
        if step.joins:
            known = int(self.snapshot.slots.ids[self.snapshot.slots.names.index(step.joins)])
        if known is not None:
            usable = (
                Reservation.objects.filter(pk=known, is_ready=True, failover__state="active")
                .filter(memory_bytes__gte=target["memory_bytes"], vcpus__gte=target["vcpus"])
                .select_for_update(of=("self",), no_key=True)
            )
            return known if usable.exists() else None
        made = self._made([target])
        if made:
            self.keys[step.target] = made[0]
        return made[0] if made else None

    def _made(self, targets: Sequence[dict[str, Any]]) -> list[int]:
        """Take room for slots and write them; nothing if one has no room."""
        ids = dict(
            Host.objects.filter(name__in={target["host"] for target in targets}).values_list(
                "name", "pk"
            )
        )
        slots = [
            SlotToWrite(
                host_id=ids[target["host"]],
                memory_bytes=target["memory_bytes"],
                vcpus=target["vcpus"],
                flavor_name=target["flavor"],
                resource_group=target["group"],
                decision={"shadow_plan": self.row.pk},
            )
            for target in targets
        ]
        if take_room(slots):
            return []
        creator = settings.HEADROOM.failover.creator
        written = write_slots(
            slots,
            zone=self.row.zone,
            creator=creator,
            request_id=self.request_id,
            now=self.now,
        )
        return [key for key, _ in written]

    def _leave(self, step: RebalanceStep) -> bool:
        old = ReservationAllocation.objects.filter(
            vm_uuid=step.vm,
            reservation__failover__name=step.leaves,
            reservation__kind=ReservationKind.FAILOVER,
            reservation__failover__state="active",
        ).values_list("pk", "reservation_id")
        rows = list(old)
        if not rows:
            return False
        delete_users([key for key, _ in rows], now=self.now)
        delete_unused([reservation_id for _, reservation_id in rows])
        return True

    def _swap(self) -> bool:
        """Make all slots of the plan, put its users in, and remove the old ones."""
        old = set(
            Reservation.objects.filter(
                kind=ReservationKind.FAILOVER, zone=self.row.zone
            ).values_list("pk", flat=True)
        )
        if old != set(self.snapshot.slots.ids.tolist()) or self.snapshot.slots.is_consuming.any():
            return False
        uuids = sorted({uuid for target in self.targets for uuid in target.users})
        vms = _located(uuids)
        has_moved = any(
            vm.host is None
            or uuid not in self.state.vms
            or vm.host.name != self.state.vms[uuid].host
            for uuid, vm in vms.items()
        )
        users = ReservationAllocation.objects.filter(reservation_id__in=old)
        covered = set(users.values_list("vm_uuid", flat=True))
        if has_moved or len(vms) != len(uuids) or not covered <= set(uuids):
            return False
        may_stand = all(
            self._may_use(uuid, target.host) for target in self.targets for uuid in target.users
        )
        if len(self.targets) != len(self.row.slots) or not may_stand:
            return False
        keys = self._made(self.row.slots)
        if not keys:
            return False
        delete_users(list(users.values_list("pk", flat=True)), now=self.now)
        write_users(
            (
                _user(key, vms[uuid])
                for key, slot in zip(keys, self.row.slots, strict=True)
                for uuid in slot["vms"]
            ),
            now=self.now,
        )
        delete_unused(sorted(old))
        return True

    def _mark(self, state: ShadowState, done: int) -> None:
        with transaction.atomic(durable=True):
            row = ShadowPlan.objects.select_for_update().get(pk=self.row.pk)
            if row.state not in LIVE_STATES:
                return
            before, row.state = row.state, state
            row.steps_done += done
            row.save(update_fields=["state", "steps_done"])
            record_changes(
                [
                    Change(
                        action="failover_rebalanced",
                        object_type="shadow_plan",
                        object_id=str(row.pk),
                        before={"state": before},
                        after={"state": state.value, "steps_done": row.steps_done},
                    )
                ],
                actor=self.actor,
                request_id=self.request_id,
            )


def _located(uuids: Sequence[str]) -> dict[str, Instance]:
    """Lock VMs against moves and return them by uuid."""
    rows = (
        Instance.objects.filter(openstack_id__in=uuids)
        .select_related("host")
        .order_by("pk")
        .select_for_update(of=("self",), no_key=True)
    )
    return {row.openstack_id: row for row in rows}


def _user(reservation_id: int, vm: Instance) -> UserToWrite:
    assert vm.host_id is not None  # noqa: S101 - checked by the callers
    return UserToWrite(
        reservation_id=reservation_id,
        vm_uuid=vm.openstack_id,
        memory_bytes=vm.memory_bytes,
        vcpus=vm.vcpus,
        vm_host_id=vm.host_id,
    )


def rebalance_now(
    zone: str,
    *,
    actor: Actor,
    request_id: str,
    now: datetime,
    most_steps: int | None = None,
) -> Rebalancing | None:
    """Plan a zone from scratch and carry that out; None if it does not save enough."""
    row = compute_shadow_plan(zone, request_id=request_id, now=now)
    if row.state != ShadowState.PROPOSED:
        return None
    return rebalance_zone(zone, actor=actor, request_id=request_id, now=now, most_steps=most_steps)


def rebalance_all(*, actor: Actor, request_id: str, now: datetime) -> dict[str, int]:
    """Compute the shadow plan of every zone, and carry out those that save enough.

    Returns:
        Counts of zones by what was done.
    """
    counts = {"proposed": 0, "not_worth": 0, "carried_out": 0, "failed": 0}
    for zone in failover_zones():
        try:
            row = compute_shadow_plan(zone, request_id=request_id, now=now)
            counts[str(row.state)] += 1
            if row.state == ShadowState.PROPOSED and settings.HEADROOM.failover.rebalance:
                rebalance_zone(zone, actor=actor, request_id=request_id, now=now)
                counts["carried_out"] += 1
        except (HeadroomError, DatabaseError) as error:
            log.warning("rebalance_failed", zone=zone, error=str(error))
            counts["failed"] += 1
    return counts
