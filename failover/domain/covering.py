"""Whom a run gives reservations, and which (spec failover, 9.3, 10, 11, 12.1, 17.4)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from failover.domain.bits import bits_as_mask, bits_of
from failover.domain.engine import EligibilityEngine
from failover.domain.plan import (
    BoolColumn,
    CleaningPlan,
    CoverPlan,
    FloatColumn,
    HostChooser,
    PlannedReservation,
    PlanOptions,
    Shortfall,
    ZonePlan,
)
from failover.domain.rhythm import selected, start_offset
from failover.domain.shelf import Size, SlotShelf, share_limit
from failover.domain.zone_columns import Int64Column, ZoneSnapshot

NO_RESOURCES = "no_resources"
NO_COMPATIBLE_HOST = "no_compatible_host"
NO_ROOM = "no_room"
NO_ELIGIBLE_HOST = "no_eligible_host"
WAITING = "waiting"


def plan_cover(
    snapshot: ZoneSnapshot,
    cleaning: CleaningPlan,
    chooser: HostChooser,
    options: PlanOptions,
    *,
    barred: Mapping[int, int] | None = None,
) -> CoverPlan:
    """Return which reservations VMs join and which are made, largest VM first.

    All missing ones of a VM are handed out together; each is taken from those that exist before a
    new one is made.

    Args:
        cleaning: What leaves before.
        chooser: What the scheduler says about hosts.
        options: What the run may do.
        barred: VM row -> bit set of hosts not to be proposed to it.

    Source: spec failover, 9.3.
    """
    left = left_after(snapshot, cleaning)
    missing = missing_counts(snapshot, left)
    order = largest_first(snapshot, np.flatnonzero(missing > 0))
    offset = start_offset(
        len(order),
        limit=options.limit,
        run_number=options.run_number,
        rotation_interval=options.rotation_interval,
        draw=options.draw,
    )
    chosen, hit_limit = selected(order, limit=options.limit, offset=offset)
    if not order:
        return CoverPlan()
    work = _Covering(
        snapshot, cleaning, left=left, chooser=chooser, options=options, barred=barred or {}
    )
    for vm in chosen:
        work.cover(vm, int(missing[vm]))
    handled = frozenset(chosen)
    waiting = [
        Shortfall(vm=vm, current=int(snapshot.vms.required[vm] - missing[vm]), reason=WAITING)
        for vm in order
        if vm not in handled
    ]
    return CoverPlan(
        joins=tuple(work.joins),
        created=tuple(work.created),
        shortfalls=tuple(sorted([*work.shortfalls, *waiting], key=lambda one: one.vm)),
        missing_vms=len(order),
        processed_vms=len(chosen),
        needed=sum(int(missing[vm]) for vm in chosen),
        reused=work.reused,
        failed=work.failed,
        hit_limit=hit_limit,
    )


def plan_zone(
    snapshot: ZoneSnapshot,
    cleaning: CleaningPlan,
    chooser: HostChooser,
    options: PlanOptions,
    *,
    barred: Mapping[int, int] | None = None,
) -> ZonePlan:
    """Return the whole plan of a run; with the brake on, nothing is added either."""
    if cleaning.brake is not None:
        return ZonePlan(cleaning=cleaning, cover=CoverPlan())
    cover = plan_cover(snapshot, cleaning, chooser, options, barred=barred)
    return ZonePlan(cleaning=cleaning, cover=cover)


def left_after(snapshot: ZoneSnapshot, cleaning: CleaningPlan) -> BoolColumn:
    """Return bool[A], memberships that a plan leaves."""
    left = np.ones(len(snapshot.members), dtype=np.bool_)
    left[[one.member for one in cleaning.removals]] = False
    return left


def missing_counts(snapshot: ZoneSnapshot, left: BoolColumn) -> Int64Column:
    """Return int64[V], reservations that each VM lacks; 0 for VMs that are owed none now.

    Args:
        left: bool[A], memberships that count.
    """
    members, vms = snapshot.members, snapshot.vms
    counts = left & snapshot.slots.is_usable[members.slot]
    have = np.bincount(members.vm[counts], minlength=len(vms))
    is_wanted = vms.is_owed & vms.is_listed & (vms.host >= 0)
    missing: Int64Column = np.where(is_wanted, np.maximum(vms.required - have, 0), 0)
    return missing


def largest_first(snapshot: ZoneSnapshot, rows: Int64Column) -> list[int]:
    """Return rows of VMs by memory, then vCPUs, both descending, then uuid.

    Source: spec failover, 10.
    """
    vms = snapshot.vms
    order = np.lexsort((rows, -vms.vcpus[rows], -vms.memory_bytes[rows]))
    ordered: list[int] = rows[order].tolist()
    return ordered


class _Covering:
    """One run's handing out; the only mutable state, gone when it ends."""

    def __init__(
        self,
        snapshot: ZoneSnapshot,
        cleaning: CleaningPlan,
        *,
        left: BoolColumn,
        chooser: HostChooser,
        options: PlanOptions,
        barred: Mapping[int, int],
    ) -> None:
        self._snapshot = snapshot
        self._chooser = chooser
        self._options = options
        self._barred = barred
        hosts, slots = snapshot.hosts, snapshot.slots
        self._sizes: Int64Column = np.stack([slots.memory_bytes, slots.vcpus], axis=1)
        for resize in cleaning.resized:
            self._sizes[resize.slot] = resize.memory_bytes, resize.vcpus
        self._held_memory = hosts.failover_memory_bytes.copy()
        self._capacity = np.maximum(hosts.effective_memory_bytes, 1)
        self._failover_share = self._held_memory / self._capacity
        self._free_memory = hosts.free_memory_bytes()
        self._is_sound = (self._free_memory >= 0) & (hosts.free_vcpus() >= 0)
        held = np.bincount(slots.host[slots.host >= 0], minlength=len(hosts))
        self._slots_held = held if snapshot.slots_held is None else snapshot.slots_held.copy()
        self._new_on_host = np.zeros(len(hosts), dtype=np.bool_)
        self._engine = self._built_engine(cleaning, left)
        self._shelf = self._filled_shelf()
        self._hosts_of: dict[int, tuple[int, BoolColumn, BoolColumn]] = {}
        self._same_hosts: dict[int, tuple[int, BoolColumn, BoolColumn]] = {}
        self._keys: dict[bytes, int] = {}
        self._hopeless: dict[tuple[int, Size], Shortfall] = {}
        self.joins: list[tuple[int, int]] = []
        self.created: list[PlannedReservation] = []
        self.shortfalls: list[Shortfall] = []
        self.reused = 0
        self.failed = 0

    def cover(self, vm: int, count: int) -> None:
        """Give a VM its missing reservations, as many as can be had."""
        vms = self._snapshot.vms
        size = int(vms.asked_memory_bytes[vm]), int(vms.asked_vcpus[vm])
        problem = None
        if not (size[0] and size[1]):
            problem = Shortfall(vm=vm, current=0, reason=NO_RESOURCES)
        class_code = int(vms.class_code[vm])
        for _ in range(count):
            problem = problem or self._one_more(vm, size, class_code)
            if problem is not None:
                break
        if problem is not None:
            self.failed += 1
            self.shortfalls.append(
                Shortfall(
                    vm=vm,
                    current=self._usable_count(vm),
                    reason=problem.reason,
                    facts=problem.facts,
                )
            )

    def _usable_count(self, vm: int) -> int:
        is_usable, known = self._snapshot.slots.is_usable, len(self._snapshot.slots)
        return sum(slot >= known or bool(is_usable[slot]) for slot in self._engine.vm_slots[vm])

    def _one_more(self, vm: int, size: Size, class_code: int) -> Shortfall | None:
        barred = self._barred.get(vm, 0)
        key, compatible, joinable = self._hosts(class_code)
        slot = self._shelf.choose(vm, size, key, joinable, barred)
        if slot < 0:
            slot_or_problem = self._create(vm, size, class_code, compatible, barred)
            if isinstance(slot_or_problem, Shortfall):
                return slot_or_problem
            slot = slot_or_problem
        else:
            self.reused += 1
        self._engine.join(vm, slot)
        self._shelf.count_user(slot)
        self.joins.append((vm, slot))
        return None

    def _hosts(self, class_code: int) -> tuple[int, BoolColumn, BoolColumn]:
        """Return the hosts of a class, and those of them whose reservations may be joined.

        Classes with the same hosts share a key, so what is kept by it stays small.
        """
        known = self._hosts_of.get(class_code)
        if known is None:
            compatible = self._chooser.compatible(class_code)
            known = self._same_hosts.get(id(compatible))  # which it keeps
            if known is None:
                joinable = compatible & self._is_sound
                key = self._keys.setdefault(joinable.tobytes(), len(self._keys))
                known = self._same_hosts[id(compatible)] = key, compatible, joinable
            self._hosts_of[class_code] = known
        return known

    def _create(
        self, vm: int, size: Size, class_code: int, compatible: BoolColumn, barred: int
    ) -> int | Shortfall:
        hopeless = self._hopeless.get((class_code, size))
        if hopeless is not None:
            return hopeless
        scores = self._chooser.scores(class_code, *size)
        allowed = scores > -np.inf
        facts = {
            "compatible": int(np.count_nonzero(compatible)),
            "with_room": int(np.count_nonzero(allowed)),
        }
        if not facts["compatible"] or not facts["with_room"]:
            reason = NO_ROOM if facts["compatible"] else NO_COMPATIBLE_HOST
            problem = Shortfall(vm=vm, current=0, reason=reason, facts=facts)
            self._hopeless[class_code, size] = problem
            return problem
        closed = self._engine.closed_hosts(vm) | barred
        allowed &= ~bits_as_mask(closed, len(allowed))
        if self._options.one_new_per_host:
            allowed &= ~self._new_on_host
        facts["eligible"] = int(np.count_nonzero(allowed))
        if not facts["eligible"]:
            return Shortfall(vm=vm, current=0, reason=NO_ELIGIBLE_HOST, facts=facts)
        host = self._best_host(allowed, scores)
        return self._made(vm, host, size, class_code, facts)

    def _best_host(self, allowed: BoolColumn, scores: FloatColumn) -> int:
        """Return the host for a new reservation: least failover share, then the scheduler's order.

        Source: spec failover, 17.4 "Host choice for new slots".
        """
        first = -self._slots_held if self._options.consolidate else self._failover_share
        first = np.where(allowed, first, np.inf)
        rows = np.flatnonzero(first == first.min())
        return int(rows[int(scores[rows].argmax())])

    def _made(
        self, vm: int, host: int, size: Size, class_code: int, facts: Mapping[str, int]
    ) -> int:
        number = self._engine.add_slot(host)
        self._shelf.add(number, size)
        self._chooser.place(host, class_code, *size)
        self._held_memory[host] += size[0]
        self._failover_share[host] = self._held_memory[host] / self._capacity[host]
        self._free_memory[host] -= size[0]
        self._slots_held[host] += 1
        self._new_on_host[host] = True
        self.created.append(
            PlannedReservation(
                number=number,
                host=host,
                vm=vm,
                memory_bytes=size[0],
                vcpus=size[1],
                facts=dict(facts),
            )
        )
        return number

    def _built_engine(self, cleaning: CleaningPlan, left: BoolColumn) -> EligibilityEngine:
        """Return the engine of what is left; where a VM is, its reservations say first.

        Users of an evacuation's reservation whose host has left the zone are left out.
        """
        snapshot = self._snapshot
        members, slots = snapshot.members, snapshot.slots
        is_inside = slots.host >= 0
        left = left & (members.joined_host >= 0) & is_inside[members.slot]
        vm_host = snapshot.vms.host.astype(np.int64)
        vm_host[members.vm[left]] = members.joined_host[left]
        engine = EligibilityEngine.from_columns(
            len(snapshot.hosts),
            vm_host.tolist(),
            np.maximum(slots.host, 0).astype(np.int64),
            members.slot[left].astype(np.int64),
            members.vm[left].astype(np.int64),
        )
        engine.alive &= ~bits_of((*cleaning.emptied, *np.flatnonzero(~is_inside).tolist()))
        return engine

    def _filled_shelf(self) -> SlotShelf:
        snapshot = self._snapshot
        most_required = int(snapshot.vms.required.max(initial=self._options.most_required))
        shelf = SlotShelf(
            self._engine,
            limit=share_limit(self._options.max_users, len(snapshot.hosts), most_required),
            order=self._options.reuse_order,
            host_free_memory_bytes=self._free_memory,
        )
        shelf.fill(self._sizes, snapshot.slots.is_usable)
        return shelf
