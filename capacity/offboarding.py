"""What is still on hosts that are taken out of service (spec hosts, C.3, D.3)."""

from __future__ import annotations

from typing import Any

from django.db.models import Exists, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from capacity.models import Reservation
from hosts.agents.models import HostAgent
from hosts.domain.liveness import UNMANAGED
from hosts.domain.offboarding import Holdings, conditions_of, shown_state
from hosts.domain.readiness import Readiness, host_readiness
from hosts.models import Host, Instance


def reservations_on(host_name: str) -> int:
    """Return how many reservations of any kind are on a host, or are leaving it."""
    targeted = Reservation.objects.filter(target_host__name=host_name)
    moving = Reservation.objects.filter(confirmed_host__name=host_name)
    return targeted.count() + moving.exclude(target_host__name=host_name).count()


def holdings_of(host: Host) -> Holdings:
    """Return what is still on a host."""
    agents = HostAgent.objects.filter(host_name=host.name, decommissioned_at__isnull=True)
    return Holdings(
        maintenance=host.maintenance,
        reservations=reservations_on(host.name),
        vms=Instance.objects.filter(host=host).count(),
        has_agent=agents.exists(),
        aggregates=len(host.aggregate_uuids),
    )


def life_of(host: Host, holdings: Holdings) -> Readiness:
    """Return whether a host takes new VMs and slots, and if not, where in its life it is.

    Conditions that somebody states of it count before those that follow from what is on it.
    """
    derived: dict[str, object] = {}
    if not host.is_self_described:
        derived = {name: one.status for name, one in conditions_of(holdings).items()}
    return host_readiness(
        {**derived, **host.conditions},
        state="fenced" if host.fenced_since is not None else host.state,
        status=host.status,
        maintenance=host.maintenance,
        held_off=host.slots_held_off,
        reasons=host.condition_reasons,
    )


def with_holdings(rows: QuerySet[Host]) -> QuerySet[Host]:
    """Annotate what :func:`listed_state` reads, with ``liveness`` of the agent or ``unmanaged``."""
    agents = HostAgent.objects.filter(host_name=OuterRef("name"), decommissioned_at__isnull=True)
    annotated: QuerySet[Host] = rows.annotate(
        liveness=Coalesce(Subquery(agents.values("lease__liveness")[:1]), Value(UNMANAGED)),
        holds_slots=Exists(Reservation.objects.filter(target_host=OuterRef("pk"))),
        holds_moving=Exists(Reservation.objects.filter(confirmed_host=OuterRef("pk"))),
        holds_vms=Exists(Instance.objects.filter(host=OuterRef("pk"))),
    )
    return annotated


def listed_state(host: Any) -> str:  # Any: a host with annotations
    """Return the one word that lists show of a host of :func:`with_holdings` (spec hosts, D.3)."""
    holdings = Holdings(
        maintenance=host.maintenance,
        reservations=int(host.holds_slots or host.holds_moving),
        vms=int(host.holds_vms),
        has_agent=host.liveness != UNMANAGED,
        aggregates=len(host.aggregate_uuids),
    )
    return shown_state(life_of(host, holdings), host.liveness)
