"""What operators order about hosts that no object of their own describes (spec hosts, C.1, D.6).

An order outlives the lists of the cloud: those never write maintenance and high availability, and
let allowed projects and ratios be as they were ordered. Locks: the agent, then the host's row, then
its room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from django.db import transaction
from django.db.models import Q

from core.stored_text import shortened
from hosts.agents.models import AgentMode
from hosts.agents.modes import set_mode
from hosts.domain.capacity import (
    MEMORY_MB,
    MIB,
    ONE,
    VCPU,
    HostInventory,
    allowed_projects,
    resources_of,
    shown_ratio,
)
from hosts.domain.maintenance import maintenance_problem
from hosts.domain.overcommit import (
    CPU,
    MEMORY,
    decided_ratios,
    ordered_ratios,
    stored_ratios,
)
from hosts.models import Aggregate, Host, Maintenance
from hosts.region.registry import registry
from journal.actors import Actor
from journal.errors import HeadroomError, InvalidInput
from journal.services import Change, record_changes

MOST_PROJECTS: Final = 1000
OF_RATIOS: Final = ("vcpus_ratio", "memory_ratio", "effective_vcpus", "effective_memory_bytes")


class UnknownHost(InvalidInput):
    """There is no such host."""

    code = "host_unknown"
    status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no host {shortened(name)!r}")


class HostSpeaksForItself(HeadroomError):  # noqa: N818 - a state of the host
    """An object of its own says what is asked to be changed."""

    code = "host_described_elsewhere"
    status = 409


class MaintenanceRefused(HeadroomError):  # noqa: N818 - a state of the host
    """The host's maintenance may not become that."""

    code = "maintenance_refused"
    status = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOrder:
    """What is to be changed; what is None stays.

    Attributes:
        allowed_projects: Ids; nobody else's VMs come to the host. Empty means everybody.
        leaves_projects_to_lists: Allowed projects are what the cloud's aggregates say again.
        overcommit: ``cpu``, ``memory`` to their ratio, as :mod:`hosts.domain.overcommit` allows it;
            what is not named, and all where it is empty, is what the cloud says.
    """

    agent_mode: AgentMode | None = None
    maintenance: Maintenance | None = None
    maintenance_reason: str = ""
    allowed_projects: Sequence[str] | None = None
    leaves_projects_to_lists: bool = False
    overcommit: Mapping[str, Decimal] | None = None
    high_availability: bool | None = None

    @property
    def is_of_host(self) -> bool:
        """Whether something is to be changed that an object of the host would say."""
        return (
            self.maintenance is not None
            or self.allowed_projects is not None
            or self.leaves_projects_to_lists
            or self.overcommit is not None
            or self.high_availability is not None
        )


def change_host(
    name: str, order: HostOrder, *, actor: Actor, request_id: str, reason: str = ""
) -> dict[str, Any]:
    """Change a host and return how it is then; all of an order is carried out, or nothing.

    Raises:
        UnknownHost: There is no such host.
        NoAgent: A mode is ordered, and the host has no agent.
        HostSpeaksForItself: An object of the host's own says what is ordered.
        MaintenanceRefused: See :func:`hosts.domain.maintenance.maintenance_problem`.
    """
    with transaction.atomic():
        if not Host.objects.filter(name=name).exists():
            raise UnknownHost(name)
        if order.agent_mode is not None:
            set_mode(name, order.agent_mode, actor=actor, request_id=request_id, reason=reason)
        host = lock_host(name=name)
        if host is None:
            raise UnknownHost(name)
        if order.is_of_host:
            _change(host, order, actor=actor, request_id=request_id, reason=reason)
    told = {"host": name, **_facts(host)}
    return told if order.agent_mode is None else told | {"agent_mode": order.agent_mode.value}


def lock_host(**which: object) -> Host | None:
    """Lock the host that a unique column names, and return it; None if there is none any more."""
    return Host.objects.select_for_update(no_key=True, of=("self",)).filter(**which).first()


