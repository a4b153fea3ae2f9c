"""What a failure drill looks at: hosts, VMs and failover slots, indexed (spec failover, 17.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from failover.domain.graph import DependencyGraph
from scheduling.resources import ZERO, ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillHost:
    """A host as a drill sees it.

    Attributes:
        rack: Failure domain above the host; empty when unknown.
        is_alive: Whether VMs could be evacuated to it now.
        effective: What may be promised on it.
        allocated: What its VMs take.
        blocked: What reservations of every kind block on it.
    """

    name: str
    zone: str
    rack: str = ""
    is_alive: bool = True
    effective: ResourceVector = ZERO
    allocated: ResourceVector = ZERO
    blocked: ResourceVector = ZERO

    @property
    def free(self) -> ResourceVector:
        """What is left; negative where the host is over-subscribed."""
        return self.effective - self.allocated - self.blocked

    @property
    def keeps_promises(self) -> bool:
        """Whether what is blocked on the host really is room: it is alive and not over-subscribed.

        Source: spec failover, 17.2 ("Room").
        """
        return self.is_alive and ZERO.fits_into(self.free)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillVM:
    """A VM as a drill sees it.

    Attributes:
        host: Host it runs on.
        size: What it takes.
        required_count: How many slots it must have; 0 when nothing is owed to it.
    """

    uuid: str
    host: str
    size: ResourceVector
    required_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSlot:
    """A failover slot as a drill sees it.

    Attributes:
        name: Its name, unique.
        host: Host that holds it.
        size: What it holds.
        users: VMs that may use it.
        is_usable: Whether it may be given to a user now: ready, and not being consumed.
    """

    name: str
    host: str
    size: ResourceVector
    users: tuple[str, ...]
    is_usable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSet:
    """What fails together; empty parts fail nothing.

    Attributes:
        hosts: Names of hosts.
        racks: Names of racks.
        zones: Names of availability zones.
    """

    hosts: tuple[str, ...] = ()
    racks: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()


class UnknownFailureDomainError(ValueError):
    """A drill names a host, rack or zone that does not exist.

    Attributes:
        names: What is unknown, each with its kind.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(f"unknown: {', '.join(names)}")
        self.names = names


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrillState:
    """Hosts, VMs and slots with the indexes that every drill needs. Build with :meth:`of`.

    Attributes:
        hosts: By name, in order of name.
        vms: By uuid, in order of uuid.
        slots: By name, in order of name.
        vms_on: Host name to the VMs on it, in order of uuid; hosts without VMs are left out.
        slots_on: Host name to the slots on it, in order of name.
        slots_of: VM uuid to its slots, in order of name; VMs without slots are left out.
        hosts_of_rack: Rack to its hosts.
        hosts_of_zone: Zone to its hosts.
    """

    hosts: Mapping[str, DrillHost]
    vms: Mapping[str, DrillVM]
    slots: Mapping[str, DrillSlot]
    vms_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    slots_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    slots_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hosts_of_rack: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hosts_of_zone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, hosts: Iterable[DrillHost], vms: Iterable[DrillVM], slots: Iterable[DrillSlot]
    ) -> DrillState:
        """Index hosts, VMs and slots; users that are no VMs of the state are ignored by drills."""
        by_name = {host.name: host for host in sorted(hosts, key=attrgetter("name"))}
        by_uuid = {vm.uuid: vm for vm in sorted(vms, key=attrgetter("uuid"))}
        by_slot = {slot.name: slot for slot in sorted(slots, key=attrgetter("name"))}
        return cls(
            hosts=by_name,
            vms=by_uuid,
            slots=by_slot,
            vms_on=_grouped((vm.host, vm.uuid) for vm in by_uuid.values()),
            slots_on=_grouped((slot.host, slot.name) for slot in by_slot.values()),
            slots_of=_grouped(
                (user, slot.name) for slot in by_slot.values() for user in slot.users
            ),
            hosts_of_rack=_grouped(
                (host.rack, host.name) for host in by_name.values() if host.rack
            ),
            hosts_of_zone=_grouped((host.zone, host.name) for host in by_name.values()),
        )

    def expand(self, failure: FailureSet) -> frozenset[str]:
        """Return the names of the hosts that fail.

        Raises:
            UnknownFailureDomainError: a host, rack or zone does not exist.
        """
        asked = (
            (
                "host",
                failure.hosts,
                {name: (name,) for name in failure.hosts if name in self.hosts},
            ),
            ("rack", failure.racks, self.hosts_of_rack),
            ("zone", failure.zones, self.hosts_of_zone),
        )
        unknown = [
            f"{kind} {name}" for kind, names, known in asked for name in names if name not in known
        ]
        if unknown:
            raise UnknownFailureDomainError(tuple(unknown))
        return frozenset(
            host for _, names, known in asked for name in names for host in known[name]
        )

    def role_hosts(self, uuid: str) -> tuple[str, ...]:
        """Return the list L(v) of a VM: its host, its slots' hosts, its sharers' hosts.

        A sharer that is no VM of the state has no host and is left out.

        Source: spec failover, 7.3.
        """
        return (self.vms[uuid].host, *self._other_roles(uuid))

    def keeps_rules(self, uuid: str) -> bool:
        """Return whether a VM's roles are all on different hosts (spec failover, 7.3)."""
        roles = self.role_hosts(uuid)
        return len(set(roles)) == len(roles)

    def sharing(self, slot_hosts: Mapping[str, str]) -> DependencyGraph:
        """Return who shares what with whom, to be changed; slots are on the given hosts."""
        graph = DependencyGraph()
        for name, host in slot_hosts.items():
            graph.slot_hosts[name], graph.slot_vms[name] = host, set()
            for user in self.slots[name].users:
                if user in self.vms:
                    graph.add(user, self.vms[user].host, name, host)
        return graph

    def hosts_of_lost_zones(self, failed: Collection[str]) -> frozenset[str]:
        """Return the hosts of zones of which every host is among the failed."""
        return frozenset(
            name
            for names in self.hosts_of_zone.values()
            if all(one in failed for one in names)
            for name in names
        )

    def _other_roles(self, uuid: str) -> Iterator[str]:
        for name in self.slots_of.get(uuid, ()):
            slot = self.slots[name]
            yield slot.host
            for user in slot.users:
                if user != uuid and user in self.vms:
                    yield self.vms[user].host


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for key, member in pairs:
        groups[key].append(member)
    return {key: tuple(members) for key, members in groups.items()}
