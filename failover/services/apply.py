"""Carrying out the plan of a zone in steps, each its own transaction (spec failover, 9.2, 9.3).

A step takes the zone lock, then rooms, reservations and VMs, looks again at what the plan stands
on, and writes what still holds; the rest waits for the next run. Steps go by reservation, so that
the check of the rules looks at each reservation once. What is killed between two steps leaves whole
steps.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import structlog
from django.db import IntegrityError

from capacity.ledger.bulk import JoiningVM, NewReservation, take_room
from capacity.ledger.rooms import lock_rooms
from core.chunks import in_chunks
from core.copying import number_array, text_array
from core.text import plural
from failover.choices import EventReason
from failover.domain.covering import left_after
from failover.domain.plan import STALE, PlannedReservation, Removal, ZonePlan
from failover.domain.zone_columns import ZoneSnapshot
from failover.services.events import EventWriter, Happening, record_events
from failover.services.writing import (
    delete_unused,
    delete_users,
    in_step,
    resize_slots,
    touch,
    write_slots,
    write_users,
)
from journal.statements import fetch_together
from journal.statistics import analyze_grown_tables
from scheduling.resources import ResourceVector

log = structlog.get_logger(__name__)

_Result = TypeVar("_Result")

USERS_PER_STEP = 4000
ROWS_PER_STEP = 2000
MANY_JOINS = 500

LOCK_SLOTS = "SELECT id, memory_bytes, vcpus FROM failover_lock_slots(%(keys)s::bigint[])"
LOCK_VMS = "SELECT vm_uuid, host_id, slots FROM failover_lock_vms(%(uuids)s::text[])"


class StepRefusedError(Exception):
    """Others changed so much meanwhile that the zone has to be planned anew."""


@dataclass(slots=True, kw_only=True)
class Applied:
    """What was written.

    Attributes:
        created: New reservations.
        joined: Users that were written.
        updated: Reservations that lost users; what loses stale ones and rule breakers counts twice.
        deleted: Reservations that were deleted.
        resized: Reservations that shrank.
        spoiled: VM rows that did not get what the plan gave them.
    """

    created: int = 0
    joined: int = 0
    updated: int = 0
    deleted: int = 0
    resized: int = 0
    spoiled: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What a step wrote.

    Attributes:
        keys: Number of a new reservation -> key.
        names: Number of a new reservation -> name.
        joins: What was written of the step.
        lost: VMs that did not get what the step had for them.
    """

    keys: Mapping[int, int]
    names: Mapping[int, str]
    joins: tuple[tuple[int, int], ...]
    lost: frozenset[int]


_Step = tuple[tuple[int, int], ...]
"""(VM row, reservation number) of some reservations, by number."""


class _VM(NamedTuple):
    """A VM that joins something; the fields of ``JoiningVM`` from the second on."""

    uuid: str
    memory_bytes: int
    vcpus: int
    host_id: int


