"""What is left of coverage after VMs and failover slots moved off some hosts."""

from __future__ import annotations

from collections import Counter
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
    world = _World(state, gone, recreated)
    for uuid in sorted(destinations):
        if uuid in state.vms:
            world.move(uuid, destinations[uuid])
    lost = []
    for uuid, vm in state.vms.items():
        before = len(state.slots_of.get(uuid, ()))
        after = len(world.slots_of.get(uuid, ()))
        if after < min(before, vm.required_count):
            lost.append(CoverAfter(vm=uuid, required=vm.required_count, before=before, after=after))
    return tuple(lost)


class _World:
    """Slots, users and hosts while VMs move one after the other."""

    def __init__(
        self, state: DrillState, gone: Collection[str], recreated: Mapping[str, str]
    ) -> None:
        self._host_of = {uuid: vm.host for uuid, vm in state.vms.items()}
        self._slot_host = {
            name: recreated.get(name, slot.host)
            for name, slot in state.slots.items()
            if slot.host not in gone or name in recreated
        }
        self._users = {
            name: {user for user in state.slots[name].users if user in state.vms}
            for name in self._slot_host
        }
        self.slots_of: dict[str, set[str]] = {}
        for name, users in self._users.items():
            for user in users:
                self.slots_of.setdefault(user, set()).add(name)

    def move(self, uuid: str, host: str) -> None:
        """Move a VM; it rejoins its slots, in order of name, where the rules still hold."""
        slots = sorted(self.slots_of.pop(uuid, ()))
        for name in slots:
            self._users[name].discard(uuid)
        self._host_of[uuid] = host
        for name in slots:
            self._users[name].add(uuid)
            self.slots_of.setdefault(uuid, set()).add(name)
            if not all(self._keeps_rules(user) for user in self._users[name]):
                self._users[name].discard(uuid)
                self.slots_of[uuid].discard(name)

    def _keeps_rules(self, uuid: str) -> bool:
        roles = Counter((self._host_of[uuid],))
        for name in self.slots_of.get(uuid, ()):
            roles[self._slot_host[name]] += 1
            roles.update(self._host_of[user] for user in self._users[name] if user != uuid)
        return max(roles.values()) == 1
