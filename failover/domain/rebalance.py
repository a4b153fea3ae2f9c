"""From the slots as they are to those of a shadow plan, make before break (spec failover, 17.4).

A step lets one VM join a slot of the plan, existing or new, and then leave one that the plan has
not for it. The rules hold for the state between the two, in which it has one slot more, and no VM
ever has fewer than before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from failover.domain.drill_state import DrillState
from scheduling.resources import ResourceVector

MayUse = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSlot:
    """A slot of the shadow plan.

    Attributes:
        number: Its number in the plan.
        host: Host that shall hold it.
        size: What it shall hold.
        users: VMs that shall share it.
    """

    number: int
    host: str
    size: ResourceVector
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceStep:
    """One VM changes its slot.

    Attributes:
        target: Number of the planned slot that it joins.
        joins: Name of the slot that stands for it; empty if the step makes it, or an earlier one.
        leaves: Name of the slot that it leaves; empty if it had too few.
    """

    vm: str
    target: int
    joins: str
    leaves: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancePlan:
    """Steps towards a shadow plan.

    Attributes:
        steps: In order.
        reserved_before: Memory of the slots before, in bytes.
        reserved_after: Memory of the slots after the steps.
        blocked: Memberships of the plan that cannot be reached now.
    """

    steps: tuple[RebalanceStep, ...]
    reserved_before: int
    reserved_after: int
    blocked: int


def plan_rebalance(
    state: DrillState, targets: Sequence[TargetSlot], *, most_steps: int, may_use: MayUse
) -> RebalancePlan:
    """Return steps from the slots of a zone to those of a shadow plan.

    Slots of the plan that equal an existing one in host and size are that one. Largest slots come
    first; what the rules or a host's room do not allow yet is tried again after other steps.

    Args:
        state: Hosts, VMs and slots as they are; the rules hold.
        targets: Slots of the plan.
        most_steps: How many steps to return at most.
        may_use: Whether a VM may run on a host, as the scheduler sees it.

    Source: spec failover, 17.4 ("Improving an existing plan").
    """
    work = _Rebalancing(state, targets, may_use)
    before = work.reserved
    progress = True
    while progress and len(work.steps) < most_steps:
        progress = work.one_pass(most_steps)
    return RebalancePlan(
        steps=tuple(work.steps),
        reserved_before=before,
        reserved_after=work.reserved,
        blocked=work.missing(),
    )


class _Rebalancing:
    """The zone while steps are planned."""

    def __init__(self, state: DrillState, targets: Sequence[TargetSlot], may_use: MayUse) -> None:
        self._state = state
        self._may_use = may_use
        self._targets = sorted(
            targets, key=lambda target: (-target.size.memory_bytes, target.number)
        )
        self._graph = state.sharing({name: slot.host for name, slot in state.slots.items()})
        self._users = self._graph.slot_vms
        self._size = {name: slot.size for name, slot in state.slots.items()}
        self._free = {name: host.free for name, host in state.hosts.items()}
        self._name_of = self._matched()
        self._wanted = self._wanted_slots()
        self.steps: list[RebalanceStep] = []

    @property
    def reserved(self) -> int:
        """Memory of the slots that are there."""
        return sum(size.memory_bytes for size in self._size.values())

    def missing(self) -> int:
        """Return how many memberships of the plan are not there."""
        return sum(
            user not in self._users.get(self._name_of[target.number], ())
            for target in self._targets
            for user in target.users
        )

    def one_pass(self, most_steps: int) -> bool:
        """Try every membership of the plan once; return whether any step was possible."""
        before = len(self.steps)
        for target in self._targets:
            for user in target.users:
                if len(self.steps) >= most_steps:
                    return False
                self._try(target, user)
        return len(self.steps) > before

    def _matched(self) -> dict[int, str]:
        """Return the slot that stands for each one of the plan; new names where none does."""
        taken: set[str] = set()
        names: dict[int, str] = {}
        for target in self._targets:
            alike = [
                name
                for name in self._state.slots_on.get(target.host, ())
                if self._size[name] == target.size
                and name not in taken
                and self._state.slots[name].is_usable
            ]
            shared = set(target.users)
            best = min(alike, key=lambda name: (-len(self._users[name] & shared), name), default="")
            names[target.number] = best or f"new-{target.number}"
            taken.add(best)
        return names

    def _wanted_slots(self) -> dict[str, set[str]]:
        wanted: dict[str, set[str]] = {}
        for target in self._targets:
            for user in target.users:
                wanted.setdefault(user, set()).add(self._name_of[target.number])
        return wanted

    def _try(self, target: TargetSlot, user: str) -> None:
        name = self._name_of[target.number]
        vm = self._state.vms.get(user)
        if vm is None or user in self._users.get(name, ()) or not vm.size.fits_into(target.size):
            return
        old = self._old_slot(user, target)
        lacks = len(self._graph.vm_slots.get(user, ())) < vm.required_count
        if (not old and not lacks) or not self._may_use(user, target.host):
            return
        is_new = name not in self._users
        if is_new and not target.size.fits_into(self._free[target.host]):
            return
        if is_new:
            self._add(name, target)
        if not self._graph.joined(user, vm.host, name, target.host):
            if is_new:
                self._drop(name)
            return
        if old:
            self._leave(user, old)
        self.steps.append(
            RebalanceStep(
                vm=user,
                target=target.number,
                joins="" if name not in self._state.slots else name,
                leaves=old,
            )
        )

    def _old_slot(self, user: str, target: TargetSlot) -> str:
        """Return the slot that a VM leaves for one of the plan.

        It is one that the plan has not for it: the one that it shares with most of its future
        partners, since two VMs may share one slot only; then the one with fewest users.
        """
        partners = set(target.users)
        old = self._graph.vm_slots.get(user, set()) - self._wanted[user]
        return min(
            old,
            key=lambda name: (
                -len(self._users[name] & partners),
                len(self._users[name]),
                name,
            ),
            default="",
        )

    def _leave(self, user: str, name: str) -> None:
        self._graph.remove(user, name, self._graph.slot_hosts[name])
        if not self._users[name]:
            self._drop(name)

    def _add(self, name: str, target: TargetSlot) -> None:
        self._graph.slot_hosts[name], self._size[name] = target.host, target.size
        self._users[name] = set()
        self._free[target.host] -= target.size

    def _drop(self, name: str) -> None:
        self._free[self._graph.slot_hosts[name]] += self._size[name]
        del self._graph.slot_hosts[name], self._size[name], self._users[name]
