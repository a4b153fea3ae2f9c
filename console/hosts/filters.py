"""List filters that ask the hosts table for their choices, not the large table they filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import F, Func, Q, QuerySet
from django.http import HttpRequest

from console.base import AnswerFilter, ChoiceFilter
from hosts.models import Host, HostState, HostStatus, Maintenance

READY_HOST = Q(
    state=HostState.UP,
    status=HostStatus.ENABLED,
    maintenance__in=[Maintenance.NONE, Maintenance.HA],
)


class ZoneFilter(ChoiceFilter):
    """Rows of one availability zone."""

    title = "zone"
    parameter_name = "zone"
    field = "zone"

    def words(self) -> Sequence[tuple[str, str]]:
        """Return the zones that hosts are in."""
        zones = Host.objects.order_by("zone").values_list("zone", flat=True).distinct()
        return [(zone, zone) for zone in zones if zone]


class TraitFilter(ChoiceFilter):
    """Hosts that have a trait."""

    title = "trait"
    parameter_name = "trait"

    def words(self) -> Sequence[tuple[str, str]]:
        """Return every trait that a host has."""
        traits = Host.objects.order_by().values_list(
            Func(F("traits"), function="unnest"), flat=True
        )
        return [(trait, trait) for trait in sorted(set(traits.distinct()))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep hosts with the trait."""
        chosen = self.value()
        return queryset if chosen is None else queryset.filter(traits__contains=[chosen])


class ReadyFilter(AnswerFilter):
    """Hosts that take new VMs and slots, or do not."""

    title = "ready"
    parameter_name = "ready"
    answers = {"yes": ("ready", lambda: READY_HOST), "no": ("not ready", lambda: ~READY_HOST)}
