"""The world of a demo's region: hosts that fail, VMs that come, move, grow and go.

A state machine without clock, chance and ids of its own: :func:`next_wish` draws what somebody
might want from given generators of numbers and of ids, :meth:`World.apply` does what came of it
and refuses what cannot be. The same numbers, ids and answers give the same story; a demo takes
new ids each time, so that its story is never told twice.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

MOST_FAILED_HOSTS: Final = 1
"""While so many are down, no more fail."""
MOST_COMMITMENTS: Final = 40
"""While there are so many of the demo's own, no more are asked for."""
DRIFT_SHARE: Final = 0.02
"""By which part of what was there at the beginning VMs and their memory may grow."""


class ImpossibleError(Exception):
    """An event that cannot happen in the world as it is."""


class Act(StrEnum):
    """What can happen."""

    ARRIVE = "arrive"
    DEPART = "depart"
    MIGRATE = "migrate"
    RESIZE = "resize"
    EVACUATE = "evacuate"
    FAIL_HOST = "fail_host"
    REPAIR_HOST = "repair_host"
    COMMIT = "commit"
    GROW = "grow"
    UNCOMMIT = "uncommit"
    OVERASK = "overask"


#: How often each is drawn, of all that are possible. A host that failed is mostly empty
#: before it is repaired, and a zone has come to rest before the next one fails.
WEIGHTS: Final[Mapping[Act, int]] = {
    Act.ARRIVE: 300,
    Act.DEPART: 200,
    Act.MIGRATE: 140,
    Act.RESIZE: 100,
    Act.EVACUATE: 400,
    Act.FAIL_HOST: 3,
    Act.REPAIR_HOST: 12,
    Act.COMMIT: 80,
    Act.GROW: 40,
    Act.UNCOMMIT: 60,
    Act.OVERASK: 20,
}
TOO_MUCH_GIB: Final = (60_000, 90_000)
"""What is asked for in vain: more than a zone of the demo can have, and still worth advice."""
OF_VMS: Final = frozenset({Act.ARRIVE, Act.MIGRATE, Act.RESIZE, Act.EVACUATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a flavor takes; ``family`` is the part of its name that flavors of one kind share."""

    flavor: str
    memory_mib: int
    vcpus: int

    @property
    def family(self) -> str:
        """Kind of the flavor: its name up to the first underscore."""
        return self.flavor.partition("_")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoHost:
    """A hypervisor; memory and vCPUs are what VMs may take."""

    name: str
    zone: str
    memory_mib: int
    vcpus: int
    is_up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoVM:
    """A VM on its host."""

    uuid: str
    project_id: str
    size: Size
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCommitment:
    """A commitment that the demo made; the amount is in units of its resource."""

    uuid: str
    project_id: str
    zone: str
    resource: str
    amount_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants next; whether and where it happens is decided by those who are asked.

    Attributes:
        vm: The VM as it would be; for an arrival, a resize or a move it has no new host yet.
        host: The host that fails or is repaired.
        commitment: The commitment as it would be.
    """

    act: Act
    vm: DemoVM | None = None
    host: str = ""
    commitment: DemoCommitment | None = None


class World:
    """Hosts, VMs and the demo's own commitments as they are now."""

    def __init__(
        self,
        *,
        hosts: Iterable[DemoHost],
        vms: Iterable[DemoVM],
        sizes: Iterable[Size],
        resources: Mapping[str, int] = MappingProxyType({}),
        commitments: Iterable[DemoCommitment] = (),
        failed: Iterable[str] = (),
    ) -> None:
        """Take a world as it is found; what is too full already only never gets fuller.

        Args:
            resources: Memory resources that commitments are of, with the GiB of a unit.
            failed: Names of the hosts that are down and will be repaired, of those not up.
        """
        self.hosts = {host.name: host for host in hosts}
        self.vms = {vm.uuid: vm for vm in vms}
        self.sizes = {size.flavor: size for size in sizes}
        self.resources = dict(sorted(resources.items()))
        self.commitments = {one.uuid: one for one in commitments}
        self.failed = set(failed)
        self.usual_count = len(self.vms)
        self._memory_mib: Counter[str] = Counter()
        self._vcpus: Counter[str] = Counter()
        for vm in self.vms.values():
            self._count(vm, 1)
        self.usual_memory_mib = self._memory_mib.total()

    @property
    def is_full(self) -> bool:
        """Whether VMs take as much memory as they may ever take."""
        return self._memory_mib.total() > self.usual_memory_mib * (1 + DRIFT_SHARE)

    def free(self, name: str) -> tuple[int, int]:
        """Return the memory in MiB and the vCPUs that are left on a host; below 0 if too full."""
        host = self.hosts[name]
        return host.memory_mib - self._memory_mib[name], host.vcpus - self._vcpus[name]

    def takes(self, name: str, vm: DemoVM) -> bool:
        """Return whether a VM could run on a host, beside what is there."""
        host = self.hosts.get(name)
        if host is None or not host.is_up:
            return False
        memory_mib, vcpus = self.free(name)
        known = self.vms.get(vm.uuid)
        if known is not None and known.host == name:
            memory_mib += known.size.memory_mib
            vcpus += known.size.vcpus
        return vm.size.memory_mib <= memory_mib and vm.size.vcpus <= vcpus

    def apply(self, wish: Wish, *, host: str = "") -> None:
        """Do what was wished; ``host`` is where its VM goes.

        Raises:
            ImpossibleError: it cannot be; nothing has changed.
        """
        if wish.act in OF_VMS:
            self._place(wish, host)
        elif wish.act is Act.DEPART:
            vm = self._known(wish)
            self._count(vm, -1)
            del self.vms[vm.uuid]
        elif wish.act in {Act.FAIL_HOST, Act.REPAIR_HOST}:
            self._turn(wish)
        else:
            self._promise(wish)

    def problems(self) -> list[str]:
        """Return what cannot be so, computed anew from the rows; empty in a possible world."""
        found = []
        memory_mib: Counter[str] = Counter()
        vcpus: Counter[str] = Counter()
        for vm in self.vms.values():
            if vm.host not in self.hosts:
                found.append(f"{vm.uuid} is on {vm.host}, which is not there")
            memory_mib[vm.host] += vm.size.memory_mib
            vcpus[vm.host] += vm.size.vcpus
        for host in self.hosts.values():
            free = (host.memory_mib - memory_mib[host.name], host.vcpus - vcpus[host.name])
            if free != self.free(host.name):
                found.append(f"{host.name} is counted wrongly")
            if min(free) < 0:
                found.append(f"{host.name} holds more than it has")
        found += [f"{name} failed and is up" for name in self.failed if self.hosts[name].is_up]
        found += [f"{one.uuid} is for nothing" for one in self.commitments.values()
                  if one.amount_units < 1]  # fmt: skip
        return found

    def _place(self, wish: Wish, host: str) -> None:
        vm = wish.vm
        if vm is None:
            raise ImpossibleError("no VM is named")
        known = self.vms.get(vm.uuid)
        if (known is None) != (wish.act is Act.ARRIVE):
            raise ImpossibleError(f"{vm.uuid}: {wish.act} of a VM that is there already or is not")
        if known is not None:
            is_stranded = not self.hosts[known.host].is_up
            if is_stranded != (wish.act is Act.EVACUATE):
                raise ImpossibleError(f"{vm.uuid}: {wish.act} off a host that is up or is not")
            if wish.act is not Act.RESIZE and (host == known.host or vm.size != known.size):
                raise ImpossibleError(f"{vm.uuid}: {wish.act} goes elsewhere, as it is")
        if not self.takes(host, vm):
            raise ImpossibleError(f"{vm.uuid} has no room on {host}")
        if known is not None:
            self._count(known, -1)
        self.vms[vm.uuid] = replace(vm, host=host)
        self._count(self.vms[vm.uuid], 1)

    def _turn(self, wish: Wish) -> None:
        host = self.hosts.get(wish.host)
        fails = wish.act is Act.FAIL_HOST
        if host is None or host.is_up != fails:
            raise ImpossibleError(f"{wish.host}: {wish.act} of a host that is so already")
        if not fails and wish.host not in self.failed:
            raise ImpossibleError(f"{wish.host} is off, not failed; others turn it on")
        self.hosts[host.name] = replace(host, is_up=not fails)
        (self.failed.add if fails else self.failed.discard)(host.name)

    def _promise(self, wish: Wish) -> None:
        one = wish.commitment
        known = self.commitments.get(one.uuid) if one is not None else None
        is_new = wish.act in {Act.COMMIT, Act.OVERASK}
        if one is None or one.amount_units < 1 or (known is None) != is_new:
            raise ImpossibleError(f"{wish.act} of a commitment that is there already or is not")
        if wish.act is Act.UNCOMMIT:
            del self.commitments[one.uuid]
        else:
            self.commitments[one.uuid] = one

    def _known(self, wish: Wish) -> DemoVM:
        vm = self.vms.get(wish.vm.uuid) if wish.vm is not None else None
        if vm is None or not self.hosts[vm.host].is_up:
            raise ImpossibleError("the VM is not there, or its host is down")
        return vm

    def _count(self, vm: DemoVM, sign: int) -> None:
        self._memory_mib[vm.host] += sign * vm.size.memory_mib
        self._vcpus[vm.host] += sign * vm.size.vcpus


def next_wish(world: World, rng: random.Random, new_id: Callable[[], str]) -> Wish | None:
    """Return what somebody wants next; None in a world in which nothing can happen.

    Args:
        world: As it is.
        rng: What chance draws from.
        new_id: Makes a uuid that nothing had before, in an earlier life of the world either.
    """
    possible = [act for act in WEIGHTS if _is_possible(world, act)]
    while possible:
        act = rng.choices(possible, [WEIGHTS[each] for each in possible])[0]
        wish = _draw(world, act, rng, new_id)
        if wish is not None:
            return wish
        possible.remove(act)
    return None


def wish_of(world: World, act: Act, rng: random.Random, new_id: Callable[[], str]) -> Wish | None:
    """Return what somebody wants of one kind; None where that cannot be wanted now."""
    return _draw(world, act, rng, new_id) if _is_possible(world, act) else None


def _is_possible(world: World, act: Act) -> bool:
    if act is Act.ARRIVE:
        most = world.usual_count * (1 + DRIFT_SHARE) + 1
        return 0 < len(world.vms) < most and not world.is_full
    if act is Act.DEPART:
        return len(world.vms) > world.usual_count * (1 - DRIFT_SHARE)
    if act is Act.FAIL_HOST:
        return len(world.failed) < MOST_FAILED_HOSTS
    if act in {Act.EVACUATE, Act.REPAIR_HOST}:
        return bool(world.failed)
    if act in {Act.COMMIT, Act.OVERASK}:
        is_enough = act is Act.COMMIT and len(world.commitments) >= MOST_COMMITMENTS
        return bool(world.resources and world.vms) and not is_enough
    return bool(world.commitments if act in {Act.GROW, Act.UNCOMMIT} else world.vms)


def _draw(world: World, act: Act, rng: random.Random, new_id: Callable[[], str]) -> Wish | None:
    if act in {Act.FAIL_HOST, Act.REPAIR_HOST}:
        names = world.failed if act is Act.REPAIR_HOST else {
            name for name, host in world.hosts.items() if host.is_up
        }  # fmt: skip
        return Wish(act=act, host=rng.choice(sorted(names))) if names else None
    if act in {Act.COMMIT, Act.OVERASK, Act.GROW, Act.UNCOMMIT}:
        return _draw_promise(world, act, rng, new_id)
    return _draw_vm(world, act, rng, new_id)


def _draw_vm(world: World, act: Act, rng: random.Random, new_id: Callable[[], str]) -> Wish | None:
    if act is Act.EVACUATE:
        found = sorted(uuid for uuid, vm in world.vms.items() if vm.host in world.failed)
    else:
        found = sorted(uuid for uuid, vm in world.vms.items() if world.hosts[vm.host].is_up)
    if not found:
        return None
    vm = world.vms[rng.choice(found)]
    if act is Act.ARRIVE:
        vm = replace(vm, uuid=new_id())
    if act is Act.RESIZE:
        sizes = [one for one in world.sizes.values() if one.family == vm.size.family]
        most_mib = vm.size.memory_mib if world.is_full else max(one.memory_mib for one in sizes)
        others = sorted(
            one.flavor for one in sizes if one != vm.size and one.memory_mib <= most_mib
        )
        if not others:
            return None
        vm = replace(vm, size=world.sizes[rng.choice(others)])
    return Wish(act=act, vm=vm)


def _draw_promise(world: World, act: Act, rng: random.Random, new_id: Callable[[], str]) -> Wish:
    if act in {Act.GROW, Act.UNCOMMIT}:
        one = world.commitments[rng.choice(sorted(world.commitments))]
        more = one.amount_units + (rng.randint(1, 4) if act is Act.GROW else 0)
        return Wish(act=act, commitment=replace(one, amount_units=more))
    vm = world.vms[rng.choice(sorted(world.vms))]
    resource = rng.choice(list(world.resources))
    too_many = rng.randint(*TOO_MUCH_GIB) // world.resources[resource]
    one = DemoCommitment(
        uuid=new_id(),
        project_id=vm.project_id,
        zone=world.hosts[vm.host].zone,
        resource=resource,
        amount_units=rng.randint(1, 8) if act is Act.COMMIT else too_many,
    )
    return Wish(act=act, commitment=one)
