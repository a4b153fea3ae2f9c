"""What a loader hands over: hosts and reservations as plain rows (spec scheduling, 6 and 14.3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from scheduling.needs import NOTHING_KNOWN, Needs
from scheduling.resources import ZERO, ResourceVector

TENANT_KEY_PREFIX = "filter_tenant_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAggregate:
    """A host aggregate as a host carries it.

    Attributes:
        uuid: Its uuid; compared by requested destinations.
        metadata: Its metadata; keys that start with ``filter_tenant_id`` restrict tenants.
    """

    uuid: str
    name: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def tenants(self) -> frozenset[str]:
        """Return the projects that its metadata names; empty means no restriction.

        Source: spec scheduling, 7.13.
        """
        words = (
            word.strip()
            for key, text in self.metadata.items()
            if key.startswith(TENANT_KEY_PREFIX)
            for word in text.split(",")
        )
        return frozenset(word for word in words if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """One host as a loader hands it over.

    Attributes:
        name: Compute host name, unique in a table.
        zone: Availability zone; empty when the host has none.
        is_ready: Whether its conditions allow placement, see
            :func:`scheduling.filters.conditions_allow_placement`.
        takes_slots: Whether new slots may come; VMs go on either way.
        hypervisor_type: Domain type of the host (``ch``, ``kvm``, ``qemu``), any case.
        traits: Applied traits, or applied and custom traits together.
        custom_traits: Extra traits, always united with ``traits``.
        allowed_projects: Projects that may use the host; empty means all.
        effective: Effective capacity, zero where it is not known.
        allocated: Sum over the VMs on the host.
        committed: What committed slots still block.
        failover: What failover slots block.
        in_flight: What in-flight placements block.
        cpu_arch: CPU architecture, for example ``x86_64``.
        building_block: Rack.
        aggregates: Aggregates that are applied.
        features: CPU features that guests may use.
        cpu_modes: CPU modes that guests may use.
        devices: Devices that guests may use.
        maintenance: Maintenance mode as desired (only a retired filter reads it).
        instances: Uuids of the VMs on the host, running or not.
        others_left: What slots may take of network, disk I/O and GPUs; negative where less is
            there than was taken.
        is_known: False for a host that a request names and no loader knows.
    """

    name: str
    host_id: int
    zone: str = ""
    is_ready: bool = True
    takes_slots: bool = True
    hypervisor_type: str = "qemu"
    traits: Collection[str] = ()
    custom_traits: Collection[str] = ()
    allowed_projects: Collection[str] = ()
    effective: ResourceVector = ZERO
    allocated: ResourceVector = ZERO
    committed: ResourceVector = ZERO
    failover: ResourceVector = ZERO
    in_flight: ResourceVector = ZERO
    cpu_arch: str = ""
    building_block: str = ""
    aggregates: Collection[HostAggregate] = ()
    features: Collection[str] = ()
    cpu_modes: Collection[str] = ()
    devices: Collection[str] = ()
    maintenance: str = ""
    instances: Collection[str] = ()
    others_left: Needs = NOTHING_KNOWN
    is_known: bool = True

    def all_traits(self) -> frozenset[str]:
        """Return applied and custom traits together (spec scheduling, 7.1)."""
        return frozenset(self.traits) | frozenset(self.custom_traits)

    def aggregate_tenants(self) -> frozenset[str]:
        """Return the projects named by any aggregate; empty means no restriction (7.13)."""
        return frozenset().union(*(aggregate.tenants() for aggregate in self.aggregates))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRow:
    """One reservation, as far as scheduling decisions depend on it.

    Attributes:
        reservation_id: Database key.
        kind: ``committed``, ``failover`` or ``in_flight``.
        is_ready: Whether its Ready condition is True; others are never released.
        project_id: Project it is held for.
        resource_group: Flavor group; a committed slot without one is released to nobody.
        target_host: Host it shall be on; empty if none.
        observed_host: Host it is on; empty if none.
        full: Its size.
        blocked: What it blocks on each of its hosts beyond the VMs that the hosts' allocation has.
        expected_only: What VMs take that are expected in it and neither seen nor held in flight;
            never released with the rest, except to the VM itself.
        expected_vms: (VM uuid, size) of these VMs.
        expected_memory_bytes: Memory of all VMs expected in it, seen or not.
        vm_uuids: Users of a failover slot; the VM of an in-flight placement. Not those of a
            committed slot, which no decision asks for.
        placement_id: Shared by the in-flight blocks of one placement.
    """

    reservation_id: int
    kind: str
    is_ready: bool = True
    project_id: str = ""
    resource_group: str = ""
    zone: str = ""
    target_host: str = ""
    observed_host: str = ""
    full: ResourceVector = ZERO
    blocked: ResourceVector = ZERO
    expected_only: ResourceVector = ZERO
    expected_vms: tuple[tuple[str, ResourceVector], ...] = ()
    expected_memory_bytes: int = 0
    vm_uuids: Sequence[str] = ()
    placement_id: str = ""

    def hosts(self) -> tuple[str, ...]:
        """Return the hosts that it blocks, each once."""
        target, observed = self.target_host, self.observed_host
        if target and observed and target != observed:
            return target, observed
        return (target or observed,) if target or observed else ()
