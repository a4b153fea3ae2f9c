"""What is left of coverage after VMs and failover slots moved off some hosts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from failover.domain.drill_state import DrillState


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverAfter:
    """A VM that a drain leaves with fewer failover slots than it needs.

    Attributes:
        required: Slots it must have.
        before: Slots it has.
        after: Slots it keeps by the rules.
    """

    vm: str
    required: int
    before: int
    after: int


def cover_after(
    state: DrillState,
    gone: Collection[str],
    destinations: Mapping[str, str],
    recreated: Mapping[str, str],
) -> tuple[CoverAfter, ...]:
    """Return the VMs that lose failover slots which they need.

    A VM that moves stays in a slot as long as the five rules hold with its new host; slots on the
    hosts are lost unless they are made again elsewhere.

    Args:
        state: Hosts, VMs and slots before.
        gone: Hosts that are drained.
        destinations: VM that moves -> its new host.
        recreated: Slot on one of the hosts -> host where it is made again.

    Returns:
        VMs in order of uuid.
    """
    slot_hosts = {
        name: recreated.get(name, slot.host)
        for name, slot in state.slots.items()
        if slot.host not in gone or name in recreated
    }
    graph = state.sharing(slot_hosts)
    for uuid in sorted(state.vms.keys() & destinations):
        names = sorted(graph.vm_slots.get(uuid, ()))
        for name in names:
            graph.remove(uuid, name, slot_hosts[name])
        for name in names:
            graph.joined(uuid, destinations[uuid], name, slot_hosts[name])
    lost = []
    for uuid, vm in state.vms.items():
        before = len(state.slots_of.get(uuid, ()))
        after = len(graph.vm_slots.get(uuid, ()))
        if after < min(before, vm.required_count):
            lost.append(CoverAfter(vm=uuid, required=vm.required_count, before=before, after=after))
    return tuple(lost)
