"""Sums of the rooms of hosts by zone: what the dashboard, proposals and the history show."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, F, QuerySet, Sum
from django.db.models.functions import Greatest

from capacity.models import HostCapacity

TAKEN = ("allocated", "committed", "failover", "in_flight")


def zone_sums() -> QuerySet[HostCapacity, dict[str, Any]]:
    """Return each zone's sums over its hosts, by name of the zone.

    Memory in bytes by who takes it: ``vms``, ``committed``, ``failover``, ``in_flight``; ``free``
    of ``installed``, where an over-subscribed host has 0 and not less. The same of vCPUs ends in
    ``_vcpus`` (what is held in ``_held_vcpus``); ``cores`` are all of them.
    """
    free_memory = F("effective_memory_bytes") - sum(
        (F(f"{kind}_memory_bytes") for kind in TAKEN[1:]), F("allocated_memory_bytes")
    )
    free_vcpus = F("effective_vcpus") - sum(
        (F(f"{kind}_vcpus") for kind in TAKEN[1:]), F("allocated_vcpus")
    )
    return (
        HostCapacity.objects.order_by("zone")
        .values("zone")
        .annotate(
            hosts=Count("pk"),
            installed=Sum("effective_memory_bytes"),
            vms=Sum("allocated_memory_bytes"),
            committed=Sum("committed_memory_bytes"),
            failover=Sum("failover_memory_bytes"),
            in_flight=Sum("in_flight_memory_bytes"),
            free=Sum(Greatest(free_memory, 0)),
            cores=Sum("effective_vcpus"),
            vms_vcpus=Sum("allocated_vcpus"),
            committed_held_vcpus=Sum("committed_vcpus"),
            failover_held_vcpus=Sum("failover_vcpus"),
            in_flight_held_vcpus=Sum("in_flight_vcpus"),
            free_vcpus=Sum(Greatest(free_vcpus, 0)),
        )
    )