def _change(host: Host, order: HostOrder, *, actor: Actor, request_id: str, reason: str) -> None:
    if host.is_self_described:
        raise HostSpeaksForItself(f"{host.name} has an object of its own, which says that")
    before = _facts(host)
    _put(host, order)
    if order.maintenance is not None:
        more = _facts(host) != before or order.agent_mode is not None
        problem = maintenance_problem(
            host.maintenance,
            order.maintenance,
            reason=order.maintenance_reason,
            is_more_changed=more,
        )
        if problem:
            raise MaintenanceRefused(f"{host.name}: {problem}", host=host.name)
        host.maintenance = order.maintenance.value
        host.maintenance_reason = order.maintenance_reason if order.maintenance else ""
    elif host.maintenance == Maintenance.TERMINATION and _facts(host) != before:
        raise MaintenanceRefused(f"{host.name} is being terminated: nothing else changes")
    after = _facts(host)
    if after == before:
        return
    host.generation += 1
    host.save(
        update_fields=[
            "maintenance",
            "maintenance_reason",
            "ordered_projects",
            "allowed_projects",
            "ordered_overcommit",
            *OF_RATIOS,
            "high_availability",
            "generation",
        ]
    )
    if after["overcommit"] != before["overcommit"]:
        registry.ledger.settle([host.pk])
    change = Change(
        action="host_changed",
        object_type="host",
        object_id=host.name,
        before=before,
        after=after,
        reason=reason or order.maintenance_reason,
    )
    record_changes([change], actor=actor, request_id=request_id)


def _put(host: Host, order: HostOrder) -> None:
    """Set what is ordered of a host, but for its maintenance."""
    if order.overcommit is not None:
        set_overcommit(host, ordered=order.overcommit)
    if order.high_availability is not None:
        host.high_availability = order.high_availability
    if order.leaves_projects_to_lists:
        host.ordered_projects, host.allowed_projects = None, list(_projects_of_lists(host))
    elif order.allowed_projects is not None:
        ordered = sorted(set(order.allowed_projects))
        host.ordered_projects, host.allowed_projects = ordered, ordered


def set_overcommit(
    host: Host,
    *,
    ordered: Mapping[str, Decimal] | None = None,
    ruled: Mapping[str, Decimal] | None = None,
) -> None:
    """Set what is ordered of a host, or what rules say, and what it may promise then.

    The row is locked and saved by the caller; the room follows.
    """
    listed = _inventories_of_lists(host)
    if ordered is not None:
        host.ordered_overcommit = stored_ratios(ordered) or None
    if ruled is not None:
        host.ruled_overcommit = stored_ratios(ruled) or None
    decided = decided_ratios(host.ruled_overcommit, host.ordered_overcommit)
    vcpus, memory, _ = resources_of(listed, decided)
    host.vcpus_ratio, host.effective_vcpus = shown_ratio(vcpus.ratio), vcpus.effective
    host.memory_ratio, host.effective_memory_bytes = shown_ratio(memory.ratio), memory.effective


def _inventories_of_lists(host: Host) -> dict[str, HostInventory]:
    """Return what the cloud says that the host has.

    A client of our Placement may have said otherwise since the last list: then amounts are as that
    says, and its ratios come back with the next look at it.
    """
    stored = {
        name: HostInventory(
            total=one["total"],
            reserved=one.get("reserved") or 0,
            ratio=Decimal(str(one.get("allocation_ratio") or 1)),
        )
        for name, one in host.provider_inventories.items()
    }
    vcpus, memory, _ = resources_of(stored, {})
    has = (host.total_vcpus, host.reserved_vcpus, host.total_memory_bytes)
    if (vcpus.total, vcpus.reserved, memory.total) == has:
        return stored
    was = decided_ratios(host.ruled_overcommit, host.ordered_overcommit)
    return {
        VCPU: HostInventory(
            total=host.total_vcpus,
            reserved=host.reserved_vcpus,
            ratio=ONE if CPU in was else host.vcpus_ratio,
        ),
        MEMORY_MB: HostInventory(
            total=host.total_memory_bytes // MIB,
            reserved=host.reserved_memory_bytes // MIB,
            ratio=ONE if MEMORY in was else host.memory_ratio,
        ),
    }


def _projects_of_lists(host: Host) -> tuple[str, ...]:
    names = [name for name in (host.service_host, host.name) if name]
    member = Q(host_names__overlap=names)
    aggregates = Aggregate.objects.filter(member).order_by("name", "uuid")
    return allowed_projects(aggregate.metadata for aggregate in aggregates)


def _facts(host: Host) -> dict[str, Any]:
    return {
        "maintenance": host.maintenance,
        "maintenance_reason": host.maintenance_reason,
        "allowed_projects": list(host.allowed_projects),
        "are_projects_ordered": host.ordered_projects is not None,
        "overcommit": {CPU: float(host.vcpus_ratio), MEMORY: float(host.memory_ratio)},
        "ordered_overcommit": {
            resource: float(ratio)
            for resource, ratio in ordered_ratios(host.ordered_overcommit).items()
        },
        "high_availability": host.high_availability,
    }
