"""Everything a drain is judged by, and the answer (issue 6, "Safe to drain?")."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import F, Q

from capacity.models import AllocationState, Reservation, ReservationAllocation, ReservationKind
from capacity.selectors.host_table import current_host_table
from failover.constants import PIPELINE_GENERAL
from failover.domain.drain import DrainInput, DrainReport, DrainSlot, DrainVm, plan_drain
from failover.domain.drain_window import SafeWindow
from failover.domain.drill_state import DrillState
from failover.selectors.drain_future import known_changes, safe_window
from failover.selectors.drills import drill_state
from failover.selectors.scheduler import DEFAULT_HYPERVISOR, usable_pipeline
from hosts.models import Domain, Flavor, Host, Instance, Project, ServerGroup
from journal.errors import InvalidInput
from scheduling.intents import Intent
from scheduling.request import (
    HYPERVISOR_TYPE_KEY,
    InstanceGroup,
    PlacementRequest,
    hypervisor_type_from_extra_specs,
    max_per_host_from_rule,
)
from scheduling.resources import ResourceVector

MOST_HOSTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAnswer:
    """Whether hosts may be drained.

    Attributes:
        report: What moves where and what cannot.
        window: When it is safe next, as far as ends of commitments and planned hosts are known;
            None if nothing known helps.
    """

    report: DrainReport
    window: SafeWindow | None


def check_drain(host_names: Collection[str], *, now: datetime) -> DrainAnswer:
    """Return whether hosts may be drained together; writes nothing.

    Args:
        host_names: Names of the hosts.
        now: The present.

    Raises:
        InvalidInput: no host, too many, or unknown ones.
    """
    hosts = _hosts(host_names)
    names = {host.name for host in hosts}
    ask, slots = _loaded(hosts, now)
    report = plan_drain(ask)
    changes = known_changes({host.zone for host in hosts}, hosts=names, now=now)
    others = changes.drained_hosts
    if others:
        ask, slots = _loaded([*hosts, *Host.objects.filter(name__in=others).order_by("name")], now)
    return DrainAnswer(report=report, window=safe_window(ask, slots, changes, hosts=names, now=now))


def _hosts(names: Collection[str]) -> list[Host]:
    wanted = sorted(set(names))
    if not wanted or len(wanted) > MOST_HOSTS:
        raise InvalidInput(f"hosts: 1 to {MOST_HOSTS} names are needed, got {len(wanted)}")
    rows = list(Host.objects.filter(name__in=wanted).order_by("name"))
    unknown = sorted(set(wanted) - {row.name for row in rows})
    if unknown:
        raise InvalidInput(f"unknown hosts: {', '.join(unknown)}", code="unknown_host")
    return rows


def _loaded(hosts: Sequence[Host], now: datetime) -> tuple[DrainInput, dict[int, DrainSlot]]:
    """Return what the drain is judged by, and its committed slots by key."""
    state = drill_state(sorted({host.zone for host in hosts}), now=now)
    ids = [host.pk for host in hosts]
    vms = list(Instance.objects.filter(host_id__in=ids).select_related("host"))
    failover = [
        state.slots[name]
        for host in hosts
        for name in state.slots_on.get(host.name, ())
        if any(user in state.vms for user in state.slots[name].users)
    ]
    largest = {slot.name: _largest_user(state, slot.users) for slot in failover}
    users = Instance.objects.filter(openstack_id__in=largest.values()).select_related("host")
    requests = _Requests([*vms, *users])
    by_uuid = {row.openstack_id: row for row in users}
    slots = _slots(ids)
    return (
        DrainInput(
            hosts=tuple(host.name for host in hosts),
            table=current_host_table(),
            vm_pipeline=usable_pipeline(PIPELINE_GENERAL),
            vms=tuple(
                DrainVm(
                    uuid=row.openstack_id,
                    host=row.host.name,
                    request=requests.of(row, Intent.LIVE_MIGRATION),
                )
                for row in vms
                if row.host is not None and row.memory_bytes and row.vcpus
            ),
            slots=tuple(slots.values()),
            failover_requests={
                slot.name: replace(
                    requests.of(by_uuid[largest[slot.name]], Intent.RESERVE_FOR_FAILOVER),
                    memory_bytes=slot.size.memory_bytes,
                    vcpus=slot.size.vcpus,
                )
                for slot in failover
                if largest[slot.name] in by_uuid and slot.size.memory_bytes and slot.size.vcpus
            },
            state=state,
        ),
        slots,
    )


def _largest_user(state: DrillState, users: Iterable[str]) -> str:
    known = [uuid for uuid in users if uuid in state.vms]
    return max(known, key=lambda uuid: (state.vms[uuid].size.memory_bytes, uuid))


def _slots(host_ids: Collection[int]) -> dict[int, DrainSlot]:
    """Return the committed slots on hosts by key, with what each and its VMs take together."""
    rows = list(
        Reservation.objects.filter(
            Q(target_host_id__in=host_ids) | Q(confirmed_host_id__in=host_ids),
            kind=ReservationKind.COMMITTED,
        )
        .select_related("target_host", "confirmed_host")
        .annotate(commitment_uuid=F("commitment__commitment_uuid"))
    )
    inside = _vms_inside([row.pk for row in rows])
    specs = dict(
        Flavor.objects.filter(name__in={row.resource_name for row in rows}).values_list(
            "name", "extra_specs"
        )
    )
    slots = {}
    for row in rows:
        host = row.confirmed_host or row.target_host
        vms = inside.get(row.pk, {})
        taken = sum(vms.values(), _vector(row.blocked_memory_bytes, row.blocked_vcpus))
        if host is None or not (taken.memory_bytes and taken.vcpus):
            continue
        name = f"{row.commitment_uuid}/{row.slot_index}"
        extra_specs = _texts(specs.get(row.resource_name, {}))
        slots[row.pk] = DrainSlot(
            name=name,
            commitment=str(row.commitment_uuid),
            host=host.name,
            request=PlacementRequest(
                request_key=name,
                memory_bytes=taken.memory_bytes,
                vcpus=taken.vcpus,
                zone=row.zone,
                project_id=row.project_id,
                hypervisor_type=hypervisor_type_from_extra_specs(extra_specs),
                extra_specs=extra_specs,
                lock_reservations=True,
            ),
            vm_uuids=tuple(sorted(vms)),
        )
    return slots


def _vms_inside(reservation_ids: Collection[int]) -> dict[int, dict[str, ResourceVector]]:
    """Return the VMs that were seen in slots, with their sizes."""
    found: dict[int, dict[str, ResourceVector]] = {}
    rows = ReservationAllocation.objects.filter(
        reservation_id__in=reservation_ids, state=AllocationState.CONFIRMED
    )
    for row in rows:
        vms = found.setdefault(row.reservation_id, {})
        vms[row.vm_uuid] = _vector(row.memory_bytes, row.vcpus)
    return found


class _Requests:
    """What VMs ask of a new host; looks domains and server groups up once."""

    def __init__(self, vms: Sequence[Instance]) -> None:
        projects = dict(
            Project.objects.filter(openstack_id__in={row.project_id for row in vms}).values_list(
                "openstack_id", "domain_id"
            )
        )
        names = dict(
            Domain.objects.filter(openstack_id__in=set(projects.values())).values_list(
                "openstack_id", "name"
            )
        )
        self._domains = {
            project: names[domain] for project, domain in projects.items() if domain in names
        }
        uuids = [row.openstack_id for row in vms]
        rows = list(ServerGroup.objects.filter(members__overlap=uuids))
        hosts = dict(
            Instance.objects.filter(
                openstack_id__in={member for row in rows for member in row.members}
            ).values_list("openstack_id", "host__name")
        )
        self._groups = {
            member: InstanceGroup(
                policy=row.policy,
                hosts=frozenset(hosts[one] for one in row.members if hosts.get(one)),
                members=frozenset(row.members),
                max_per_host=max_per_host_from_rule(row.rules.get("max_server_per_host")),
            )
            for row in rows
            for member in row.members
        }

    def of(self, vm: Instance, intent: Intent) -> PlacementRequest:
        """Return what a VM asks of a new host."""
        specs = _texts(vm.flavor_extra_specs)
        host = vm.host
        own_type = host.hypervisor_type if host is not None else ""
        hypervisor = specs.get(HYPERVISOR_TYPE_KEY) or own_type or DEFAULT_HYPERVISOR
        return PlacementRequest(
            request_key=vm.openstack_id,
            memory_bytes=vm.memory_bytes,
            vcpus=vm.vcpus,
            zone=host.zone if host is not None else vm.zone,
            project_id=vm.project_id,
            flavor_name=vm.flavor_name,
            extra_specs={**specs, HYPERVISOR_TYPE_KEY: hypervisor},
            domain_name=self._domains.get(vm.project_id),
            domain_is_unresolved=bool(vm.project_id) and vm.project_id not in self._domains,
            instance_group=self._groups.get(vm.openstack_id),
            source_host=host.name if host is not None else "",
            lock_reservations=True,
            intent=intent,
        )


def _vector(memory_bytes: int, vcpus: int) -> ResourceVector:
    return ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)


def _texts(specs: Mapping[str, Any]) -> dict[str, str]:  # Any: JSON as Nova sent it
    return {str(name): str(word) for name, word in specs.items()}
