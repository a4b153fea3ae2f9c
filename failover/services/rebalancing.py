"""Shadow plans and carrying them out, make before break (spec failover, 17.4).

A plan is carried out in single steps, one membership and one transaction each, as far as the rules
allow the states in between. In a small or crowded zone they hardly do. Then VMs exchange all their
slots at once: all of them in one transaction where there are not too many, else some at a time, for
which the rules hold in any order. Either way nobody ever sees a VM with fewer slots than it had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction

from capacity.ledger.bulk import JoiningVM, NewReservation, take_room
from capacity.ledger.rooms import lock_rooms
from capacity.locks import zone_lock
from capacity.models import Reservation, ReservationAllocation, ReservationKind
from core.chunks import in_chunks
from failover.domain.drill_state import DrillState
from failover.domain.exchange import ExchangePlan, VMExchange, plan_exchange
from failover.domain.rebalance import RebalancePlan, RebalanceStep, TargetSlot, plan_rebalance
from failover.domain.zone_columns import ZoneSnapshot
from failover.drill_models import ShadowPlan, ShadowState
from failover.selectors.drills import state_of, zone_snapshot
from failover.selectors.zone import failover_zones
from failover.services.shadow_plans import LIVE_STATES, HostsWithoutSlots, compute_shadow_plan
from failover.services.writing import (
    delete_unused,
    delete_users,
    lock_slots,
    touch,
    write_slots,
    write_users,
)
from hosts.models import Host, Instance
from journal.actors import Actor
from journal.errors import Busy, HeadroomError
from journal.heavy import Computing, computed_here
from journal.services import Change, record_changes
from scheduling.resources import ResourceVector

log = structlog.get_logger(__name__)

MOST_SWAPPED: Final = 20_000
VMS_PER_EXCHANGE: Final = 100


class NoShadowPlan(HeadroomError):  # noqa: N818 - a state of the zone, not a defect
    """The zone has no shadow plan that is worth carrying out."""

    code = "no_shadow_plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalancing:
    """What was done, or would be.

    Attributes:
        reserved_before: Memory of the slots before, in bytes.
        reserved_after: Memory of the slots after.
        steps: Steps that were planned.
        done: Steps that were carried out; for an exchange, memberships.
        refused: Steps that others got in the way of.
        blocked: Memberships of the plan that single steps cannot reach.
        is_exchange: Whether VMs exchange all their slots at once.
        plan: The single steps, empty for an exchange.
        exchange: VMs that exchange their slots one after the other; None if all do together.
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
    exchange: ExchangePlan | None = field(default=None, repr=False)


