"""Who gets which contested slot when hosts fail: bipartite matching, the largest VM first."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

_FAR = 1 << 60


def prioritised_matching(
    classes: Sequence[Sequence[str]], wants: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Match VMs to slots: as many as possible, and of those the earlier classes first.

    Sets of VMs that can be matched together form a matroid, so serving the classes in order never
    costs a place: the number is that of a maximum matching. Every class is one run of Hopcroft and
    Karp's algorithm on what the earlier ones left; VMs that are matched stay matched.

    Args:
        classes: VM uuids by class, the most important first; within a class their order decides
            who is tried first.
        wants: VM uuid to the slots that it could use, in order of preference.

    Returns:
        VM uuid to slot, for those that get one.

    Source: spec failover, 17.2, step 2 of the simulation.
    """
    matching = _Matching(wants)
    for members in classes:
        matching.add(members)
    return matching.slot_of


class _Matching:
    def __init__(self, wants: Mapping[str, Sequence[str]]) -> None:
        self.slot_of: dict[str, str] = {}
        self._wants = wants
        self._vm_in: dict[str, str] = {}
        self._level: dict[str, int] = {}

    def add(self, members: Sequence[str]) -> None:
        """Match as many of some VMs as augmenting paths allow."""
        waiting = [vm for vm in members if self._wants.get(vm)]
        while waiting and self._layer(waiting):
            waiting = [vm for vm in waiting if not self._augment(vm)]

    def _layer(self, waiting: Sequence[str]) -> bool:
        """Number the VMs by their distance from the waiting ones; say whether a slot is free."""
        self._level = dict.fromkeys(waiting, 0)
        queue = deque(waiting)
        nearest = _FAR
        while queue:
            vm = queue.popleft()
            level = self._level[vm]
            if level >= nearest:
                continue
            for slot in self._wants[vm]:
                holder = self._vm_in.get(slot)
                if holder is None:
                    nearest = level
                elif holder not in self._level:
                    self._level[holder] = level + 1
                    queue.append(holder)
        return nearest < _FAR

    def _augment(self, start: str) -> bool:
        """Give a VM a slot along a path of the layers, moving holders on; iterative."""
        path: list[tuple[str, str]] = []
        stack = [(start, iter(self._wants[start]))]
        while stack:
            vm, slots = stack[-1]
            slot = next(slots, None)
            if slot is None:
                self._level[vm] = _FAR
                stack.pop()
                if path:
                    path.pop()
                continue
            holder = self._vm_in.get(slot)
            if holder is None:
                self._apply([*path, (vm, slot)])
                return True
            if self._level.get(holder, _FAR) == self._level[vm] + 1:
                path.append((vm, slot))
                stack.append((holder, iter(self._wants[holder])))
        return False

    def _apply(self, path: Sequence[tuple[str, str]]) -> None:
        for vm, slot in path:
            self.slot_of[vm] = slot
            self._vm_in[slot] = vm
