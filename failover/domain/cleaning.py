"""What leaves reservations before anything joins (spec failover, 9.2 steps 3 to 5, 17.6, 17.9)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from failover.domain.blame import memberships_to_remove
from failover.domain.plan import Brake, CleaningPlan, PlanOptions, Removal, RemovalReason, Resize
from failover.domain.slots import FailoverSlot, SlotUser
from failover.domain.zone_columns import (
    MEMBERS_ELSEWHERE,
    MEMBERS_SAID_GONE,
    BoolColumn,
    Int64Column,
    ZoneSnapshot,
)

_NARROW = 1 << 31
_VMS_AT_ONCE = 1 << 15


def plan_cleaning(snapshot: ZoneSnapshot, options: PlanOptions) -> CleaningPlan:
    """Return what leaves: stale users, rule breakers, surplus, then what nobody is left in.

    Users of a reservation that an evacuation is planned into stay.

    Source: spec failover, 9.2 steps 3 to 5, 17.6.
    """
    members = snapshot.members
    is_stale, reasons, kept = stale_members(snapshot)
    frozen = snapshot.slots.is_consuming[members.slot]
    is_stale &= ~frozen
    removals = [
        Removal(member=row, reason=reasons[row]) for row in np.flatnonzero(is_stale).tolist()
    ]
    left = ~is_stale
    inside = left & (members.joined_host >= 0)  # of evacuations, some may be outside
    broken = [row for row in _rule_breakers(snapshot, inside) if not frozen[row]]
    left[broken] = False
    removals += [Removal(member=row, reason=RemovalReason.RULES) for row in broken]
    brake = _brake(snapshot, removals, options)
    if brake is not None and not options.is_confirmed:
        return CleaningPlan(kept=kept, brake=brake)
    outgrown = _outgrown(snapshot, left & ~frozen)
    left[outgrown] = False
    removals += [Removal(member=row, reason=RemovalReason.TOO_LARGE) for row in outgrown]
    if options.trims:
        surplus = _surplus(snapshot, left, frozen)
        left[surplus] = False
        removals += [Removal(member=row, reason=RemovalReason.SURPLUS) for row in surplus]
    counts = np.bincount(members.slot[left], minlength=len(snapshot.slots))
    emptied = np.flatnonzero((counts == 0) & ~snapshot.slots.is_consuming)
    return CleaningPlan(
        removals=tuple(removals),
        emptied=tuple(emptied.tolist()),
        resized=_resized(snapshot, left) if options.shrinks else (),
        kept=kept,
    )


def stale_members(
    snapshot: ZoneSnapshot,
) -> tuple[BoolColumn, dict[int, RemovalReason], int]:
    """Return bool[A] of memberships that are out of date, why, and how many the safeguard keeps.

    A VM that the list has lost but a host still runs keeps its memberships: an emptied VM list
    must not cost coverage. A VM that moved, or that is nowhere, loses them, and so does every user
    of a reservation whose host is not of the zone any more, and who ran on such a host: no
    reservation serves another zone.

    Source: spec failover, 9.2 step 3.
    """
    members, vms = snapshot.members, snapshot.vms
    is_listed, is_seen = vms.is_listed[members.vm], vms.is_seen[members.vm]
    has_moved = is_listed & (vms.host[members.vm] != members.joined_host)
    is_gone = ~is_listed & ~is_seen
    is_nowhere = (snapshot.slots.host[members.slot] < 0) | (members.joined_host < 0)
    reasons = dict.fromkeys(np.flatnonzero(is_gone).tolist(), RemovalReason.GONE)
    reasons |= dict.fromkeys(np.flatnonzero(has_moved).tolist(), RemovalReason.MOVED)
    reasons |= dict.fromkeys(np.flatnonzero(is_nowhere).tolist(), RemovalReason.HOST_GONE)
    kept = int(np.count_nonzero(~is_listed & is_seen & ~is_nowhere))
    return has_moved | is_gone | is_nowhere, reasons, kept


def rule_breaking_vms(snapshot: ZoneSnapshot, left: BoolColumn) -> NDArray[np.bool_]:
    """Return bool[V], the VMs whose ``L(v)`` names a host twice.

    Args:
        left: bool[A], memberships that count.

    Source: spec failover, 7.3.
    """
    members, slots = snapshot.members, snapshot.slots
    rows = np.flatnonzero(left)
    rows = rows[np.argsort(members.slot[rows], kind="stable")]
    slot, vm, host = members.slot[rows], members.vm[rows], members.joined_host[rows]
    users = np.bincount(slot, minlength=len(slots))
    first_user = np.cumsum(users) - users
    by_vm = np.argsort(vm, kind="stable")
    breaks = np.zeros(len(snapshot.vms), dtype=np.bool_)
    width = len(snapshot.hosts) + 2
    # A list's elements are numbers of a VM and a host in one: of few VMs at a time they are half as
    # wide, and sorted where they stand at hand.
    at_once = max(1, min(_VMS_AT_ONCE, _NARROW // width - 1))
    bounds = np.searchsorted(vm[by_vm], np.arange(0, len(snapshot.vms) + at_once, at_once))
    for part, (begin, end) in enumerate(pairwise(bounds.tolist())):
        own = by_vm[begin:end]
        partners, of = _partners(first_user[slot[own]], users[slot[own]])
        number = vm[own] - part * at_once
        is_other = partners != own[of]
        _, first = np.unique(number, return_index=True)
        listed_vm = np.concatenate([number[first], number, number[of[is_other]]])
        listed_host = np.concatenate(
            [host[own[first]], slots.host[slot[own]], host[partners[is_other]]]
        )
        keys = np.sort(listed_vm.astype(np.int32) * np.int32(width) + listed_host + np.int32(1))
        breaks[keys[1:][keys[1:] == keys[:-1]] // width + part * at_once] = True
    return breaks


def _partners(first: Int64Column, count: Int64Column) -> tuple[Int64Column, Int64Column]:
    """Return the numbers of some runs one after the other, and which run each is of.

    Args:
        first: int64[K], first number of each run.
        count: int64[K], its length.
    """
    of = np.repeat(np.arange(len(first)), count)
    return np.arange(len(of)) + np.repeat(first - (np.cumsum(count) - count), count), of


def _rule_breakers(snapshot: ZoneSnapshot, left: BoolColumn) -> list[int]:
    """Return the rows of memberships that cost least to restore the rules."""
    breaks = rule_breaking_vms(snapshot, left)
    if not breaks.any():
        return []
    members = snapshot.members
    near = _slots_of(snapshot, breaks, left)
    wide = _slots_of(snapshot, _users_of(snapshot, near, left), left)
    rows = np.flatnonzero(left & wide[members.slot])
    slots = plain_slots(snapshot, rows.tolist())
    names = snapshot.hosts.names
    vm_hosts = {
        snapshot.vms.uuids[vm]: names[members.joined_host[row]]
        for row, vm in zip(rows.tolist(), members.vm[rows].tolist(), strict=True)
        if snapshot.vms.is_listed[vm]
    }
    row_of = {
        (snapshot.slots.names[members.slot[row]], snapshot.vms.uuids[members.vm[row]]): row
        for row in rows.tolist()
    }
    return [row_of[key] for key in memberships_to_remove(vm_hosts, slots)]


def _slots_of(snapshot: ZoneSnapshot, vms: BoolColumn, left: BoolColumn) -> BoolColumn:
    chosen = np.zeros(len(snapshot.slots), dtype=np.bool_)
    chosen[snapshot.members.slot[left & vms[snapshot.members.vm]]] = True
    return chosen


def _users_of(snapshot: ZoneSnapshot, slots: BoolColumn, left: BoolColumn) -> BoolColumn:
    chosen = np.zeros(len(snapshot.vms), dtype=np.bool_)
    chosen[snapshot.members.vm[left & slots[snapshot.members.slot]]] = True
    return chosen


def plain_slots(snapshot: ZoneSnapshot, rows: Iterable[int]) -> list[FailoverSlot]:
    """Return the reservations of some memberships, with those as their users, by row."""
    members, slots, names = snapshot.members, snapshot.slots, (*snapshot.hosts.names, "")
    users: dict[int, list[SlotUser]] = {}
    for row in rows:
        users.setdefault(int(members.slot[row]), []).append(
            SlotUser(
                vm_uuid=snapshot.vms.uuids[members.vm[row]],
                host=names[members.joined_host[row]],
                joined_at=float(members.ids[row]),
            )
        )
    return [
        FailoverSlot(name=slots.names[slot], host=names[slots.host[slot]], users=tuple(listed))
        for slot, listed in sorted(users.items())
    ]


def _outgrown(snapshot: ZoneSnapshot, left: BoolColumn) -> list[int]:
    """Return memberships of listed VMs that are larger than their reservation (16.8)."""
    members, vms, slots = snapshot.members, snapshot.vms, snapshot.slots
    does_not_fit = (vms.memory_bytes[members.vm] > slots.memory_bytes[members.slot]) | (
        vms.vcpus[members.vm] > slots.vcpus[members.slot]
    )
    rows: list[int] = np.flatnonzero(left & vms.is_listed[members.vm] & does_not_fit).tolist()
    return rows


def _surplus(snapshot: ZoneSnapshot, left: BoolColumn, frozen: BoolColumn) -> list[int]:
    """Return memberships beyond the need of their VM: what frees most goes, validated ones last.

    Source: spec failover, 17.6.
    """
    members, vms, slots = snapshot.members, snapshot.vms, snapshot.slots
    counts = left & ~frozen & slots.is_usable[members.slot]
    have = np.bincount(members.vm[counts], minlength=len(vms))
    over = (have > vms.required) & vms.is_listed
    users = np.bincount(members.slot[left], minlength=len(slots))
    removed: list[int] = []
    by_vm: dict[int, list[int]] = {}
    for row in np.flatnonzero(counts & over[members.vm]).tolist():
        by_vm.setdefault(int(members.vm[row]), []).append(row)
    for vm, rows in sorted(by_vm.items()):
        for _ in range(int(have[vm]) - int(vms.required[vm])):
            row = min(
                rows,
                key=lambda one: (
                    bool(members.is_validated[one]),
                    users[members.slot[one]] != 1,
                    int(vms.memory_bytes[members.vm[one]] - slots.memory_bytes[members.slot[one]]),
                    one,
                ),
            )
            rows.remove(row)
            users[members.slot[row]] -= 1
            removed.append(row)
    return removed


def _resized(snapshot: ZoneSnapshot, left: BoolColumn) -> tuple[Resize, ...]:
    """Return reservations that are larger than any user asks for.

    Source: spec failover, 17.6; users that are not listed keep a reservation as it is.
    """
    members, vms, slots = snapshot.members, snapshot.vms, snapshot.slots
    slot, vm = members.slot[left], members.vm[left]
    memory = np.zeros(len(slots), dtype=np.int64)
    vcpus = np.zeros(len(slots), dtype=np.int64)
    np.maximum.at(memory, slot, vms.asked_memory_bytes[vm])
    np.maximum.at(vcpus, slot, vms.asked_vcpus[vm])
    is_known = np.ones(len(slots), dtype=np.bool_)
    is_known[slot[~vms.is_listed[vm]]] = False
    users = np.bincount(slot, minlength=len(slots))
    memory = np.minimum(memory, slots.memory_bytes)
    vcpus = np.minimum(vcpus, slots.vcpus)
    shrinks = (
        is_known
        & (users > 0)
        & slots.is_usable
        & ((memory < slots.memory_bytes) | (vcpus < slots.vcpus))
    )
    return tuple(
        Resize(
            slot=row,
            memory_bytes=int(memory[row]),
            vcpus=int(vcpus[row]),
            users=int(users[row]),
        )
        for row in np.flatnonzero(shrinks).tolist()
    )


def _brake(snapshot: ZoneSnapshot, removals: list[Removal], options: PlanOptions) -> Brake | None:
    """Return why the input looks like a loss of data, None if it does not.

    Memberships of VMs that the cloud itself said are gone, or has elsewhere, end for no loss: of
    such a zone an empty list is true.

    Source: spec failover, 17.9.
    """
    members = len(snapshot.members)
    listed = snapshot.notes.get("vms_listed", int(np.count_nonzero(snapshot.vms.is_listed)))
    before = options.previous_vm_count
    lost = before - listed
    said_gone = snapshot.notes.get(MEMBERS_SAID_GONE, 0)
    missed = members - said_gone - snapshot.notes.get(MEMBERS_ELSEWHERE, 0)
    if missed and snapshot.notes.get("hosts_reporting") and not snapshot.notes.get("vms_reported"):
        return Brake(
            code="hosts_report_no_vms",
            message=f"no host reports a VM, although {members} memberships are known",
            facts={"memberships": members, "hosts_reporting": snapshot.notes["hosts_reporting"]},
        )
    if missed and not listed:
        return Brake(
            code="vm_list_empty",
            message=f"the VM list is empty, although {members} memberships are known",
            facts={"memberships": members, "vms_before": before},
        )
    if members and lost > options.brake_floor and lost > options.max_shrink_ratio * before:
        return Brake(
            code="vm_list_shrank",
            message=f"the VM list shrank from {before} to {listed} since the last run",
            facts={"vms_before": before, "vms_now": listed},
        )
    gone = sum(removal.reason is RemovalReason.GONE for removal in removals)
    believed = min(said_gone, gone)
    doubted = len(removals) - believed
    if doubted > max(options.brake_floor, options.max_removal_ratio * (members - believed)):
        return Brake(
            code="too_many_removals",
            message=f"{doubted} of {members - believed} memberships would go in one run",
            facts={"removals": doubted, "memberships": members - believed},
        )
    return None
