"""What operators order about hosts that no object of their own describes (spec hosts, C.1, D.6).

An order outlives the lists of the cloud: those never write maintenance, and let allowed projects be
as they were ordered. Locks: the agent, then the host's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import transaction
from django.db.models import Q

from hosts.agents.models import AgentMode
from hosts.agents.modes import set_mode
from hosts.domain.capacity import allowed_projects
from hosts.domain.maintenance import maintenance_problem
from hosts.models import Aggregate, Host, Maintenance
from journal.actors import Actor
from journal.errors import HeadroomError, InvalidInput
from journal.services import Change, record_changes

MOST_PROJECTS: Final = 1000


class UnknownHost(InvalidInput):
    """There is no such host."""

    code = "host_unknown"
    status = 404


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
    """

    agent_mode: AgentMode | None = None
    maintenance: Maintenance | None = None
    maintenance_reason: str = ""
    allowed_projects: Sequence[str] | None = None
    leaves_projects_to_lists: bool = False

    @property
    def is_of_host(self) -> bool:
        """Whether something is to be changed that an object of the host would say."""
        return (
            self.maintenance is not None
            or self.allowed_projects is not None
            or self.leaves_projects_to_lists
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
            raise UnknownHost(f"there is no host {name!r}")
        if order.agent_mode is not None:
            set_mode(name, order.agent_mode, actor=actor, request_id=request_id, reason=reason)
        host = Host.objects.select_for_update(no_key=True, of=("self",)).get(name=name)
        if order.is_of_host:
            _change(host, order, actor=actor, request_id=request_id, reason=reason)
    told = {"host": name, **_facts(host)}
    return told if order.agent_mode is None else told | {"agent_mode": order.agent_mode.value}


def _change(host: Host, order: HostOrder, *, actor: Actor, request_id: str, reason: str) -> None:
    if host.is_self_described:
        raise HostSpeaksForItself(f"{host.name} has an object of its own, which says that")
    before = _facts(host)
    if order.leaves_projects_to_lists:
        host.ordered_projects, host.allowed_projects = None, list(_projects_of_lists(host))
    elif order.allowed_projects is not None:
        ordered = sorted(set(order.allowed_projects))
        host.ordered_projects, host.allowed_projects = ordered, ordered
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
            "generation",
        ]
    )
    change = Change(
        action="host_changed",
        object_type="host",
        object_id=host.name,
        before=before,
        after=after,
        reason=reason or order.maintenance_reason,
    )
    record_changes([change], actor=actor, request_id=request_id)


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
    }
