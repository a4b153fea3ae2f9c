"""Small worlds for drills, in the specification's notation ``rA@3{a@1,b@2}``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from hypothesis import strategies as st

from failover.domain.drill_state import DrillHost, DrillSlot, DrillState, DrillVM
from scheduling.resources import GIB, ResourceVector

SLOT = re.compile(r"(\w+)@(\w+)\{([^}]*)\}")
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