def rebalance_zone(
    zone: str,
    *,
    actor: Actor,
    request_id: str,
    now: datetime,
    most_steps: int | None = None,
    is_dry_run: bool = False,
    computed: Computing = computed_here,
) -> Rebalancing:
    """Carry out the zone's shadow plan, or say what would be done.

    Args:
        most_steps: Most single steps; the setting's when left out.
        is_dry_run: Whether to write nothing.
        computed: Where the plan is computed.

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
    most = limit if most_steps is None else most_steps
    work.chooser.read()
    outcome = computed(lambda: _planned(work, most))
    if is_dry_run:
        return outcome
    if outcome.is_exchange:
        return work.exchange(outcome)
    return work.carry_out(outcome, is_over=outcome.steps < most)


def _planned(work: _Work, most: int) -> Rebalancing:
    """Return what is to be done; the database is not asked."""
    memberships = sum(len(target.users) for target in work.targets)
    if memberships > MOST_SWAPPED:
        return _exchanged_in_parts(work, most)
    plan = plan_rebalance(work.state, work.targets, most_steps=most, may_use=work.may_use)
    return _exchanged(work, plan, memberships) or Rebalancing(
        zone=work.row.zone,
        reserved_before=plan.reserved_before,
        reserved_after=plan.reserved_after,
        steps=len(plan.steps),
        blocked=plan.blocked,
        plan=plan.steps,
    )


def _exchanged_in_parts(work: _Work, most: int) -> Rebalancing:
    """Return the exchange of a large zone: VM by VM, as many as there may be steps."""
    exchange = plan_exchange(work.state, work.targets, most=most, may_use=work.may_use)
    return Rebalancing(
        zone=work.row.zone,
        reserved_before=exchange.reserved_before,
        reserved_after=exchange.reserved_after,
        steps=len(exchange.exchanges),
        blocked=exchange.blocked,
        is_exchange=True,
        exchange=exchange,
    )


def _exchanged(work: _Work, plan: RebalancePlan, memberships: int) -> Rebalancing | None:
    """Return the exchange of all memberships where single steps get stuck early; None else."""
    gained = plan.reserved_before - plan.reserved_after
    possible = plan.reserved_before - work.row.shadow_memory_bytes
    if not plan.blocked or gained * 2 >= possible:
        return None
    return Rebalancing(
        zone=work.row.zone,
        reserved_before=plan.reserved_before,
        reserved_after=sum(target.size.memory_bytes for target in work.targets),
        steps=memberships,
        blocked=0,
        is_exchange=True,
    )


@dataclass(kw_only=True)
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
    chooser: HostsWithoutSlots = field(init=False)

    def __post_init__(self) -> None:
        self.state = state_of([self.snapshot])
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

    def may_use(self, uuid: str, host: str) -> bool:
        """Ask the scheduler whether a VM may run on a host: the validation of a step."""
        snapshot = self.snapshot
        mask = self.chooser.compatible(int(snapshot.vms.class_code[snapshot.vm_row[uuid]]))
        return bool(mask[snapshot.host_row[host]]) and self.state.hosts[host].is_alive

    def carry_out(self, outcome: Rebalancing, *, is_over: bool) -> Rebalancing:
        """Carry out the single steps, each in a transaction of its own.

        Args:
            outcome: The steps.
            is_over: Whether these are all, not only as many as there may be.
        """
        self._mark(ShadowState.RUNNING, 0)
        self.keys = {one.target: self.ids[one.joins] for one in outcome.plan if one.joins}
        done = 0
        for step in outcome.plan:
            change = VMExchange(vm=step.vm, targets=(step.target,))
            done += self._exchange_some([change], [self.ids[step.leaves]] if step.leaves else [])
        self._mark(ShadowState.DONE if is_over else ShadowState.RUNNING, done)
        return replace(outcome, done=done, refused=len(outcome.plan) - done)

    def exchange(self, outcome: Rebalancing) -> Rebalancing:
        """Exchange all memberships, in one transaction or VM by VM."""
        if outcome.exchange is not None:
            return self._exchange_in_parts(outcome, outcome.exchange)
        done = self._attempted(self._swap)
        self._mark(ShadowState.DONE if done else ShadowState.OBSOLETE, outcome.steps * done)
        return replace(outcome, done=outcome.steps * done, refused=outcome.steps * (not done))

    def _exchange_in_parts(self, outcome: Rebalancing, plan: ExchangePlan) -> Rebalancing:
        self._mark(ShadowState.RUNNING, 0)
        self.keys = {number: self.ids[name] for number, name in plan.standing.items()}
        done = 0
        for part in in_chunks(plan.exchanges, VMS_PER_EXCHANGE):
            done += self._exchange_some(part)
        is_over = done == len(plan.exchanges) and not plan.blocked and not plan.is_cut
        self._mark(ShadowState.DONE if is_over else ShadowState.RUNNING, done)
        return replace(outcome, done=done, refused=len(plan.exchanges) - done)

    def _exchange_some(
        self, exchanges: Sequence[VMExchange], leaves: Collection[int] | None = None
    ) -> int:
        """Let some VMs exchange their slots in a transaction; halve those that are refused.

        Args:
            exchanges: The VMs, and what they join.
            leaves: Keys of the slots that they leave; all others that they are in if left out.
        """
        made: dict[int, int] = {}
        if self._attempted(lambda: self._exchange_now(exchanges, made, leaves)):
            self.keys |= made
            return len(exchanges)
        if len(exchanges) == 1:
            return 0
        middle = len(exchanges) // 2
        return self._exchange_some(exchanges[:middle]) + self._exchange_some(exchanges[middle:])

    def _exchange_now(
        self,
        exchanges: Sequence[VMExchange],
        made: dict[int, int],
        leaves: Collection[int] | None = None,
    ) -> bool:
        """Make the slots, then let the VMs join them and leave others; False if one cannot."""
        made.clear()
        uuids = [one.vm for one in exchanges]
        wanted = sorted({number for one in exchanges for number in one.targets})
        known = {self.keys[number] for number in wanted if number in self.keys}
        fresh = [number for number in wanted if number not in self.keys]
        self._lock_rooms(uuids, [self.row.slots[number]["host"] for number in fresh])
        sizes = _usable(known)
        if set(sizes) != known:
            return False
        vms = _located(uuids)
        if any(
            one.vm not in vms
            or (host := vms[one.vm].host) is None
            or host.name != self.state.vms[one.vm].host
            for one in exchanges
        ):
            return False
        if not all(  # the loop may have shrunk a slot to the users that it had so far
            _size(vms[one.vm]).fits_into(
                sizes[self.keys[number]] if number in self.keys else self.size_of(number)
            )
            for one in exchanges
            for number in one.targets
        ):
            return False
        written = self._made([self.row.slots[number] for number in fresh]) if fresh else []
        if len(written) != len(fresh):
            return False
        made.update(zip(fresh, written, strict=True))
        keys = {**self.keys, **made}
        joined = {(one.vm, keys[number]) for one in exchanges for number in one.targets}
        return self._change_slots(joined, vms, leaves)

    def _change_slots(
        self,
        joined: set[tuple[str, int]],
        vms: Mapping[str, Instance],
        leaves: Collection[int] | None,
    ) -> bool:
        before = list(
            ReservationAllocation.objects.filter(
                vm_uuid__in=list(vms), reservation__kind=ReservationKind.FAILOVER
            ).values_list("pk", "vm_uuid", "reservation_id", "reservation__failover__state")
        )
        if any(state != "active" for *_, state in before):
            return False
        stays = {(vm, key) for _, vm, key, _ in before} & joined
        leaving = [
            (pk, key)
            for pk, vm, key, _ in before
            if (vm, key) not in stays and (leaves is None or key in leaves)
        ]
        if len(leaving) < len(leaves or ()):
            return False
        left = delete_users([pk for pk, _ in leaving], now=self.now)
        if len(left) != len(leaving):
            return False
        write_users(
            (_user(key, vms[vm]) for vm, key in sorted(joined - stays)),
            now=self.now,
        )
        touch({key for _, key in joined - stays}, now=self.now)
        delete_unused(sorted({key for _, key in leaving}))
        return True

    def size_of(self, number: int) -> ResourceVector:
        """Return the size of a planned slot."""
        slot = self.row.slots[number]
        return ResourceVector(memory_bytes=slot["memory_bytes"], vcpus=slot["vcpus"])

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Return name of a slot -> key."""
        return dict(zip(self.snapshot.slots.names, self.snapshot.slots.ids.tolist(), strict=True))

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

    def _lock_rooms(self, uuids: Collection[str], hosts: Collection[str]) -> None:
        """Lock the rooms of hosts, and of those where VMs have slots now."""
        slots = Reservation.objects.filter(
            kind=ReservationKind.FAILOVER, allocations__vm_uuid__in=uuids
        )
        ids = set(slots.values_list("target_host_id", flat=True))
        ids.update(Host.objects.filter(name__in=hosts).values_list("pk", flat=True))
        lock_rooms(key for key in ids if key is not None)

    def _made(self, targets: Sequence[dict[str, Any]]) -> list[int]:
        """Take room for slots and write them; nothing if one has no room."""
        ids = dict(
            Host.objects.filter(name__in={target["host"] for target in targets}).values_list(
                "name", "pk"
            )
        )
        slots = [
            NewReservation(
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
        places = {target.host for target in self.targets}
        places |= {slot.host for slot in self.state.slots.values()}
        self._lock_rooms(uuids, places)
        if len(lock_slots(old)) != len(old):
            return False
        users = ReservationAllocation.objects.filter(reservation_id__in=old)
        may_stand = all(
            uuid in self.state.vms and self.may_use(uuid, target.host)
            for target in self.targets
            for uuid in target.users
        )
        if (
            not may_stand
            or len(self.targets) != len(self.row.slots)
            or not set(users.values_list("vm_uuid", flat=True)) <= set(uuids)
        ):
            return False
        numbers: dict[str, list[int]] = {}
        for target in self.targets:
            for uuid in target.users:
                numbers.setdefault(uuid, []).append(target.number)
        changes = [VMExchange(vm=uuid, targets=tuple(of_vm)) for uuid, of_vm in numbers.items()]
        if not self._exchange_now(changes, {}):
            return False
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
    """Lock VMs against moves and return them by uuid; those that another is changing are not."""
    rows = (
        Instance.objects.filter(openstack_id__in=uuids)
        .select_related("host")
        .order_by("pk")
        .select_for_update(of=("self",), no_key=True, skip_locked=True)
    )
    return {row.openstack_id: row for row in rows}


def _size(row: Instance | Reservation) -> ResourceVector:
    return ResourceVector(memory_bytes=row.memory_bytes, vcpus=row.vcpus)


def _usable(keys: Collection[int]) -> dict[int, ResourceVector]:
    """Lock reservations that can be joined and that no other is changing; return their sizes."""
    rows = Reservation.objects.filter(
        pk__in=lock_slots(keys), is_ready=True, failover__state="active"
    )
    locked = rows.order_by("pk").select_for_update(of=("self",), no_key=True)
    return {row.pk: _size(row) for row in locked}


def _user(reservation_id: int, vm: Instance) -> JoiningVM:
    assert vm.host_id is not None  # noqa: S101 - checked by the callers
    return JoiningVM(
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
