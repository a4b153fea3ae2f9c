"""The guard over hosts that promise too much, run at a given time, and what it looks at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from capacity.guard.oversubscription import GuardPolicy, GuardReport, check_oversubscription
from capacity.models import HostCapacity, Reservation
from hosts.models import Host
from journal.actors import Actor
from scheduling.resources import GIB
from tests import factories

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
GRACE = timedelta(minutes=2)
POLICY = GuardPolicy(grace_period=GRACE, min_check_interval=timedelta(seconds=30))
ACTOR = Actor(name="test")


def guard(now: datetime = NOW, policy: GuardPolicy = POLICY) -> GuardReport:
    return check_oversubscription(actor=ACTOR, request_id="req-guard", now=now, policy=policy)


def room_of(host: Host) -> HostCapacity:
    return HostCapacity.objects.get(host=host)


def seen(host: Host, since: datetime) -> None:
    HostCapacity.objects.filter(host=host).update(oversubscribed_since=since)


def shrink(host: Host, memory_gib: int, vcpus: int | None = None) -> None:
    host.effective_memory_bytes = memory_gib * GIB
    host.effective_vcpus = host.effective_vcpus if vcpus is None else vcpus
    host.save()
    factories.recount_room(host)


def on_host(host: Host) -> list[int]:
    return [
        row.memory_bytes // GIB
        for row in Reservation.objects.filter(target_host=host).order_by("memory_bytes", "pk")
    ]
