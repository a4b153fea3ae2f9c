"""What VMs that have to move ask of another host, from their rows (spec failover, 11.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from capacity.groups.flavor_groups import FlavorSpec
from capacity.ledger.slot_request import NO_DOMAIN, DomainHint, SlotAsk, VMFacts
from capacity.nova.nova_call import kvm_pipeline
from capacity.nova.pipelines import usable_pipeline
from hosts.models import Domain, Instance, Project, ServerGroup
from scheduling.intents import Intent
from scheduling.request import InstanceGroup, max_per_host_from_rule
from scheduling.resources import ResourceVector


class VMBook:
    """What VMs ask of a new host; domains, server groups and pipelines are looked up once."""

    def __init__(self, vms: Sequence[Instance]) -> None:
        """Read what the VMs depend on; they have their hosts with them."""
        self._domains = project_domains({vm.project_id for vm in vms})
        self._groups = _groups_of([vm.openstack_id for vm in vms])
        self._pipeline = cache(usable_pipeline)

    def ask_for(self, vm: Instance, intent: Intent) -> SlotAsk:
        """Return what a VM asks of another host."""
        specs = texts(vm.flavor_extra_specs)
        host = vm.host
        return SlotAsk(
            slot_name=vm.openstack_id,
            flavor=FlavorSpec(
                name=vm.flavor_name,
                vcpus=vm.vcpus,
                memory_bytes=vm.memory_bytes,
                extra_specs=specs,
            ),
            slot=ResourceVector(memory_bytes=vm.memory_bytes, vcpus=vm.vcpus),
            zone=host.zone if host is not None else vm.zone,
            project_id=vm.project_id,
            domain=self._domains.get(vm.project_id, NO_DOMAIN),
            pipeline=self._pipeline(kvm_pipeline(specs)),
            intent=intent,
            vm=VMFacts(
                hypervisor_type=host.hypervisor_type if host is not None else "",
                source_host=host.name if host is not None else "",
                instance_group=self._groups.get(vm.openstack_id),
            ),
        )


def project_domains(project_ids: Collection[str]) -> dict[str, DomainHint]:
    """Return what is known of the domains of projects, by project.

    Every project that is named has one, so a project or a domain that is not listed leaves it
    unresolved.
    """
    wanted = {project_id for project_id in project_ids if project_id}
    domains = dict(
        Project.objects.filter(openstack_id__in=wanted).values_list("openstack_id", "domain_id")
    )
    names = dict(
        Domain.objects.filter(openstack_id__in=set(domains.values())).values_list(
            "openstack_id", "name"
        )
    )
    return {
        project_id: domain_hint(names.get(domains.get(project_id, "")))
        for project_id in sorted(wanted)
    }


def domain_hint(name: str | None) -> DomainHint:
    """Return what is known of the domain of a project that has one."""
    return DomainHint(name=name, is_unresolved=name is None)


def _groups_of(vm_uuids: Sequence[str]) -> Mapping[str, InstanceGroup]:
    rows = list(ServerGroup.objects.filter(members__overlap=list(vm_uuids)))
    hosts = dict(
        Instance.objects.filter(
            openstack_id__in={member for row in rows for member in row.members}
        ).values_list("openstack_id", "host__name")
    )
    return {
        member: instance_group(row, (hosts[one] for one in row.members if hosts.get(one)))
        for row in rows
        for member in row.members
    }


def instance_group(row: ServerGroup, hosts: Iterable[str]) -> InstanceGroup:
    """Return a server group as requests name it.

    Args:
        row: The group.
        hosts: Hosts of its members.
    """
    return InstanceGroup(
        policy=row.policy,
        hosts=frozenset(hosts),
        members=frozenset(row.members),
        max_per_host=max_per_host_from_rule(row.rules.get("max_server_per_host")),
    )


def texts(specs: Mapping[str, Any]) -> dict[str, str]:  # Any: JSON as Nova sent it
    """Return extra specs as texts."""
    return {str(name): str(word) for name, word in specs.items()}
