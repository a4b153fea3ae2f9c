"""From the slots as they are to those of a shadow plan, one VM at a time (spec failover, 17.4).

A VM changes all its slots at once: it joins those that the plan has for it and leaves all others.
What it shares then is a part of what it shares in the plan, and what everybody else shares is a
part of what they shared before; so the rules hold after any number of VMs in any order, as they
hold before and in the plan. Only room can stand in the way: the new slots need theirs while the old
ones are still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from failover.domain.drill_state import DrillState
from failover.domain.rebalance import MayUse, TargetSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class VMExchange:
    """A VM changes its slots.

    Attributes:
        targets: Numbers of the planned slots that it joins, ascending.
    """

    vm: str
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePlan:
    """VMs that change their slots.

    Attributes:
        exchanges: In order.
        standing: Number of a planned slot -> name of the slot that is it already.
        reserved_before: Memory of the slots before, in bytes.
        reserved_after: Memory of the slots after the exchanges.
        blocked: VMs of the plan that cannot change now: no room, or they may not use a host.
        is_cut: Whether VMs are left for the next time because there would be too many.
    """

    exchanges: tuple[VMExchange, ...]
    standing: Mapping[int, str]
    reserved_before: int
    reserved_after: int
    blocked: int
    is_cut: bool


def plan_exchange(
    state: DrillState, targets: Sequence[TargetSlot], *, most: int, may_use: MayUse
) -> ExchangePlan:
    """Return which VMs change their slots, in an order in which there is room for each.

    Args:
        state: Hosts, VMs and slots as they are; the rules hold.
        targets: Slots of the plan; the rules hold there as well.
        most: Most VMs to return.
        may_use: Whether a VM may run on a host, as the scheduler sees it.
    """
    work = _Exchanging(state, targets, may_use)
    before = work.reserved
    progress = True
    while progress and len(work.exchanges) < most:
        progress = work.one_pass(most)
    return ExchangePlan(
        exchanges=tuple(work.exchanges),
        standing=work.standing,
        reserved_before=before,
        reserved_after=work.reserved,
        blocked=len(work.pending) if len(work.exchanges) < most else 0,
        is_cut=len(work.exchanges) >= most and bool(work.pending),
    )


class _Exchanging:
    """The zone while exchanges are planned."""

    def __init__(self, state: DrillState, targets: Sequence[TargetSlot], may_use: MayUse) -> None:
        self._state, self._may_use = state, may_use
        self._targets = {target.number: target for target in targets}
        order = sorted(targets, key=lambda one: (-one.size.memory_bytes, one.number))
        self._of_vm: dict[str, list[int]] = {}
        for target in order:
            for user in target.users:
                self._of_vm.setdefault(user, []).append(target.number)
        self._users = {
            name: {user for user in slot.users if user in state.vms}
            for name, slot in state.slots.items()
        }
        self._free = {name: host.free for name, host in state.hosts.items()}
        self.standing = self._standing()
        self._made: set[int] = set()
        self.reserved = sum(slot.size.memory_bytes for slot in state.slots.values())
        self.exchanges: list[VMExchange] = []
        self.pending = [uuid for uuid in self._of_vm if not self._is_done(uuid)]

    def one_pass(self, most: int) -> bool:
        """Try every VM that is left once; return whether any could change."""
        before = len(self.exchanges)
        self.pending = [
            uuid
            for uuid in self.pending
            if len(self.exchanges) >= most or not self._exchanged(uuid)
        ]
        return len(self.exchanges) > before

    def _standing(self) -> dict[int, str]:
        """Return the planned slots that are there: same host and size, and users of the plan only.

        None of these users may be in another slot that is not of the plan, else what it shares
        would be a mixture of both.
        """
        found: dict[int, str] = {}
        taken: set[str] = set()
        for number, target in sorted(self._targets.items()):
            users = set(target.users)
            for name in self._state.slots_on.get(target.host, ()):
                slot = self._state.slots[name]
                is_it = slot.size == target.size and slot.is_usable and name not in taken
                if is_it and slot.users and set(slot.users) <= users:
                    found[number] = name
                    taken.add(name)
                    break
        while True:
            names = set(found.values())
            mixed = {
                number
                for number, name in found.items()
                if any(
                    not names >= set(self._state.slots_of.get(user, ()))
                    for user in self._state.slots[name].users
                )
            }
            if not mixed:
                return found
            found = {number: name for number, name in found.items() if number not in mixed}

    def _is_done(self, uuid: str) -> bool:
        names = {self.standing.get(number) for number in self._of_vm[uuid]}
        return names == set(self._state.slots_of.get(uuid, ()))

    def _exchanged(self, uuid: str) -> bool:
        vm, numbers = self._state.vms.get(uuid), self._of_vm[uuid]
        if vm is None or len(numbers) < min(
            len(self._state.slots_of.get(uuid, ())), vm.required_count
        ):
            return False
        targets = [self._targets[number] for number in numbers]
        if not all(
            vm.size.fits_into(target.size) and self._may_use(uuid, target.host)
            for target in targets
        ):
            return False
        fresh = [
            one
            for one in targets
            if one.number not in self.standing and one.number not in self._made
        ]
        if not self._take(fresh):
            return False
        for name in self._state.slots_of.get(uuid, ()):
            if name not in {self.standing.get(number) for number in numbers}:
                self._leave(uuid, name)
        self.exchanges.append(VMExchange(vm=uuid, targets=tuple(sorted(numbers))))
        return True

    def _take(self, fresh: Sequence[TargetSlot]) -> bool:
        """Take room for new slots, which are all on different hosts; nothing if one has none."""
        if not all(one.size.fits_into(self._free[one.host]) for one in fresh):
            return False
        for one in fresh:
            self._free[one.host] -= one.size
            self._made.add(one.number)
            self.reserved += one.size.memory_bytes
        return True

    def _leave(self, uuid: str, name: str) -> None:
        users, slot = self._users[name], self._state.slots[name]
        users.discard(uuid)
        if not users:
            self._free[slot.host] += slot.size
            self.reserved -= slot.size.memory_bytes
