"""The one request by which a slot, or a VM that has to move, asks for a host (commitments, 9.5).

Whoever places a slot asks this: admission, relocation, freeing of hosts, eviction, drains, what-if,
and, with another purpose, failover for VMs and the capacity report for flavors. So no path can put
a slot where another would not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capacity.groups.flavor_groups import FlavorSpec
from scheduling.evaluation import CompiledPipeline
from scheduling.intents import Intent
from scheduling.needs import NO_NEEDS, Needs, flavor_needs
from scheduling.request import HYPERVISOR_TYPE_KEY, InstanceGroup, PlacementRequest
from scheduling.resources import ResourceVector

COMMITMENT_PREFIX = "commitment-"
DEFAULT_HYPERVISOR = "qemu"
_IMAGE_PROPERTIES: Mapping[str, Mapping[str, object]] = {
    **{name: {"img_hv_type": "kvm"} for name in ("QEMU", "qemu", "CH", "ch")},
    "VMware vCenter Server": {"hypervisor_type": "vmware"},
    "Ironic": {"hypervisor_type": "baremetal"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainHint:
    """The domain of a project, as far as it is known.

    Attributes:
        name: Its name; None when there is none to tell.
        is_unresolved: Whether it has a domain whose name is not known: what keeps customers apart
            must not guess then.
    """

    name: str | None = None
    is_unresolved: bool = False


NO_DOMAIN = DomainHint()


def with_told_names(
    hints: Mapping[str, DomainHint], names: Mapping[str, str]
) -> dict[str, DomainHint]:
    """Return hints by domain id, unresolved ones resolved by the names that a caller tells."""
    return {
        domain_id: DomainHint(name=names[domain_id])
        if hint.is_unresolved and names.get(domain_id)
        else hint
        for domain_id, hint in hints.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class VMFacts:
    """What a request for a VM is judged by, and one for a slot is not.

    Attributes:
        hypervisor_type: Type of the host it runs on, for flavors that do not say; may be empty.
        source_host: Where it runs; empty when that does not matter.
        instance_group: Its server group.
    """

    hypervisor_type: str = ""
    source_host: str = ""
    instance_group: InstanceGroup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAsk:
    """A slot that needs a host, or a VM that does.

    Attributes:
        slot_id: Stored slot; None for a new one and for a VM.
        slot_index: Its number in the commitment.
        slot_name: Its name, which breaks ties between hosts; the uuid of a VM.
        flavor: Flavor it is placed as.
        slot: What it takes: a remainder slot asks for its own memory, not for its flavor's.
        project_id: Project it is held for.
        ignore_hosts: Hosts that it shall not be on.
        domain: Domain of the project, for pipelines that keep customers apart.
        pipeline: Which pipeline judges; None is the one of slots.
        names_flavor: Whether the slot says what flavor it is placed as; without it nobody is asked
            (spec commitments, 9.2 step 3).
        only_hosts: Hosts that it may be on; None for every host.
        intent: What is to be placed.
        vm: What it is judged by besides if it is a VM, or a failover slot of one.
    """

    slot_id: int | None = None
    slot_index: int = 0
    slot_name: str
    flavor: FlavorSpec
    slot: ResourceVector
    zone: str
    project_id: str
    ignore_hosts: frozenset[str] = frozenset()
    domain: DomainHint = NO_DOMAIN
    pipeline: CompiledPipeline | None = None
    names_flavor: bool = True
    only_hosts: frozenset[str] | None = None
    intent: Intent = Intent.RESERVE_FOR_COMMITTED_RESOURCE
    vm: VMFacts | None = None

    @property
    def is_askable(self) -> bool:
        """Whether a host can be asked for it at all."""
        return self.names_flavor and self.slot.memory_bytes > 0 and self.slot.vcpus > 0


def slot_request(ask: SlotAsk) -> PlacementRequest:
    """Return what the scheduler is asked; slots of the requester stay locked.

    Source: spec commitments, 9.5; spec failover, 11.2 (hypervisor type and image of a VM).
    """
    vm = ask.vm
    extra_specs, image_properties = ask.flavor.extra_specs, None
    if vm is not None:
        stated = extra_specs.get(HYPERVISOR_TYPE_KEY)
        hypervisor = stated or vm.hypervisor_type or DEFAULT_HYPERVISOR
        extra_specs = {**extra_specs, HYPERVISOR_TYPE_KEY: hypervisor}
        image_properties = _IMAGE_PROPERTIES.get(hypervisor)
    return PlacementRequest(
        request_key=ask.slot_name,
        memory_bytes=ask.slot.memory_bytes,
        vcpus=ask.slot.vcpus,
        zone=ask.zone,
        project_id=ask.project_id,
        flavor_name=ask.flavor.name,
        intent=ask.intent,
        ignore_hosts=ask.ignore_hosts or None,
        restrict_to_hosts=ask.only_hosts,
        extra_specs=extra_specs,
        domain_name=ask.domain.name,
        domain_is_unresolved=ask.domain.is_unresolved,
        lock_reservations=True,
        source_host=vm.source_host if vm is not None else "",
        instance_group=vm.instance_group if vm is not None else None,
        image_properties=image_properties,
        needs=slot_needs(ask),
    )


def slot_needs(ask: SlotAsk) -> Needs:
    """Return what a slot needs of network, disk I/O and GPUs, as much as it is of its flavor.

    VMs that move need what their host says that they take: nothing is held for them.
    """
    if ask.vm is not None or ask.intent is not Intent.RESERVE_FOR_COMMITTED_RESOURCE:
        return NO_NEEDS
    needs = flavor_needs(ask.flavor.extra_specs)
    if not any(needs):
        return NO_NEEDS
    return needs.share(ask.slot.memory_bytes, ask.flavor.memory_bytes)


def slot_name(prefix: str, slot_index: int) -> str:
    """Return the name of a slot from its prefix and number."""
    return f"{prefix}{slot_index}"


def slot_name_prefix(commitment_uuid: str) -> str:
    """Return the prefix that the slots of a commitment share."""
    return f"{COMMITMENT_PREFIX}{commitment_uuid}-"
