"""Slices of the cgroup tree that protect memory for reservations (spec hosts, D.11).

A dash in a slice's name is a step in systemd's hierarchy, hence the underscore. ``memory.min``
protects only memory that a group uses, and a child's protection is limited by its ancestors, so the
parent's is the sum of its children. VMs that run are never moved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from headroom_host_agent.provision.built_in.base import BuiltIn, Place, others_of, write
from headroom_host_agent.provision.data import (
    Field,
    amount,
    fields_of,
    is_flag,
    lenient_fields,
    number,
)
from headroom_host_agent.provision.provisioners import HostContext, ProvisionError
from headroom_host_agent.provision.stored import Artifact
from headroom_host_agent.provision.units import Units
from headroom_host_agent.provision.wire import Reservation
from headroom_host_agent.resources.facts import ResourceType
from headroom_host_agent.resources.tree import names_below, parse_list, read_integer, read_or_none

KIND = "capacity_slice"
CGROUPS = "sys/fs/cgroup"
PARENT = "headroom.slice"


def _is_list(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(parse_list(value))
    except ValueError:
        return False


SCHEMA: Mapping[str, Field] = {
    "cpu_weight": Field(number(1, 10000), "a number from 1 to 10000"),
    "cpus": Field(_is_list, "a list of CPUs like 0-3,8"),
    "memory_min": Field(number(0), "bytes"),
    "memory_high": Field(number(0), "bytes"),
    "force": Field(is_flag, "true or false"),
}


class CapacitySlice(BuiltIn):
    """Makes ``headroom-<id>.slice`` below ``headroom.slice``."""

    order = 4
    data_schema = SCHEMA

    def __init__(self, place: Place, *, rmdir: Callable[[Path], None] = os.rmdir) -> None:
        super().__init__(place)
        self._rmdir = rmdir
        self._root = place.sysroot / CGROUPS

    def units(self, reservation: Reservation) -> Units:
        """Return CPUs and memory."""
        taken = reservation.resources
        return Units(cru=taken.get("cpu", 0), mru=taken.get("memory", 0))

    def check(self, context: HostContext, reservation: Reservation) -> None:
        """Look whether the host has cgroup v2, its controllers, and memory for all minimums.

        Raises:
            ProvisionError: It has not; nothing was written.
        """
        data = fields_of(reservation, SCHEMA)
        have = (read_or_none(self._root / "cgroup.controllers") or "").split()
        missing = sorted({"cpu", "memory", *(["cpuset"] if "cpus" in data else [])} - set(have))
        if missing:
            raise ProvisionError(
                "no_controller", f"cgroup v2 lacks controllers: {', '.join(missing)}"
            )
        limit = context.manager.get_status(ResourceType.MEMORY).effective_limit
        total = self._minimums(context) + _minimum(reservation)
        if total > limit:
            raise ProvisionError(
                "insufficient_capacity", f"memory: minimums of {total} B, limit {limit} B"
            )

    def provision(self, context: HostContext, reservation: Reservation) -> Mapping[str, object]:
        """Make the slice, or say what would be written.

        Raises:
            ProvisionError: The kernel refuses.
        """
        data = fields_of(reservation, SCHEMA)
        name = slice_of(context.identity)
        group = self._root / PARENT / name
        changes = self._parent(context, self._minimums(context) + _minimum(reservation))
        changes[group / "memory.min"] = str(_minimum(reservation))
        if "cpu_weight" in data:
            changes[group / "cpu.weight"] = str(data["cpu_weight"])
        if "cpus" in data:
            changes[group / "cpuset.cpus"] = str(data["cpus"])
        if "memory_high" in data:
            changes[group / "memory.high"] = str(data["memory_high"])
        if self.place.enforce:
            context.intend(KIND, name)
            self._prepare(group, with_cpus="cpus" in data)
            for path, text in changes.items():
                write(path, text)
        # What the parent protects depends on others: the result is the same at each try.
        own = {path: text for path, text in changes.items() if path.parent == group}
        return {**self.plan(own if self.place.enforce else changes), "slice": name}

    def verify(self, context: HostContext, reservation: Reservation) -> bool:
        """Return whether slice and protection are there."""
        group = self._root / PARENT / slice_of(context.identity)
        wanted = _minimum(reservation)
        is_there = read_integer(group / "memory.min") == wanted
        parent = read_integer(self._root / PARENT / "memory.min") or 0
        is_covered = parent >= self._minimums(context) + wanted
        return not self.place.enforce or (is_there and is_covered)

    def decommission(self, context: HostContext, reservation: Reservation) -> None:
        """Remove the slice and what the parent protects for it.

        Raises:
            ProvisionError: Processes are in it.
        """
        if not self.place.enforce:
            return
        forced = lenient_fields(reservation).get("force") is True
        self._remove(slice_of(context.identity), forced=forced)
        if (self._root / PARENT).exists():
            for path, text in self._parent(context, self._minimums(context)).items():
                write(path, text)

    def in_use(self, artifact: Artifact) -> bool:
        """Return whether processes are in a slice."""
        return self._is_populated(self._root / PARENT / artifact.name)

    def artifacts(self, context: HostContext) -> Iterable[tuple[str, str]]:
        """Return the slices below ours."""
        below = names_below(self._root / PARENT)
        return [(KIND, name) for name in below if name.endswith(".slice")]

    def remove(self, artifact: Artifact) -> None:
        """Remove a slice whose reservation is gone.

        Raises:
            ProvisionError: Processes are in it.
        """
        if self.place.enforce:
            self._remove(artifact.name, forced=False)

    def _prepare(self, group: Path, *, with_cpus: bool) -> None:
        names = ("cpu", "memory", *(("cpuset",) if with_cpus else ()))
        try:
            group.mkdir(parents=True, exist_ok=True)
            for above in (self._root, group.parent):
                control = above / "cgroup.subtree_control"
                have = (read_or_none(control) or "").split()
                wanted = " ".join(f"+{name}" for name in names if name not in have)
                if wanted:
                    control.write_text(wanted, encoding="ascii")
        except OSError as error:
            raise ProvisionError("refused", f"{group}: {error.strerror}") from None

    def _remove(self, name: str, *, forced: bool) -> None:
        group = self._root / PARENT / name
        if not group.exists():
            return
        if self._is_populated(group) and not forced:
            raise ProvisionError("in_use", f"processes are in {name}")
        try:
            self._rmdir(group)
        except OSError as error:
            raise ProvisionError("in_use", f"{name}: {error.strerror}") from None

    @staticmethod
    def _is_populated(group: Path) -> bool:
        return "populated 1" in (read_or_none(group / "cgroup.events") or "").splitlines()

    @staticmethod
    def _minimums(context: HostContext) -> int:
        return sum(_minimum(other) for other in others_of(context, KIND))

    def _parent(self, context: HostContext, total: int) -> dict[Path, str]:
        """Return what the parent protects, and what is left to the slices that are capped."""
        changes = {self._root / PARENT / "memory.min": str(total)}
        if self.place.cap_slices:
            limit = context.manager.get_status(ResourceType.MEMORY).effective_limit
            high = max(0, limit - total - self._protected_elsewhere())
            for name in self.place.cap_slices:
                changes[self._root / name / "memory.high"] = str(high)
        return changes

    def _protected_elsewhere(self) -> int:
        """Return what groups beside ours and the capped ones use under protection."""
        total = 0
        for name in names_below(self._root):
            if name != PARENT and name not in self.place.cap_slices:
                minimum = read_integer(self._root / name / "memory.min") or 0
                total += min(minimum, read_integer(self._root / name / "memory.current") or 0)
        return total


def slice_of(identity: str) -> str:
    """Return the name of a reservation's slice."""
    return f"headroom-{identity.replace('-', '_')}.slice"


def _minimum(reservation: Reservation) -> int:
    data = lenient_fields(reservation)
    return amount(data, "memory_min", reservation.resources.get("memory", 0))
