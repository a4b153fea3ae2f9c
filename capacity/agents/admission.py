"""Whether a host has room for something, and what is the most that it has (spec hosts, A.9, D.6).

CPUs and memory are the ledger's, so that slots and VMs in flight count; the rest is what the host's
agent reported last, with what slots hold of network, disk I/O and GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from headroom_host_agent.resources.admission import (
    AllocationRequest,
    GpuSlots,
    Shortage,
    largest_fit,
    room,
    shortages,
)
from headroom_host_agent.resources.facts import ResourceType, Source
from headroom_host_agent.resources.status import ResourceStatus, as_ratio

from capacity.models import HostCapacity
from hosts.agents.models import HostAgent
from hosts.agents.resource_models import HostResource, OtherResource
from hosts.models import Host
from journal.errors import InvalidInput

#: What the ledger does not know; of a host without a report it is not looked at.
REPORTED: Final = (ResourceType.DISK, ResourceType.NETWORK, ResourceType.DISK_IO)


class HostRoomUnknown(InvalidInput):
    """There is no such host, or its room is not known yet."""

    code = "host_room_unknown"
    status = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a host says to a request.

    Attributes:
        failures: In the order of resources.
        largest_fit: The largest request of the same shape that fits; None when none does.
        unchecked: Resources that were asked for and of which nothing is known.
    """

    failures: tuple[Shortage, ...]
    largest_fit: AllocationRequest | None
    unchecked: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether nothing is short."""
        return not self.failures


def check_admission(host_name: str, request: AllocationRequest) -> Admission:
    """Return whether a host has room for a request; nothing is held for it.

    Raises:
        HostRoomUnknown: There is no such host.
    """
    rooms = HostCapacity.objects.select_related("host").filter(host__name=host_name)
    held = rooms.first()
    if held is None:
        raise HostRoomUnknown(f"no room of a host {host_name!r} is known", field="host")
    agents = HostAgent.objects.filter(host_name=host_name, decommissioned_at__isnull=True)
    report: Mapping[str, Any] | None = agents.values_list("report", flat=True).first()
    rows = HostResource.objects.filter(host=held.host).values_list("resource", "reserved")
    reserved = dict(rows)
    statuses = _of_ledger(held) | _of_report(report or {}, reserved)
    gpu = _gpu(report, reserved.get(OtherResource.GPU.value, 0))
    failures = (
        *shortages(statuses, gpu, request),
        *_stale(statuses, request),
    )
    fit = largest_fit(statuses, gpu, request) if failures else request
    return Admission(
        failures=tuple(sorted(failures, key=lambda one: list(ResourceType).index(one.resource))),
        largest_fit=fit,
        unchecked=() if report else _unchecked(request),
    )


def _of_ledger(held: HostCapacity) -> dict[ResourceType, ResourceStatus]:
    host: Host = held.host
    vcpus = held.allocated_vcpus + held.committed_vcpus
    vcpus += held.failover_vcpus + held.in_flight_vcpus
    memory_bytes = held.allocated_memory_bytes + held.committed_memory_bytes
    memory_bytes += held.failover_memory_bytes + held.in_flight_memory_bytes
    found = (
        ResourceStatus(
            type=ResourceType.CPU,
            capacity=host.total_vcpus,
            effective_limit=held.effective_vcpus,
            allocated=vcpus,
            oversub_ratio=as_ratio(host.vcpus_ratio),
            source=Source.REPORTED,
        ),
        ResourceStatus(
            type=ResourceType.MEMORY,
            capacity=host.total_memory_bytes,
            effective_limit=held.effective_memory_bytes,
            allocated=memory_bytes,
            oversub_ratio=as_ratio(host.memory_ratio),
            source=Source.REPORTED,
        ),
    )
    return {one.type: one for one in found}


def _of_report(
    report: Mapping[str, Any],  # Any: JSON
    reserved: Mapping[str, int],
) -> dict[ResourceType, ResourceStatus]:
    return {
        kind: ResourceStatus(
            type=kind,
            capacity=told["capacity"],
            effective_limit=told["effective_limit"],
            allocated=told["allocated"],
            oversub_ratio=as_ratio(Decimal(str(told["oversub_ratio"]))),
            source=Source(told["source"]),
            pending=told["pending"] + reserved.get(kind.value, 0),
            error=told.get("error", "") or ("a lister failed" if told["stale"] else ""),
        )
        for kind in REPORTED
        if (told := report.get(kind.value)) is not None
    }


def _gpu(report: Mapping[str, Any] | None, reserved: int) -> GpuSlots | None:  # Any: JSON
    told = (report or {}).get("gpu")
    if told is None:
        return None
    return GpuSlots(
        mode=told["mode"],
        total=told["total_slots"],
        used=told["used_slots"] + reserved,
        allocatable=max(0, told["allocatable_slots"] - reserved),
        disabled_reason=told.get("placement_disabled_reason", ""),
    )


def _stale(
    statuses: Mapping[ResourceType, ResourceStatus], request: AllocationRequest
) -> list[Shortage]:
    """Return what is not admitted blindly: a lister of the host failed (spec hosts, A.7)."""
    return [
        Shortage(
            resource=kind,
            requested=request.amount_of(kind),
            available=0,
            allocated=status.allocated,
            effective_limit=status.effective_limit,
            oversub_ratio=status.oversub_ratio,
            unit="bytes" if kind == ResourceType.DISK else "bytes/s",
            remark=f"what is taken is not known: {status.error}",
        )
        for kind, status in statuses.items()
        if status.stale and 0 < request.amount_of(kind) <= room(status)
    ]


def _unchecked(request: AllocationRequest) -> tuple[str, ...]:
    return tuple(kind.value for kind in REPORTED if request.amount_of(kind) > 0)
