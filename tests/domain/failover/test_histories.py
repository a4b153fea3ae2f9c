"""Rules and survival after any history of a zone (spec failover, 17.1, 17.2, 18.4).

Hosts come, die, return and go; VMs come, go, move, stop and are resized; users join and leave
between the runs, as other writers let them; and the loop runs. What is checked knows nothing of the
code under test: the five rules as they are written, and every way to give reservations out.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from failover.domain.cleaning import plan_cleaning
from failover.domain.covering import plan_zone
from failover.domain.plan import PlanOptions, ReuseOrder, ZonePlan
from failover.domain.shelf import share_limit
from failover.domain.slots import FailoverSlot, SlotUser
from failover.domain.zone_columns import ZoneSnapshot
from hosts.domain.vm import VM
from tests.domain.failover.oracle import (
    five_rules_hold,
    may_join,
    private_survivors,
    simultaneous_places,
    slots_of,
)
from tests.domain.failover.zones import GIB, OpenChooser, zone_of

HOST_GIB = 64
SIZES_GIB = (4, 8, 16)
MOST_HOSTS = 7
MOST_USERS = 20

KINDS = (
    *("start", "start", "start", "vanish", "move", "move", "resize", "stop"),
    *("join", "leave", "host dies", "host returns", "host goes", "host comes"),
)

happenings = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 1000), st.integers(0, 1000)), max_size=12
)


def applied(snapshot: ZoneSnapshot, plan: ZonePlan) -> list[FailoverSlot]:
    """Return the reservations after a plan, in plain values."""
    removed = {one.member for one in plan.cleaning.removals}
    gone = set(plan.cleaning.emptied)
    users: dict[int, list[SlotUser]] = {row: [] for row in range(len(snapshot.slots))}
    users |= {slot.number: [] for slot in plan.cover.created}
    members, names = snapshot.members, snapshot.hosts.names
    clock = 0
    for row in range(len(members)):
        if row not in removed:
            clock += 1
            users[int(members.slot[row])].append(
                SlotUser(
                    vm_uuid=snapshot.vms.uuids[members.vm[row]],
                    host=names[members.joined_host[row]],
                    joined_at=clock,
                )
            )
    for vm, number in plan.cover.joins:
        clock += 1
        host = names[snapshot.vms.host[vm]]
        users[number].append(SlotUser(vm_uuid=snapshot.vms.uuids[vm], host=host, joined_at=clock))
    slots = snapshot.slots
    found = {
        row: FailoverSlot(
            name=slots.names[row],
            host=names[slots.host[row]],
            memory_bytes=int(slots.memory_bytes[row]),
        )
        for row in range(len(slots))
        if row not in gone
    }
    known = {*slots.names}
    fresh = (f"n{number}" for number in range(10_000) if f"n{number}" not in known)
    for slot in plan.cover.created:
        found[slot.number] = FailoverSlot(
            name=next(fresh), host=names[slot.host], memory_bytes=slot.memory_bytes
        )
    for resize in plan.cleaning.resized:
        found[resize.slot] = replace(found[resize.slot], memory_bytes=resize.memory_bytes)
    return [replace(slot, users=tuple(users[number])) for number, slot in found.items()]


def assert_survivable(
    slots: Sequence[FailoverSlot], hosts: Sequence[str], gib: Mapping[str, int], most: int
) -> None:
    """Every failure of at most ``most`` hosts is survived by whoever is covered for it.

    A VM is covered for as many hosts as it has reservations. Each covered VM has a private place,
    and there is a way to give all of them places at once, found by trying them all.
    """
    users = {user.vm_uuid: user.host for slot in slots for user in slot.users}
    count = {uuid: sum(slot.host_of(uuid) is not None for slot in slots) for uuid in users}
    for size in range(1, most + 1):
        for failed in combinations(hosts, size):
            affected = [uuid for uuid, host in users.items() if host in failed]
            covered = [uuid for uuid in affected if count[uuid] >= size]
            for uuid in covered:
                left = private_survivors(slots, uuid, frozenset(failed))
                assert left >= count[uuid] - (size - 1) >= 1
            places = simultaneous_places(slots, covered, frozenset(failed), gib)
            assert places is not None, (failed, covered)
            assert len(set(places.values())) == len(covered)


@dataclass(slots=True)
class World:
    """A small zone and what is true of it now."""

    hosts: list[str]
    required: int
    vms: dict[str, str] = field(default_factory=dict)
    gib: dict[str, int] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    slots: list[FailoverSlot] = field(default_factory=list)
    made: int = 0
    before: dict[str, set[str]] = field(default_factory=dict)
    """Who used each reservation when the last run began."""

    def happen(self, kind: str, one: int, other: int) -> None:
        """Let something happen; what cannot happen now does not."""
        host = self.hosts[other % len(self.hosts)]
        if kind.startswith("host"):
            self._host(kind, host)
        elif kind == "start":
            uuid = f"v{len(self.gib)}"
            self.gib[uuid] = SIZES_GIB[one % 3]
            self.vms[uuid] = host
        elif self.vms:
            uuid = sorted(self.vms)[one % len(self.vms)]
            if kind == "move":
                self.vms[uuid] = host
            elif kind == "resize":
                self.gib[uuid] = SIZES_GIB[other % 3]
            elif kind == "stop":
                self.stopped ^= {uuid}
            elif kind == "vanish":
                del self.vms[uuid]
            else:
                self._membership(kind, uuid, other)

    def _host(self, kind: str, host: str) -> None:
        if kind == "host dies":
            self.dead.add(host)
        elif kind == "host returns":
            self.dead.discard(host)
        elif kind == "host goes" and len(self.hosts) > 2:
            self.hosts.remove(host)  # its VMs are still listed, on a host outside
        elif kind == "host comes" and len(self.hosts) < MOST_HOSTS:
            self.made += 1
            self.hosts.append(f"new{self.made}")

    def _membership(self, kind: str, uuid: str, other: int) -> None:
        """Let a validator take a VM out of a reservation, or another writer put it into one."""
        vm = VM(vm_uuid=uuid, host=self.vms[uuid])
        if kind == "leave":
            mine = [slot for slot in self.slots if slot.host_of(uuid) is not None]
        else:
            size = self.gib[uuid] * GIB
            mine = [
                slot
                for slot in self.slots
                if (slot.memory_bytes or 0) >= size and may_join(vm, slot, self.slots)
            ]
            mine = [s for s in mine if five_rules_hold(self._changed(s, self._joined(s, vm)))]
        if mine:
            slot = mine[other % len(mine)]
            after = slot.left([uuid]) if kind == "leave" else self._joined(slot, vm)
            self.slots = self._changed(slot, after)

    def _joined(self, slot: FailoverSlot, vm: VM) -> FailoverSlot:
        return slot.joined(SlotUser(vm_uuid=vm.vm_uuid, host=vm.host, joined_at=len(slot.users)))

    def _changed(self, before: FailoverSlot, after: FailoverSlot) -> list[FailoverSlot]:
        return [after if slot.name == before.name else slot for slot in self.slots]

    def snapshot(self) -> ZoneSnapshot:
        """Return the zone as the loop reads it."""
        recorded = {user.vm_uuid for slot in self.slots for user in slot.users}
        everybody = {*self.vms, *recorded}
        zone = zone_of(
            self.hosts,
            self.vms,
            self.slots,
            required=dict.fromkeys(everybody, self.required),
            vm_gib={uuid: self.gib[uuid] for uuid in everybody},
            host_gib=HOST_GIB,
        )
        owed = np.array([uuid not in self.stopped for uuid in zone.vms.uuids], dtype=np.bool_)
        return replace(zone, vms=replace(zone.vms, is_owed=owed))

    def run(self, options: PlanOptions) -> ZonePlan:
        """Run the loop once; dead hosts take nothing."""
        self.before = {one.name: {user.vm_uuid for user in one.users} for one in self.slots}
        snapshot = self.snapshot()
        up = np.array([name not in self.dead for name in snapshot.hosts.names], dtype=np.bool_)
        chooser = OpenChooser(snapshot, {0: up})
        plan = plan_zone(snapshot, plan_cleaning(snapshot, options), chooser, options)
        self.slots = applied(snapshot, plan)
        return plan

    def assert_sound(self) -> None:
        """What must hold after a run.

        Other writers may put more users into a reservation than the loop would; it adds none then.
        """
        assert five_rules_hold(self.slots)
        assert_survivable(self.slots, self.hosts, self.gib, self.required)
        limit = share_limit(MOST_USERS, MOST_HOSTS, self.required)
        for slot in self.slots:
            assert slot.users
            assert slot.host in self.hosts
            assert slot.memory_bytes == max(self.gib[user.vm_uuid] for user in slot.users) * GIB
            users = {user.vm_uuid for user in slot.users}
            assert len(users) <= limit or users <= self.before[slot.name]
            for user in slot.users:
                assert self.vms[user.vm_uuid] == user.host
        for uuid, host in self.vms.items():
            have = sum(slot.host_of(uuid) is not None for slot in self.slots)
            assert have <= (self.required if host in self.hosts else 0)


IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


@settings(max_examples=2000 if IS_THOROUGH else 150, deadline=None)
@given(
    st.integers(3, MOST_HOSTS),
    st.sampled_from([1, 2, 2, 3]),
    st.lists(happenings, min_size=1, max_size=5),
    st.sampled_from(list(ReuseOrder)),
)
def test_rules_hold_and_every_failure_is_survivable_after_any_history(
    host_count: int,
    required: int,
    history: list[list[tuple[str, int, int]]],
    order: ReuseOrder,
) -> None:
    world = World(hosts=[str(number) for number in range(host_count)], required=required)
    for number in range(host_count):
        world.happen("start", number, number)
    options = PlanOptions(brake_floor=10_000, reuse_order=order, is_confirmed=True)
    for moves in history:
        for kind, one, other in moves:
            world.happen(kind, one, other)
        first = world.run(options)
        world.assert_sound()
        # What cleaning frees is there for the next run, which may cover who came off short.
        second = world.run(options)
        assert not second.cleaning.removals
        assert not second.cover.joins or first.cover.shortfalls
        world.assert_sound()


def test_zone_with_room_is_covered_entirely_whatever_moved() -> None:
    world = World(hosts=[str(number) for number in range(MOST_HOSTS)], required=1)
    options = PlanOptions(brake_floor=10_000, is_confirmed=True)
    for number in range(MOST_HOSTS):
        world.happen("start", number, number)
    for number in range(20):
        world.happen("move", number, 3 * number)
        plan = world.run(options)
        assert not plan.cover.shortfalls
        assert {user.vm_uuid for slot in world.slots for user in slot.users} == set(world.vms)
        world.assert_sound()


@pytest.mark.parametrize(
    ("slots", "failed", "gib", "is_possible"),
    [
        pytest.param("r@3{a@1,b@2}", "1", 4, True, id="one for one"),
        pytest.param("r@3{a@1,b@2}", "12", 4, False, id="two want the same"),
        pytest.param("r@3{a@1,b@2}, q@4{a@1}", "12", 4, True, id="another for one of them"),
        pytest.param("r@3{a@1}", "13", 4, False, id="its host failed too"),
        pytest.param("r@3{a@1}", "1", 8, False, id="too small"),
        pytest.param("r@3{a@1,b@2}, q@4{a@1,c@5}, p@6{b@2,c@5}", "125", 4, True, id="a circle"),
    ],
)
def test_brute_force_finds_places_if_there_are_any(
    slots: str, failed: Collection[str], gib: int, is_possible: bool
) -> None:
    held = slots_of(slots, memory_bytes=4 * GIB)
    users = {user.vm_uuid: user.host for slot in held for user in slot.users}
    affected = [uuid for uuid, host in users.items() if host in failed]
    places = simultaneous_places(held, affected, frozenset(failed), dict.fromkeys(users, gib))
    assert (places is not None) is is_possible
