"""Hosts that VMs are to leave: opened by an order, counted until nothing is left (spec hosts, C.3).

Locks: one host's row at a time, then its open eviction. A look is one short transaction for each
open eviction; two at once say the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Count, Sum

from hosts.domain.evicting import Step, next_step
from hosts.models import Eviction, EvictionEnd, Host, Instance, Maintenance
from hosts.services.host_orders import UnknownHost, lock_host
from journal.actors import Actor
from journal.clock import database_now
from journal.services import Change, record_changes

MOST_LISTED: Final = 100
KEPT: Final = timedelta(days=30)
IN_SERVICE: Final = (Maintenance.NONE, Maintenance.HA)
_BATCH: Final = 5000
_STEPS: Final = list(Step)


def open_eviction(host: Host, *, reason: str, actor: Actor) -> Eviction:
    """Keep that a host is to become empty, with what is on it; an open one gets the new reason.

    To be called in the transaction of the order.

    Raises:
        UnknownHost: There is no such host any more.
    """
    if lock_host(pk=host.pk) is None:
        raise UnknownHost(host.name)
    open_ones = Eviction.objects.select_for_update(no_key=True, of=("self",))
    row = open_ones.filter(host=host, closed_at=None).first()
    if row is None:
        row = Eviction(host=host, opened_by=actor.name)
    row.reason = reason
    _count(row)
    row.save()
    return row


def look_at_evictions(*, actor: Actor, request_id: str) -> dict[str, int]:
    """Count what is left of hosts that are to become empty, and close what is over.

    Returns:
        How many are open still, and how many ended how.
    """
    found: Counter[str] = Counter()
    open_ones = Eviction.objects.filter(closed_at=None).order_by("pk")
    for pk in list(open_ones.values_list("pk", flat=True)):
        with transaction.atomic(durable=True):
            found[_look(pk, actor=actor, request_id=request_id)] += 1
    return dict(found)


def prune_evictions() -> int:
    """Forget evictions that ended 30 days ago; return how many."""
    ended = Eviction.objects.filter(closed_at__lt=database_now() - KEPT)
    old = ended.filter(service_disabled=False).order_by("pk")  # others are to be enabled once
    keys = list(old.values_list("pk", flat=True)[:_BATCH])
    Eviction.objects.filter(pk__in=keys).delete()
    return len(keys)


def _look(pk: int, *, actor: Actor, request_id: str) -> str:
    """Look at one; return how it stands."""
    row = (
        Eviction.objects.select_for_update(no_key=True, of=("self",))
        .select_related("host")
        .filter(pk=pk, closed_at=None)
        .first()
    )
    if row is None:
        return "gone"
    _count(row)
    if row.host.maintenance in IN_SERVICE:
        row.end = EvictionEnd.CANCELLED
    elif row.outstanding_vms == 0:
        row.end = EvictionEnd.SUCCEEDED
    if row.end:
        row.closed_at = row.looked_at
        change = Change(
            action="host_eviction_ended",
            object_type="host",
            object_id=row.host.name,
            after={"end": row.end, "vms": row.outstanding_vms},
            reason=row.reason,
        )
        record_changes([change], actor=actor, request_id=request_id)
    row.save()
    return row.end or "open"


def _count(row: Eviction) -> None:
    vms = Instance.objects.filter(host_id=row.host_id)
    sums = vms.aggregate(count=Count("pk"), memory_bytes=Sum("memory_bytes", default=0))
    row.outstanding_vms, row.outstanding_memory_bytes = sums["count"], int(sums["memory_bytes"])
    row.outstanding = _listed(vms.order_by("pk"), failed=row.failed)
    row.looked_at = database_now()


def _listed(
    vms: Iterable[Instance], *, failed: Mapping[str, Mapping[str, str]]
) -> list[dict[str, Any]]:
    """Return what is told of VMs: those first that somebody must look at."""
    steps = [
        (
            next_step(status=vm.status, task_state=vm.task_state, power_state=vm.power_state),
            vm,
        )
        for vm in vms
    ]
    steps.sort(key=lambda pair: (_STEPS.index(pair[0]), pair[1].pk))
    return [
        {
            "uuid": vm.openstack_id,
            "name": vm.name,
            "status": vm.status,
            "step": step.value,
            **({"failed": reason["reason"]} if (reason := failed.get(vm.openstack_id)) else {}),
        }
        for step, vm in steps[:MOST_LISTED]
    ]
