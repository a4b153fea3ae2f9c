"""The nightly report: drills of every zone, and what its coverage costs (spec failover, 17.2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
import structlog
from django.db import DatabaseError, transaction

from capacity.locks import LockSpace, try_lock
from failover.domain.drill import DrillResult
from failover.domain.drill_columns import best_bound, coverage_costs
from failover.domain.drill_report import (
    DrillReport,
    DrillScope,
    blast_radii,
    drill_hosts,
    drill_pairs,
    drill_racks,
)
from failover.domain.zone_columns import ZoneSnapshot
from failover.drill_models import FailureDrill
from failover.selectors.drills import zone_snapshot
from failover.selectors.zone import failover_zones
from failover.services.coverage import note_lower_bound
from journal.clock import TOLERANCE, database_now
from journal.collector import paused_collector

log = structlog.get_logger(__name__)

DRILL_TASK: Final = "failover.drill_zones"
MOST_CASES: Final = 200
MOST_VMS: Final = 50
KEPT: Final = timedelta(days=90)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRun:
    """What a run of the nightly report did.

    Attributes:
        unprotected: (zone, scope) -> VMs that at least one failure leaves without a slot.
        failed: Zones that could not be drilled; the log says why.
    """

    unprotected: dict[tuple[str, str], int]
    failed: tuple[str, ...] = ()


def drill_zones(*, request_id: str, now: datetime) -> DrillRun:
    """Drill every zone and store the reports; one zone that fails does not stop the others.

    Args:
        now: The present, for stopped VMs.
    """
    done: dict[tuple[str, str], int] = {}
    failed = []
    for zone in failover_zones():
        try:
            for row in drill_zone(zone, request_id=request_id, now=now):
                done[zone, row.scope] = row.unprotected_vms
        except DatabaseError as error:
            log.warning("drill_failed", zone=zone, error=str(error))
            failed.append(zone)
    with transaction.atomic(durable=True):
        FailureDrill.objects.filter(started_at__lt=now - KEPT).delete()
    return DrillRun(unprotected=done, failed=tuple(failed))


def drill_zone(zone: str, *, request_id: str, now: datetime) -> list[FailureDrill]:
    """Drill all hosts, racks and interacting pairs of a zone and store a report of each.

    Also stores the lower bound of the zone's reserved memory. The drills run outside of any
    transaction; of two runs side by side the one that ends first is stored.

    Returns:
        The reports; none if another run stored its own meanwhile.
    """
    snapshot = zone_snapshot(zone, now=now)
    vms = snapshot.vms
    owed = int(np.count_nonzero((vms.host >= 0) & vms.is_owed & (vms.required > 0)))
    rows = []
    for drill in (drill_hosts, drill_racks, drill_pairs):
        started_at = database_now()
        with paused_collector():
            report = drill(snapshot)
        rows.append(
            FailureDrill(
                zone=zone,
                scope=report.scope.value,
                started_at=started_at,
                finished_at=database_now(),
                request_id=request_id,
                cases=report.cases,
                simulated=report.simulated,
                vms=owed,
                unprotected_vms=len(report.unprotected_vms),
                worst=worst_cases(report),
                hosts=host_figures(snapshot, report) if report.scope is DrillScope.HOST else [],
            )
        )
    bound = best_bound(coverage_costs(snapshot))
    with transaction.atomic(durable=True):
        if not try_lock(LockSpace.TASK, f"{DRILL_TASK}:{zone}"):
            return []
        done_meanwhile = (rows[0].started_at, database_now() + TOLERANCE)
        if FailureDrill.objects.filter(zone=zone, finished_at__range=done_meanwhile).exists():
            return []
        FailureDrill.objects.bulk_create(rows)
        note_lower_bound(zone, bound, now=now)
    return rows


def worst_cases(report: DrillReport) -> list[dict[str, Any]]:
    """Return the failures that cost most, as stored: at most 200, with at most 50 VMs each."""
    return [{"name": case.name, **case_facts(case.result)} for case in report.worst[:MOST_CASES]]


def case_facts(result: DrillResult) -> dict[str, Any]:
    """Return what a failure does, as stored."""
    return {
        "affected_vms": result.affected_vms,
        "protected_vms": len(result.assignments),
        "unprotected_vms": len(result.unprotected),
        "reasons": dict(sorted(result.reasons.items())),
        "vms": [row.vm for row in result.unprotected[:MOST_VMS]],
    }


def host_figures(snapshot: ZoneSnapshot, report: DrillReport) -> list[list[Any]]:
    """Return per host [name, rack, VMs, unprotected VMs, slots, users of them], as stored."""
    return [
        [one.host, one.rack, one.vms, one.unprotected_vms, one.slots, one.slot_users]
        for one in blast_radii(snapshot, report)
    ]
