"""Running VMs that no slot holds, as candidates for new slots (spec commitments, 7.1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet

from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.models import ReservationAllocation, ReservationKind
from commitments.domain.admission import CommitmentTarget
from commitments.domain.payg import PaygVM
from commitments.domain.statuses import ResourceType
from hosts.models import Instance
from scheduling.resources import ResourceVector

ACTIVE = "ACTIVE"

PaygVMs = Mapping[tuple[str, str, str], tuple[PaygVM, ...]]


def payg_candidates(
    targets: Iterable[CommitmentTarget], groups: Mapping[str, FlavorGroupDef]
) -> PaygVMs:
    """Return the VMs that memory commitments may cover, by (project, group, zone).

    Empty unless the operator switched this on. A VM that some slot lists already is left out, and
    one that is smaller than its flavor says, since its slot would need room besides.

    Args:
        targets: Commitments to plan; those that want no slots need no VMs.
        groups: Flavor groups by name.
    """
    if not settings.HEADROOM.slots.payg_pre_allocation:
        return {}
    keys = {
        (state.project_id, state.flavor_group_name, state.zone)
        for target in targets
        if (state := target.desired) is not None
        and target.is_holding
        and state.resource_type is ResourceType.MEMORY
        and state.flavor_group_name in groups
    }
    return {key: _candidates(key, groups[key[1]]) for key in sorted(keys)}


def _candidates(key: tuple[str, str, str], group: FlavorGroupDef) -> tuple[PaygVM, ...]:
    project_id, _, zone = key
    flavors = {flavor.name: flavor for flavor in group.own_flavors}
    rows = _running_alone().filter(
        project_id=project_id, host__zone=zone, flavor_name__in=list(flavors)
    )
    return tuple(
        PaygVM(
            vm_uuid=row.openstack_id,
            host_id=row.host.pk,
            host_name=row.host.name,
            flavor_name=row.flavor_name,
            flavor_memory_bytes=flavors[row.flavor_name].memory_bytes,
            flavor_vcpus=flavors[row.flavor_name].vcpus,
            resources=ResourceVector(memory_bytes=row.memory_bytes, vcpus=row.vcpus),
        )
        for row in rows.select_related("host").order_by("openstack_id")
        if row.host is not None
        and row.memory_bytes >= flavors[row.flavor_name].memory_bytes
        and row.vcpus >= flavors[row.flavor_name].vcpus
    )


def still_running_alone(vm_uuids: Collection[str]) -> dict[str, int]:
    """Return the host of each VM that is active and in no slot, its row locked until the commit."""
    if not vm_uuids:
        return {}
    rows = _running_alone().filter(openstack_id__in=vm_uuids).order_by("pk")
    locked = rows.select_for_update(of=("self",), no_key=True)
    return {row.openstack_id: row.host_id for row in locked if row.host_id is not None}


def _running_alone() -> QuerySet[Instance]:
    listed = ReservationAllocation.objects.filter(
        vm_uuid=OuterRef("openstack_id"), reservation__kind=ReservationKind.COMMITTED
    )
    return Instance.objects.filter(~Exists(listed), status=ACTIVE, host__isnull=False)
