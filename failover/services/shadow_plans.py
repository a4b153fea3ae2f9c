"""Shadow plans: a zone's slots planned from scratch (spec failover, 17.4)."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

import numpy as np
from django.conf import settings
from django.db import transaction

from capacity.host_table import current_host_table
from capacity.locks import zone_lock
from failover.conf import plan_options
from failover.domain.covering import plan_cover
from failover.domain.drill_columns import best_bound, coverage_costs
from failover.domain.plan import CleaningPlan, HostChooser
from failover.domain.shadow import bare_zone, zone_after
from failover.domain.zone_columns import ZoneSnapshot
from failover.drill_models import ShadowPlan, ShadowState
from failover.selectors.drills import zone_snapshot
from failover.selectors.scheduler import SchedulerHosts
from journal.heavy import Computing, computed_here
from scheduling.table import HostTable

KEPT: Final = timedelta(days=90)
LIVE_STATES: Final = (ShadowState.PROPOSED, ShadowState.RUNNING)


class HostsWithoutSlots(SchedulerHosts):
    """What the scheduler would say if the zone had no failover slots."""

    @cached_property
    def table(self) -> HostTable:
        """Hosts of all zones; those of the zone without failover blocks."""
        table = current_host_table()
        rows = [table.row_of[name] for name in self.snapshot.hosts.names if name in table.row_of]
        nothing = np.zeros(len(rows), dtype=np.int64)
        return table.replace_columns(
            rows, {"failover_memory_bytes": nothing, "failover_vcpus": nothing}
        )


def compute_shadow_plan(
    zone: str,
    *,
    request_id: str,
    now: datetime,
    computed: Computing = computed_here,
) -> ShadowPlan:
    """Plan a zone from scratch and store the plan with what it would save.

    It is proposed when it covers every VM at least as well and saves more than the threshold; else
    it is kept for the record. An older plan becomes obsolete.

    Args:
        computed: Where the plan is computed.
    """
    snapshot = zone_snapshot(zone, now=now)
    bare = bare_zone(snapshot)
    chooser = HostsWithoutSlots(bare)
    chooser.read()
    row = computed(lambda: _planned_row(snapshot, bare, chooser))
    row.computed_at, row.request_id = now, request_id
    with transaction.atomic(durable=True):
        zone_lock([zone])
        ShadowPlan.objects.filter(zone=zone, state__in=LIVE_STATES).update(
            state=ShadowState.OBSOLETE, slots=[]
        )
        ShadowPlan.objects.filter(zone=zone, computed_at__lt=now - KEPT).delete()
        row.save()
    return row


def _planned_row(snapshot: ZoneSnapshot, bare: ZoneSnapshot, chooser: HostChooser) -> ShadowPlan:
    """Return the plan of a zone from scratch, not stored; neither database nor clock is asked."""
    chosen = settings.HEADROOM.failover
    shadow = zone_after(bare, plan_cover(bare, CleaningPlan(), chooser, plan_options()))
    cost, costs = coverage_costs(shadow)[0], coverage_costs(snapshot)
    before = int(snapshot.slots.memory_bytes.sum())
    after = cost.reserved_memory_bytes or 0
    is_worth = _covers_as_well(snapshot, shadow) and (
        before - after > chosen.rebalance_threshold_ratio * before
    )
    return ShadowPlan(
        zone=snapshot.zone,
        state=ShadowState.PROPOSED if is_worth else ShadowState.NOT_WORTH,
        reserved_memory_bytes=before,
        shadow_memory_bytes=after,
        lower_bound_bytes=best_bound(costs),
        vm_memory_bytes=cost.vm_memory_bytes,
        slots=_stored(shadow) if is_worth else [],
    )


def _covers_as_well(snapshot: ZoneSnapshot, shadow: ZoneSnapshot) -> bool:
    required = snapshot.vms.required
    now = np.minimum(snapshot.cover, required)
    return bool(np.all(np.minimum(shadow.cover, required) >= now))


def _stored(shadow: ZoneSnapshot) -> list[dict[str, Any]]:  # Any: JSON
    """Return the slots of a plan as stored; a slot bears the label of its first user."""
    vms, slots = shadow.vms, shadow.slots
    starts, rows = (column.tolist() for column in shadow.members_of_slot)
    users = shadow.members.vm.tolist()
    stored = []
    for number, host in enumerate(slots.host.tolist()):
        listed = [users[row] for row in rows[starts[number] : starts[number + 1]]]
        flavor, group = vms.labels[vms.label_code[listed[0]]]
        stored.append(
            {
                "host": shadow.hosts.names[host],
                "memory_bytes": int(slots.memory_bytes[number]),
                "vcpus": int(slots.vcpus[number]),
                "flavor": flavor,
                "group": group,
                "vms": [vms.uuids[vm] for vm in listed],
            }
        )
    return stored
