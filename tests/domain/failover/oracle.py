"""The five rules and survival, written straight from the specification, slow and obvious."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from failover.domain.slots import FailoverSlot, SlotUser
from hosts.domain.vm import VM

SLOT = re.compile(r"(\w+)@(\w+)\{([^}]*)\}")


def vm_at(text: str, **columns: object) -> VM:
    """Return the VM of a text like ``v1@3``."""
    uuid, host = text.split("@")
    return VM(vm_uuid=uuid, host=host, **columns)  # type: ignore[arg-type]


def slots_of(text: str, *, memory_bytes: int | None = None) -> list[FailoverSlot]:
    """Return the reservations of a text like ``r@3{a@1,b@2}, q@4{}``; users join in this order."""
    clock = 0
    slots = []
    for name, host, users in SLOT.findall(text):
        members = []
        for user in filter(None, (part.strip() for part in users.split(","))):
            uuid, user_host = user.split("@")
            members.append(SlotUser(vm_uuid=uuid, host=user_host, joined_at=clock))
            clock += 1
        slots.append(
            FailoverSlot(name=name, host=host, users=tuple(members), memory_bytes=memory_bytes)
        )
    return slots


def five_rules_hold(slots: Iterable[FailoverSlot]) -> bool:
    """Return whether C1 to C5 of failover 7.2 hold for every user."""
    slots = list(slots)
    h = {user.vm_uuid: user.host for slot in slots for user in slot.users}
    u_of = {slot.name: [user.vm_uuid for user in slot.users] for slot in slots}
    rho = {slot.name: slot.host for slot in slots}
    return all(_five_rules_hold_for(v, h, u_of, rho) for v in h)


def _five_rules_hold_for(
    v: str, h: Mapping[str, str], u_of: Mapping[str, Sequence[str]], rho: Mapping[str, str]
) -> bool:
    s = {r for r, users in u_of.items() if v in users}
    p = {rho[r] for r in s}
    n = {u for r in s for u in u_of[r]} - {v}
    c1 = h[v] not in p
    c2 = len(p) == len(s)
    c3 = all(h[u] != h[w] for r in s for u, w in combinations(u_of[r], 2))
    c4 = all(h[u] != h[v] and h[u] not in p for u in n)
    c5 = all(h[u] != h[w] for u, w in combinations(sorted(n), 2)) and all(
        len({r for r in s if u in u_of[r]}) == 1 for u in n
    )
    return c1 and c2 and c3 and c4 and c5


def may_join(vm: VM, slot: FailoverSlot, slots: Sequence[FailoverSlot]) -> bool:
    """Return whether all five rules hold for the users of ``slot`` after the VM joined it."""
    if slot.host_of(vm.vm_uuid) is not None:
        return False
    after = [
        one.joined(SlotUser(vm_uuid=vm.vm_uuid, host=vm.host)) if one.name == slot.name else one
        for one in slots
    ]
    h = {user.vm_uuid: user.host for one in after for user in one.users}
    h[vm.vm_uuid] = vm.host
    u_of = {one.name: [user.vm_uuid for user in one.users] for one in after}
    rho = {one.name: one.host for one in after}
    return all(_five_rules_hold_for(v, h, u_of, rho) for v in u_of[slot.name])


def private_survivors(slots: Sequence[FailoverSlot], vm_uuid: str, failed: frozenset[str]) -> int:
    """Return how many reservations a VM has that survive and that no other affected VM wants."""
    return sum(
        slot.host not in failed
        and not any(user.vm_uuid != vm_uuid and user.host in failed for user in slot.users)
        for slot in slots
        if slot.host_of(vm_uuid) is not None
    )


def simultaneous_places(
    slots: Sequence[FailoverSlot],
    vm_uuids: Sequence[str],
    failed: frozenset[str],
    gib: Mapping[str, int],
) -> dict[str, str] | None:
    """Return a reservation for each VM, none given twice, by trying all; None if there is no way.

    Args:
        slots: All reservations; None as size fits any VM.
        vm_uuids: VMs that need a place at the same time.
        failed: Hosts that are lost.
        gib: Memory of VMs.
    """
    if not vm_uuids:
        return {}
    vm, *others = vm_uuids
    for slot in slots:
        is_large_enough = slot.memory_bytes is None or slot.memory_bytes >= gib[vm] << 30
        if slot.host in failed or slot.host_of(vm) is None or not is_large_enough:
            continue
        rest = [one for one in slots if one.name != slot.name]
        found = simultaneous_places(rest, others, failed, gib)
        if found is not None:
            return {vm: slot.name, **found}
    return None
