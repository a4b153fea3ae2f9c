"""Small worlds for drills, in the specification's notation ``rA@3{a@1,b@2}``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import strategies as st

from failover.domain.drill_state import DrillHost, DrillSlot, DrillState, DrillVM
from failover.domain.zone_columns import Int64Column, MemberColumns, SlotColumns, ZoneSnapshot
from scheduling.resources import GIB, ZERO, ResourceVector
from tests.domain.failover.zones import zone_of

SLOT = re.compile(r"(\w+)@(\w+)\{([^}]*)\}")
MOSTLY = st.sampled_from((True, True, True, False))
BIG = ResourceVector(memory_bytes=1000 * GIB, vcpus=1000)


def gib(memory_gib: int, vcpus: int = 1) -> ResourceVector:
    return ResourceVector(memory_bytes=memory_gib * GIB, vcpus=vcpus)


def world(
    slots: str,
    *,
    vms: Mapping[str, str] | None = None,
    hosts: Sequence[str] = (),
    racks: Mapping[str, str] | None = None,
    zones: Mapping[str, str] | None = None,
    required: int = 2,
    sizes: Mapping[str, int] | None = None,
    slot_sizes: Mapping[str, int] | None = None,
) -> DrillState:
    """Return a state from slots in the specification's notation.

    Args:
        slots: Slots with their users and the hosts these run on.
        vms: Further VMs and their hosts.
        hosts: Further hosts.
        racks: Host to rack.
        zones: Host to zone; ``az-a`` unless told.
        required: Slots that every VM must have.
        sizes: VM to its memory in GiB; 4 unless told.
        slot_sizes: Slot to its memory in GiB; 4 unless told.
    """
    placed = dict(vms or {})
    held: list[DrillSlot] = []
    names = set(hosts)
    for name, host, listed in SLOT.findall(slots):
        users = dict(entry.split("@") for entry in listed.split(",") if entry)
        placed.update(users)
        names.add(host)
        size = gib((slot_sizes or {}).get(name, 4))
        held.append(DrillSlot(name=name, host=host, size=size, users=tuple(users)))
    names.update(placed.values())
    return DrillState.of(
        (
            DrillHost(
                name=name,
                zone=(zones or {}).get(name, "az-a"),
                rack=(racks or {}).get(name, ""),
                effective=BIG,
            )
            for name in names
        ),
        (
            DrillVM(
                uuid=uuid,
                host=host,
                size=gib((sizes or {}).get(uuid, 4)),
                required_count=required,
            )
            for uuid, host in placed.items()
        ),
        held,
    )


def rules_hold(state: DrillState) -> bool:
    """Check the five rules as they are written (spec failover, 7.2)."""
    slots_of = {
        uuid: [slot for slot in state.slots.values() if uuid in slot.users] for uuid in state.vms
    }
    host_of = {uuid: vm.host for uuid, vm in state.vms.items()}
    for uuid, mine in slots_of.items():
        places = [slot.host for slot in mine]
        sharers = {user for slot in mine for user in slot.users} - {uuid}
        if host_of[uuid] in places or len(set(places)) != len(mine):
            return False
        for slot in mine:
            for one, other in combinations(slot.users, 2):
                if host_of[one] == host_of[other]:
                    return False
        if any(host_of[user] in {host_of[uuid], *places} for user in sharers):
            return False
        if len({host_of[user] for user in sharers}) != len(sharers):
            return False
        for user in sharers:
            if sum(user in slot.users for slot in mine) != 1:
                return False
    return True


@st.composite
def states(draw: st.DrawFn, *, are_valid: bool) -> DrillState:
    """Draw a small zone; with ``are_valid`` every membership keeps the five rules."""
    hosts = [str(number) for number in range(draw(st.integers(3, 7)))]
    vms = {f"v{number}": draw(st.sampled_from(hosts)) for number in range(draw(st.integers(1, 7)))}
    sizes = {uuid: draw(st.sampled_from((4, 4, 8))) for uuid in vms}
    required = {uuid: draw(st.integers(0, 3)) for uuid in vms}
    slots = [
        DrillSlot(
            name=f"r{number}",
            host=draw(st.sampled_from(hosts)),
            size=gib(draw(st.sampled_from((4, 8, 8)))),
            users=(),
            is_usable=draw(st.sampled_from((True, True, True, False))),
        )
        for number in range(draw(st.integers(0, 8)))
    ]

    def build() -> DrillState:
        return DrillState.of(
            (
                DrillHost(name=name, zone="az-a", rack=f"k{int(name) % 3}", effective=BIG)
                for name in hosts
            ),
            (
                DrillVM(uuid=uuid, host=host, size=gib(sizes[uuid]), required_count=required[uuid])
                for uuid, host in vms.items()
            ),
            slots,
        )

    state = build()
    for place, uuid in draw(
        st.lists(
            st.tuples(st.integers(0, max(0, len(slots) - 1)), st.sampled_from(sorted(vms))),
            max_size=16,
            unique=True,
        )
    ):
        if not slots:
            break
        before = slots[place]
        if uuid in before.users:
            continue
        slots[place] = DrillSlot(
            name=before.name,
            host=before.host,
            size=before.size,
            users=(*before.users, uuid),
            is_usable=before.is_usable,
        )
        after = build()
        if are_valid and not rules_hold(after):
            slots[place] = before
        else:
            state = after
    return state


@st.composite
def zones(draw: st.DrawFn, name: str = "az-a", foreign: tuple[str, ...] = ()) -> ZoneSnapshot:
    """Draw a zone with dead, full and foreign hosts, and slots of every kind.

    Args:
        name: Name of the zone, with which those of its hosts, VMs and slots begin.
        foreign: VMs of other zones, which may have slots here.
    """
    hosts = [f"{name}-h{number}" for number in range(draw(st.integers(1, 5)))]
    places = st.sampled_from([*hosts, ""])
    uuids = [f"{name}-v{number}" for number in range(draw(st.integers(0, 6)))]
    homes = {uuid: draw(places) for uuid in uuids} | dict.fromkeys(foreign, "")
    required = {uuid: draw(st.integers(0, 2)) for uuid in homes}
    sizes = {uuid: draw(st.sampled_from((4, 8))) for uuid in homes}
    zone = zone_of(hosts, homes, required=required, vm_gib=sizes)
    number = len(hosts)
    held = [draw(st.sampled_from((0, 0, 2000))) * GIB for _ in hosts]
    zone = replace(
        zone,
        zone=name,
        hosts=replace(
            zone.hosts,
            racks=tuple(draw(st.sampled_from(("", "k1", "k1", "k2"))) for _ in hosts),
            is_ready=np.array([draw(MOSTLY) for _ in hosts]),
            failover_memory_bytes=np.array(held, dtype=np.int64),
            used_vcpus=np.array([draw(st.sampled_from((0, 0, 20_000))) for _ in hosts]),
        ),
        vms=replace(zone.vms, is_owed=np.array([draw(MOSTLY) for _ in homes], dtype=bool)),
    )
    slots = range(draw(st.integers(0, 6)))
    pairs = draw(
        st.lists(
            st.tuples(
                st.integers(0, max(0, len(slots) - 1)), st.integers(0, max(0, len(homes) - 1))
            ),
            max_size=12,
            unique=True,
        )
    )
    if not (slots and homes):
        pairs = []
    return replace(
        zone,
        slots=SlotColumns(
            ids=np.arange(len(slots)),
            names=tuple(f"{name}-r{one}" for one in slots),
            host=np.array([draw(st.integers(-1, number - 1)) for _ in slots], dtype=np.int32),
            memory_bytes=np.array(
                [draw(st.sampled_from((4, 8))) * GIB for _ in slots], dtype=np.int64
            ),
            vcpus=np.array([draw(st.sampled_from((2, 4, 4, 4))) for _ in slots], dtype=np.int64),
            is_usable=np.array([draw(MOSTLY) for _ in slots], dtype=np.bool_),
            is_consuming=np.zeros(len(slots), dtype=np.bool_),
        ),
        members=_members(pairs),
    )


def columns_of(state: DrillState) -> ZoneSnapshot:
    """Return a state of one zone as columns; users that are no VMs of it are on no host."""
    (name,) = {host.zone for host in state.hosts.values()}
    row = {host: number for number, host in enumerate(state.hosts)}
    homes = {vm.uuid: vm.host for vm in state.vms.values()}
    homes |= {user: "" for slot in state.slots.values() for user in slot.users if user not in homes}
    zone = zone_of(
        list(state.hosts), homes, required={u: _required(state, u) for u in homes}, vm_gib=0
    )
    sizes = [state.vms[u].size if u in state.vms else ZERO for u in zone.vms.uuids]
    vm_row = {uuid: number for number, uuid in enumerate(zone.vms.uuids)}
    slots, hosts = list(state.slots.values()), list(state.hosts.values())
    pairs = [(number, vm_row[user]) for number, slot in enumerate(slots) for user in slot.users]
    return replace(
        zone,
        zone=name,
        hosts=replace(
            zone.hosts,
            racks=tuple(host.rack for host in hosts),
            is_ready=np.array([host.is_alive for host in hosts], dtype=np.bool_),
            effective_memory_bytes=_ints(host.effective.memory_bytes for host in hosts),
            effective_vcpus=_ints(host.effective.vcpus for host in hosts),
            used_memory_bytes=_ints(host.allocated.memory_bytes for host in hosts),
            used_vcpus=_ints(host.allocated.vcpus for host in hosts),
            held_memory_bytes=_ints(host.blocked.memory_bytes for host in hosts),
            held_vcpus=_ints(host.blocked.vcpus for host in hosts),
        ),
        vms=replace(
            zone.vms,
            memory_bytes=_ints(size.memory_bytes for size in sizes),
            vcpus=_ints(size.vcpus for size in sizes),
        ),
        slots=SlotColumns(
            ids=np.arange(len(slots)),
            names=tuple(state.slots),
            host=np.array([row[slot.host] for slot in slots], dtype=np.int32),
            memory_bytes=_ints(slot.size.memory_bytes for slot in slots),
            vcpus=_ints(slot.size.vcpus for slot in slots),
            is_usable=np.array([slot.is_usable for slot in slots], dtype=np.bool_),
            is_consuming=np.zeros(len(slots), dtype=np.bool_),
        ),
        members=_members(pairs),
    )


def _required(state: DrillState, uuid: str) -> int:
    return state.vms[uuid].required_count if uuid in state.vms else 0


def _ints(values: Iterable[int]) -> Int64Column:
    return np.array(list(values), dtype=np.int64)


def _members(pairs: Sequence[tuple[int, int]]) -> MemberColumns:
    """Return members from rows of slots and VMs."""
    return MemberColumns(
        ids=np.arange(len(pairs)),
        slot=np.array([slot for slot, _ in pairs], dtype=np.int32),
        vm=np.array([vm for _, vm in pairs], dtype=np.int32),
        joined_host=np.full(len(pairs), -1, dtype=np.int32),
        is_validated=np.zeros(len(pairs), dtype=np.bool_),
    )