class PlanWriter:
    """Writes one plan of a zone; the only mutable state, gone when the run ends."""

    def __init__(
        self,
        snapshot: ZoneSnapshot,
        *,
        creator: str,
        request_id: str,
        now: datetime,
        trusts_hosts: bool = False,
        events: EventWriter = record_events,
        done: Applied | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._trusts_hosts = trusts_hosts
        self._record = events
        self._creator = creator
        self._request_id = request_id
        self._now = now
        self._slot_keys: dict[int, int] = dict(enumerate(snapshot.slots.ids.tolist()))
        self._names: dict[int, str] = dict(enumerate(snapshot.slots.names))
        self._created: Mapping[int, PlannedReservation] = {}
        self._have: list[int] = []
        self._vms: Mapping[int, _VM] = {}
        self.done = done or Applied()

    def write(self, plan: ZonePlan) -> Applied:
        """Carry out a plan.

        Raises:
            StepRefusedError: If the database refused a step; earlier steps stay.
            Busy: If the zone stayed locked.
        """
        self._clean(plan)
        self._created = {slot.number: slot for slot in plan.cover.created}
        self._vms = _vms_of(self._snapshot, plan)
        self._have = self._counted(plan)
        for step in _steps(plan.cover.joins):
            self._note(self._retried(partial(self._join, step)))
            if len(step) >= MANY_JOINS:
                analyze_grown_tables()
        return self.done

    def _retried(self, work: Callable[[], _Result]) -> _Result:
        """Do one step in a transaction under the zone lock; return what it returns."""
        try:
            return in_step(self._snapshot.zone, work)
        except IntegrityError as refused:
            log.info("failover_step_refused", zone=self._snapshot.zone, error=str(refused))
            raise StepRefusedError from refused

    def _counted(self, plan: ZonePlan) -> list[int]:
        """Return for each VM how many user rows it has in the database after cleaning."""
        members = self._snapshot.members
        stays = left_after(self._snapshot, plan.cleaning)
        counts = np.bincount(members.vm[stays], minlength=len(self._snapshot.vms))
        return [int(count) for count in counts.tolist()]

    def _clean(self, plan: ZonePlan) -> None:
        cleaning = plan.cleaning
        updated: set[tuple[int, bool]] = set()
        before = self.done.updated
        for chunk in in_chunks(cleaning.removals, ROWS_PER_STEP):
            updated |= self._retried(partial(self._remove, chunk))
            self.done.updated = before + len(updated)
        for rows in in_chunks(cleaning.emptied, ROWS_PER_STEP):
            self.done.deleted += self._retried(partial(self._delete, rows))
        for resized in in_chunks(cleaning.resized, ROWS_PER_STEP):
            sizes = {
                self._slot_keys[one.slot]: (
                    ResourceVector(memory_bytes=one.memory_bytes, vcpus=one.vcpus),
                    one.users,
                )
                for one in resized
            }
            self.done.resized += self._retried(partial(self._shrink, sizes))

    def _remove(self, removals: Sequence[Removal]) -> set[tuple[int, bool]]:
        """Take users out; return reservations that lost some, and whether these were stale."""
        members = self._snapshot.members
        keys = [int(members.ids[one.member]) for one in removals]
        left = set(delete_users(keys, now=self._now))
        events = []
        updated: set[tuple[int, bool]] = set()
        for one in removals:
            slot, vm = int(members.slot[one.member]), int(members.vm[one.member])
            uuid = self._snapshot.vms.uuids[vm]
            if (self._slot_keys[slot], uuid) in left:
                updated.add((slot, one.reason in STALE))
                events.append(
                    Happening(
                        reason=EventReason.SLOT_RELEASED,
                        zone=self._snapshot.zone,
                        reservation_name=self._names[slot],
                        host_name=self._host_name(slot),
                        vm_uuid=uuid,
                        message=f"VM left: {one.reason.value}",
                        facts={"why": one.reason.value},
                    )
                )
        self._record(events, request_id=self._request_id, now=self._now)
        return updated

    def _host_name(self, slot: int) -> str:
        row = int(self._snapshot.slots.host[slot])
        return self._snapshot.hosts.names[row] if row >= 0 else ""

    def _delete(self, rows: Sequence[int]) -> int:
        number_of = {self._slot_keys[row]: row for row in rows}
        deleted = delete_unused(list(number_of))
        self._record(
            (
                Happening(
                    reason=EventReason.SLOT_RELEASED,
                    zone=self._snapshot.zone,
                    reservation_name=self._names[number_of[key]],
                    host_name=self._host_name(number_of[key]),
                    message="deleted: nobody is left in it",
                    facts={"why": "empty"},
                )
                for key in deleted
            ),
            request_id=self._request_id,
            now=self._now,
        )
        return len(deleted)

    def _shrink(self, sizes: Mapping[int, tuple[ResourceVector, int]]) -> int:
        done = resize_slots(sizes)
        touch(done, now=self._now)
        return len(done)

    def _join(self, step: _Step) -> _Written:
        slots, vms = self._locked(step)
        joins = [
            (vm, number)
            for vm, number in step
            if vm in vms and self._may_hold(slots.get(number), vm)
        ]
        wanted = [self._created[number] for number in _numbers(joins) if number in self._created]
        refused = take_room([self._to_write(slot) for slot in wanted])
        host_ids = self._snapshot.hosts.ids
        without_room = {slot.number for slot in wanted if int(host_ids[slot.host]) in refused}
        made = [slot for slot in wanted if slot.number not in without_room]
        joins = [(vm, number) for vm, number in joins if number not in without_room]
        return self._write_step(step, made, joins)

    def _write_step(
        self, step: _Step, made: Sequence[PlannedReservation], joins: Sequence[tuple[int, int]]
    ) -> _Written:
        snapshot = self._snapshot
        keys = write_slots(
            [self._to_write(slot) for slot in made],
            zone=snapshot.zone,
            creator=self._creator,
            request_id=self._request_id,
            now=self._now,
        )
        fresh = {slot.number: key for slot, (key, _) in zip(made, keys, strict=True)}
        names = {slot.number: name for slot, (_, name) in zip(made, keys, strict=True)}
        key_of = ChainMap(fresh, self._slot_keys)
        joined = {number for _, number in joins} - set(fresh)
        write_users(
            (JoiningVM(key_of[number], *self._vms[vm]) for vm, number in joins),
            touched={self._slot_keys[number] for number in joined},
            now=self._now,
        )
        self._record(
            self._events(joins, ChainMap(names, self._names), frozenset(fresh)),
            request_id=self._request_id,
            now=self._now,
        )
        return _Written(
            keys=fresh,
            names=names,
            joins=tuple(joins),
            lost=frozenset(vm for vm, _ in set(step) - set(joins)),
        )

    def _note(self, written: _Written) -> None:
        """Remember what a step wrote, once it is committed."""
        self._slot_keys.update(written.keys)
        self._names.update(written.names)
        self.done.created += len(written.keys)
        self.done.joined += len(written.joins)
        self.done.spoiled |= written.lost
        for vm, _ in written.joins:
            self._have[vm] += 1

    def _locked(self, step: _Step) -> tuple[dict[int, ResourceVector], set[int]]:
        """Lock what a step stands on: rooms of new reservations, known ones, and VMs.

        Where hosts are believed, the VM list does not say where a VM is.

        Returns:
            Number -> size of the reservations that can be joined or may be made, and the rows of
            the VMs that are where the plan saw them and have as many reservations as it knew.
        """
        snapshot, numbers = self._snapshot, _numbers(step)
        fresh = [number for number in numbers if number not in self._slot_keys]
        made = {number: self._created[number] for number in fresh if number in self._created}
        if made:
            lock_rooms(int(snapshot.hosts.ids[slot.host]) for slot in made.values())
        known = {self._slot_keys[number]: number for number in numbers if number in self._slot_keys}
        row_of = {snapshot.vms.uuids[vm]: vm for vm, _ in step}
        uuids = text_array(row_of)
        joined, found = fetch_together(
            (LOCK_SLOTS, LOCK_VMS), {"keys": number_array(known), "uuids": uuids}
        )
        sizes = {known[key]: _size(*size) for key, *size in joined}
        sizes |= {number: _size(slot.memory_bytes, slot.vcpus) for number, slot in made.items()}
        return sizes, {
            row_of[uuid]
            for uuid, host_id, count in found
            if (self._trusts_hosts or host_id == self._vms[row_of[uuid]].host_id)
            and count == self._have[row_of[uuid]]
        }

    def _may_hold(self, size: ResourceVector | None, vm: int) -> bool:
        one = self._vms[vm]
        return (
            size is not None and one.memory_bytes <= size.memory_bytes and one.vcpus <= size.vcpus
        )

    def _to_write(self, slot: PlannedReservation) -> NewReservation:
        snapshot = self._snapshot
        flavor_name, group = snapshot.vms.labels[snapshot.vms.label_code[slot.vm]]
        return NewReservation(
            host_id=int(snapshot.hosts.ids[slot.host]),
            memory_bytes=slot.memory_bytes,
            vcpus=slot.vcpus,
            flavor_name=flavor_name,
            resource_group=group,
            decision={"for_vm": snapshot.vms.uuids[slot.vm], "hosts": dict(slot.facts)},
        )

    def _events(
        self,
        joins: Sequence[tuple[int, int]],
        names: Mapping[int, str],
        fresh: frozenset[int],
    ) -> Iterator[Happening]:
        users: dict[int, list[str]] = {}
        for vm, number in joins:
            users.setdefault(number, []).append(self._snapshot.vms.uuids[vm])
        for number, uuids in sorted(users.items()):
            is_new = number in fresh
            if is_new:
                host = self._snapshot.hosts.names[self._created[number].host]
            else:
                host = self._host_name(number) if number < len(self._snapshot.slots) else ""
            yield Happening(
                reason=EventReason.SLOT_CREATED if is_new else EventReason.SLOT_REUSED,
                zone=self._snapshot.zone,
                reservation_name=names[number],
                host_name=host,
                message=f"{'created with' if is_new else 'joined by'} {plural(len(uuids), 'VM')}",
                facts={"vms": uuids},
            )


def _vms_of(snapshot: ZoneSnapshot, plan: ZonePlan) -> Mapping[int, _VM]:
    """Return row -> VM for those that join something."""
    rows = sorted({vm for vm, _ in plan.cover.joins})
    vms = snapshot.vms
    columns = (
        vms.memory_bytes[rows].tolist(),
        vms.vcpus[rows].tolist(),
        snapshot.hosts.ids[vms.host[rows]].tolist(),
    )
    return {row: _VM(vms.uuids[row], *fields) for row, *fields in zip(rows, *columns, strict=True)}


def _size(memory_bytes: int, vcpus: int) -> ResourceVector:
    return ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)


def _numbers(joins: Sequence[tuple[int, int]]) -> list[int]:
    return sorted({number for _, number in joins})


def _steps(joins: Sequence[tuple[int, int]]) -> Iterator[_Step]:
    """Yield joins by reservation, all users of one in the same step."""
    by_slot: dict[int, list[tuple[int, int]]] = {}
    for vm, number in joins:
        by_slot.setdefault(number, []).append((vm, number))
    step: list[tuple[int, int]] = []
    for number in sorted(by_slot):
        step += by_slot[number]
        if len(step) >= USERS_PER_STEP:
            yield tuple(step)
            step = []
    if step:
        yield tuple(step)
