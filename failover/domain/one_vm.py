"""Reservations for one VM at once, not with the next run of the zone (spec failover, 13.6, 17.8).

The same rules, sizes and order of choice as for a whole zone, on what lies around one VM. What the
engine of a zone knows as bit sets is asked for here, a handful of sets for each reservation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from failover.domain.covering import (
    NO_COMPATIBLE_HOST,
    NO_ELIGIBLE_HOST,
    NO_RESOURCES,
    NO_ROOM,
    missing_counts,
)
from failover.domain.plan import (
    BoolColumn,
    CleaningPlan,
    CoverPlan,
    HostChooser,
    NewSlot,
    PlanOptions,
    ReuseOrder,
    Shortfall,
    ZonePlan,
)
from failover.domain.shelf import Size, share_limit
from failover.domain.zone_columns import ZoneSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A reservation that a VM may join as far as sizes and users go.

    Attributes:
        host: Row of its host.
        memory_bytes: Its size.
        vcpus: Likewise.
        users: How many VMs are in it.
    """

    key: int
    name: str
    host: int
    memory_bytes: int
    vcpus: int
    users: int


class SlotsAround(Protocol):
    """What a zone's reservations mean for one VM; hosts are rows, reservations are keys."""

    def closed_to(self, host: int) -> frozenset[int]:
        """Return the reservations that no VM of a host may join (``Kcol | Rcol`` of 17.5).

        They are on the host, or have a user whose list of hosts names it (7.3).
        """

    def touching(self, hosts: Collection[int]) -> frozenset[int]:
        """Return the reservations on some hosts, or with a user there (``Xcol | Rcol``)."""

    def sizes(self, memory_bytes: int, vcpus: int, *, below: int) -> Sequence[Size]:
        """Return the sizes of reservations that are at least as large, the tightest first.

        Sizes of which every reservation has ``below`` users or more may be left out.
        """

    def offers(self, size: Size, *, without: Collection[int], below: int) -> Sequence[Offer]:
        """Return reservations of a size with fewer users than ``below``, by key."""

    def confirmed(self, offers: Sequence[Offer]) -> Sequence[Offer] | None:
        """Return offers as they are now; None if one is not usable or has changed."""

    def user_hosts(self, key: int) -> frozenset[int]:
        """Return the hosts of the users of a reservation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneVmPlan:
    """What one VM gets.

    Attributes:
        snapshot: The VM and what it was planned on, with the reservations that it joins.
        plan: What to write; joins and new reservations are numbered by that snapshot.
    """

    snapshot: ZoneSnapshot
    plan: ZonePlan


def plan_one_vm(
    snapshot: ZoneSnapshot,
    vm: int,
    around: SlotsAround,
    chooser: HostChooser,
    options: PlanOptions,
    *,
    most_required: int,
    barred: Collection[int] = (),
) -> OneVmPlan | None:
    """Return the reservations that a VM joins and those that are made for it.

    All missing ones are handed out together, each from those that exist before a new one is made:
    the tightest size, there the fewest users, then the host with most free memory, then the lowest
    key. How many hosts a reservation blocks for others is not looked at, as a run of the zone does.

    Args:
        snapshot: All hosts of the zone; the VM with its reservations and their users. Others of
            its VMs and reservations need not be there. The VM's memberships are all to stay.
        vm: Row of the VM.
        around: What the other reservations mean for it.
        chooser: What the scheduler says about hosts.
        options: What may be done; limits on VMs and hosts of a run are not looked at.
        most_required: Most reservations that a VM of the zone needs.
        barred: Rows of hosts that are not to be proposed to it.

    Returns:
        The plan; None if a reservation that it stands on is not as ``around`` knew it.

    Source: spec failover, 9.3, 11.1, 12.1, 17.4, 17.5.
    """
    missing = int(missing_counts(snapshot, np.ones(len(snapshot.members), dtype=np.bool_))[vm])
    work = _OneVm(snapshot, vm, around, chooser, options, most_required, barred)
    problem = work.cover(missing) if missing else None
    return work.planned(missing, problem)


class _OneVm:
    """One VM's handing out; the only mutable state, gone when it ends."""

    def __init__(  # noqa: PLR0917 - the arguments of its only caller
        self,
        snapshot: ZoneSnapshot,
        vm: int,
        around: SlotsAround,
        chooser: HostChooser,
        options: PlanOptions,
        most_required: int,
        barred: Collection[int],
    ) -> None:
        self._snapshot, self._vm = snapshot, vm
        self._around, self._chooser, self._options = around, chooser, options
        vms, hosts = snapshot.vms, snapshot.hosts
        self._class = int(vms.class_code[vm])
        self._size = int(vms.asked_memory_bytes[vm]), int(vms.asked_vcpus[vm])
        self._limit = share_limit(options.max_users, len(hosts), most_required)
        self._barred = frozenset(barred)
        self._free_memory = hosts.free_memory_bytes()
        self._is_sound = (self._free_memory >= 0) & (hosts.free_vcpus() >= 0)
        self._listed: set[int] = set()
        self._blocked: set[int] = set()
        self._joined: list[Offer] = []
        self._created: list[tuple[int, dict[str, int]]] = []
        self._order: list[tuple[bool, int]] = []

    def cover(self, missing: int) -> Shortfall | None:
        """Give the VM its missing reservations; return what stopped it, None if nothing did."""
        if not all(self._size):
            return self._short(NO_RESOURCES)
        own = int(self._snapshot.vms.host[self._vm])
        self._blocked |= self._around.closed_to(own)
        self._list({own, *self._hosts_of_own_slots()})
        for _ in range(missing):
            problem = self._one_more()
            if problem is not None:
                return problem
        return None

    def planned(self, missing: int, problem: Shortfall | None) -> OneVmPlan | None:
        """Return what was handed out, numbered; None if some of it is not there any more."""
        joined = self._around.confirmed(self._joined) if self._joined else ()
        if joined is None:
            return None
        first = len(self._snapshot.slots)
        fresh = first + len(self._joined)
        joins = tuple(
            (self._vm, (fresh if is_new else first) + place) for is_new, place in self._order
        )
        created = tuple(
            NewSlot(
                number=fresh + place,
                host=host,
                vm=self._vm,
                memory_bytes=self._size[0],
                vcpus=self._size[1],
                facts=facts,
            )
            for place, (host, facts) in enumerate(self._created)
        )
        cover = CoverPlan(
            joins=joins,
            created=created,
            shortfalls=() if problem is None else (problem,),
            missing_vms=int(missing > 0),
            processed_vms=int(missing > 0),
            needed=missing,
            reused=len(self._joined),
            failed=int(problem is not None),
        )
        return OneVmPlan(
            snapshot=_with_offers(self._snapshot, joined),
            plan=ZonePlan(cleaning=CleaningPlan(), cover=cover),
        )

    def _hosts_of_own_slots(self) -> set[int]:
        """Return the hosts of the VM's reservations and of everybody it shares one with."""
        members, slots = self._snapshot.members, self._snapshot.slots
        own = np.unique(members.slot[members.vm == self._vm])
        others = np.isin(members.slot, own) & (members.vm != self._vm)
        return {*slots.host[own].tolist(), *members.joined_host[others].tolist()} - {-1}

    def _list(self, hosts: set[int]) -> None:
        """Add hosts to the VM's list (7.3)."""
        added = hosts - self._listed
        self._listed |= added
        if added:
            self._blocked |= self._around.touching(added)

    def _one_more(self) -> Shortfall | None:
        compatible = self._chooser.compatible(self._class)
        joinable = compatible & self._is_sound
        joinable[sorted(self._barred)] = False
        offer = self._best_offer(joinable)
        if offer is None:
            return self._create(int(compatible.sum()))
        self._blocked.add(offer.key)
        self._order.append((False, len(self._joined)))
        self._joined.append(offer)
        self._list({offer.host, *self._around.user_hosts(offer.key)})
        return None

    def _best_offer(self, joinable: BoolColumn) -> Offer | None:
        order = self._options.reuse_order
        found: list[Offer] = []
        for size in self._around.sizes(*self._size, below=self._limit):
            found += [
                offer
                for offer in self._around.offers(size, without=self._blocked, below=self._limit)
                if joinable[offer.host]
            ]
            if found and order is not ReuseOrder.MOST_USERS:
                break
        if order is ReuseOrder.MOST_USERS:
            return min(found, key=lambda one: (-one.users, one.key), default=None)
        if order is ReuseOrder.OLDEST:
            return min(found, key=lambda one: one.key, default=None)
        free = self._free_memory
        return min(found, key=lambda one: (one.users, -int(free[one.host]), one.key), default=None)

    def _create(self, compatible: int) -> Shortfall | None:
        scores = self._chooser.scores(self._class, *self._size)
        allowed = scores > -np.inf
        facts = {"compatible": compatible, "with_room": int(allowed.sum())}
        if not compatible:
            return self._short(NO_COMPATIBLE_HOST, facts)
        if not facts["with_room"]:
            return self._short(NO_ROOM, facts)
        allowed[sorted(self._listed | self._barred)] = False
        facts["eligible"] = int(allowed.sum())
        if not facts["eligible"]:
            return self._short(NO_ELIGIBLE_HOST, facts)
        hosts, rows = self._snapshot.hosts, np.flatnonzero(allowed)
        share = hosts.failover_memory_bytes[rows] / np.maximum(
            hosts.effective_memory_bytes[rows], 1
        )
        share = -share if self._options.consolidate else share
        rows = rows[share == share.min()]
        host = int(rows[int(scores[rows].argmax())])
        self._chooser.place(host, self._class, *self._size)
        self._order.append((True, len(self._created)))
        self._created.append((host, facts))
        self._list({host})
        return None

    def _short(self, reason: str, facts: dict[str, int] | None = None) -> Shortfall:
        have = int(self._snapshot.cover[self._vm]) + len(self._order)
        return Shortfall(vm=self._vm, current=have, reason=reason, facts=facts or {})


def _with_offers(snapshot: ZoneSnapshot, offers: Sequence[Offer]) -> ZoneSnapshot:
    """Return the zone with further reservations; their users are not told."""
    slots, count = snapshot.slots, len(offers)
    return replace(
        snapshot,
        slots=replace(
            slots,
            ids=np.append(slots.ids, np.array([one.key for one in offers], dtype=np.int64)),
            names=(*slots.names, *(one.name for one in offers)),
            host=np.append(slots.host, np.array([one.host for one in offers], dtype=np.int32)),
            memory_bytes=np.append(
                slots.memory_bytes, np.array([one.memory_bytes for one in offers], dtype=np.int64)
            ),
            vcpus=np.append(slots.vcpus, np.array([one.vcpus for one in offers], dtype=np.int64)),
            is_usable=np.append(slots.is_usable, np.ones(count, dtype=np.bool_)),
            is_consuming=np.append(slots.is_consuming, np.zeros(count, dtype=np.bool_)),
        ),
    )
