"""The account of the coverage objective: VM time owed and VM time uncovered (failover, 14.3)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db import transaction

from capacity.locks import LockSpace, try_lock
from failover.drill_models import CoverageAccount
from failover.selectors.coverage import (
    KEPT,
    FlavorCoverage,
    ZoneCoverage,
    coverage_by_flavor,
    coverage_by_zone,
)
from journal.clock import TOLERANCE
from journal.statements import execute

ACCOUNT_TASK = "failover.account_coverage"
LONGEST_STEP = timedelta(minutes=10)

# What is owed now is taken to have been owed since the last look, but no longer than that. After a
# look that a fast clock dated, the account goes on from now, and nothing is added.
ACCOUNT = """
INSERT INTO failover_coverageaccount AS account (
    zone, accounted_at, owed_vms, uncovered_vms, owed_vm_seconds, uncovered_vm_seconds,
    reserved_memory_bytes, vm_memory_bytes, lower_bound_bytes, flavors)
SELECT zone, %(now)s, owed, uncovered, 0, 0, reserved, memory, 0, flavors
  FROM unnest(%(zones)s::text[], %(owed)s::bigint[], %(uncovered)s::bigint[],
              %(reserved)s::bigint[], %(memory)s::bigint[], %(flavors)s::jsonb[])
       AS seen(zone, owed, uncovered, reserved, memory, flavors)
ON CONFLICT (zone) DO UPDATE
   SET accounted_at = excluded.accounted_at,
       owed_vms = excluded.owed_vms,
       uncovered_vms = excluded.uncovered_vms,
       reserved_memory_bytes = excluded.reserved_memory_bytes,
       vm_memory_bytes = excluded.vm_memory_bytes,
       flavors = excluded.flavors,
       owed_vm_seconds = account.owed_vm_seconds + excluded.owed_vms * {elapsed},
       uncovered_vm_seconds = account.uncovered_vm_seconds + excluded.uncovered_vms * {elapsed}
 WHERE account.accounted_at < excluded.accounted_at
    OR account.accounted_at > excluded.accounted_at + make_interval(secs => %(tolerance)s)
"""
ELAPSED = """
greatest(0, least(%(longest)s,
    extract(epoch FROM excluded.accounted_at - account.accounted_at)))::bigint
"""


def account_coverage(*, now: datetime) -> list[ZoneCoverage] | None:
    """Add the time since the last look to the account of every zone.

    A gap longer than ten minutes counts as ten minutes: what was not looked at is not made up. A
    last look that is to come was dated by a fast clock, and ends now.
    Takes the lock of the task; a run beside another does nothing.

    Returns:
        The coverage found; None if another run had the lock.
    """
    with transaction.atomic(durable=True):
        if not try_lock(LockSpace.TASK, ACCOUNT_TASK):
            return None
        flavors = coverage_by_flavor()
        zones = coverage_by_zone(flavors)
        gone = CoverageAccount.objects.exclude(zone__in=[zone.zone for zone in zones])
        ended = [ZoneCoverage(zone=row.zone) for row in gone.order_by("zone")]
        _write([*zones, *ended], flavors, now)
    return zones


def _write(zones: Sequence[ZoneCoverage], flavors: Iterable[FlavorCoverage], now: datetime) -> None:
    kept: dict[str, list[dict[str, object]]] = {zone.zone: [] for zone in zones}
    for one in flavors:
        kept[one.zone].append({name: getattr(one, name) for name in KEPT})
    execute(
        ACCOUNT.format(elapsed=ELAPSED),
        {
            "now": now,
            "longest": int(LONGEST_STEP.total_seconds()),
            "tolerance": TOLERANCE.total_seconds(),
            "zones": [zone.zone for zone in zones],
            "owed": [zone.vms for zone in zones],
            "uncovered": [zone.uncovered_vms for zone in zones],
            "reserved": [zone.reserved_memory_bytes for zone in zones],
            "memory": [zone.memory_bytes for zone in zones],
            "flavors": [json.dumps(kept[zone.zone]) for zone in zones],
        },
    )


def note_lower_bound(zone: str, bound_bytes: int, *, now: datetime) -> None:
    """Store the lower bound of a zone beside its account."""
    with transaction.atomic():
        CoverageAccount.objects.update_or_create(
            zone=zone,
            defaults={"lower_bound_bytes": bound_bytes, "bounded_at": now},
            create_defaults={
                "lower_bound_bytes": bound_bytes,
                "bounded_at": now,
                "accounted_at": now,
            },
        )
