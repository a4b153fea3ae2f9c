"""Hypervisors as objects (spec hosts, C.1 to C.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from bridge.domain.kinds import Naming, ObjectKind
from bridge.domain.objects import Condition, Json, Rendered, present, resources
from bridge.domain.quantities import timestamp

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
TRUTHS: Final = {"True": True, "False": False}
#: What Kubernetes takes as the value of a label; there are no labels of other values.
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """A hypervisor; pairs are bytes of memory and vCPUs.

    Attributes:
        ratios: Of memory, vCPUs and disk, as decimal numbers.
        held: Held room by who holds it: ``committed``, ``failover``, ``inFlight``.
        instances: Id, name and whether it runs, of each VM, in order of the ids.
        reported: Condition types of the host itself -> ``True``, ``False`` or ``Unknown``.
        changed_at: When the row was written last.
    """

    source_id: int
    name: str
    plain_name: str
    zone: str
    building_block: str
    is_enabled: bool
    disabled_reason: str
    maintenance: str
    custom_traits: tuple[str, ...]
    aggregate_uuids: tuple[str, ...]
    allowed_projects: tuple[str, ...]
    ratios: tuple[str, str, str]
    openstack_id: str
    service_id: str
    provider_uuid: str
    hypervisor_type: str
    cpu_arch: str
    state: str
    down_since: datetime | None
    terminating_since: datetime | None
    traits: tuple[str, ...]
    total: tuple[int, int]
    effective: tuple[int, int]
    allocated: tuple[int, int]
    held: Mapping[str, tuple[int, int]]
    instances: tuple[tuple[str, str, bool], ...]
    condition: Condition
    reported: Mapping[str, str]
    changed_at: datetime
    part_ids: tuple[int, ...] = ()


def render_host(row: HostRow, naming: Naming) -> Rendered:
    """Return a hypervisor (spec hosts, C.1 to C.3)."""
    spec: Json = {
        "hostName": row.name,
        "availabilityZone": row.zone,
        "buildingBlock": row.building_block,
        "enabled": row.is_enabled,
        "disabledReason": row.disabled_reason,
        "maintenance": row.maintenance,
        "customTraits": list(row.custom_traits),
        "aggregates": list(row.aggregate_uuids),
        "allowedProjects": list(row.allowed_projects),
        "overcommit": dict(zip(("memory", "cpu", "disk"), row.ratios, strict=True)),
    }
    status = present(
        {
            "hypervisorId": row.openstack_id,
            "serviceId": row.service_id,
            "providerId": row.provider_uuid,
            "hypervisorType": row.hypervisor_type,
            "cpuArch": row.cpu_arch,
            "state": row.state,
            "downSince": timestamp(row.down_since),
            "terminatingSince": timestamp(row.terminating_since),
            "traits": list(row.traits),
            "capacity": _room(row.total),
            "effectiveCapacity": _room(row.effective),
            "allocation": _room(row.allocated),
            "held": {name: _room(pair) for name, pair in row.held.items()},
            "numInstances": len(row.instances),
            "instances": [
                {"id": vm_id, "name": name, "active": is_active}
                for vm_id, name, is_active in row.instances
            ]
            or None,
        }
    )
    labels = {ZONE_LABEL: row.zone, f"{naming.group}/building-block": row.building_block}
    return Rendered(
        kind=ObjectKind.HOST,
        source_id=row.source_id,
        name=naming.object_name(row.plain_name),
        zone=row.zone,
        spec=spec,
        status=status,
        condition=row.condition,
        labels={key: value for key, value in labels.items() if _LABEL_VALUE.fullmatch(value)},
        part_ids=row.part_ids,
        others={
            type_name: Condition(
                status=TRUTHS.get(said),
                reason="Reported",
                message="",
                changed_at=row.changed_at,
                is_latest=True,
            )
            for type_name, said in sorted(row.reported.items())
            if type_name and type_name != "Ready"
        },
    )


def _room(pair: tuple[int, int]) -> Json:
    memory_bytes, vcpus = pair
    return resources(memory_bytes=memory_bytes, vcpus=vcpus)
