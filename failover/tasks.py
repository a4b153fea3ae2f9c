"""Celery entry points of the failover loop and of validation (spec failover, 9, 13, 17.8)."""

from __future__ import annotations

from django.conf import settings

from core.jobs import Run, every, job
from failover.log import ID_PREFIX
from failover.services.housekeeping import forget_old
from failover.services.loop import ZoneRun, due_zones, reconcile_zone
from failover.services.replanning import replan_due, replan_vm
from failover.services.validation import due_validation_zones, validate_zone
from journal.clock import database_now
from journal.nudges import send_task

RECONCILE = "failover.reconcile_periodic"
RECONCILE_ZONE = "failover.reconcile_zone"
VALIDATE_DUE = "failover.validate_due"
VALIDATE_ZONE = "failover.validate_zone"
VALIDATE_ONE = "failover.validate_reservation"
REPLAN_DUE = "failover.replan_due"
REPLAN_ONE = "failover.replan_vm"
FORGET = "failover.forget_old"

SOON_SECONDS = 10.0


@job(RECONCILE, every(5, "failover"), limits=(45, 50), queue="soon")
def reconcile_periodic(_: Run, az: str | None = None) -> dict[str, int]:
    """Start a run in every zone where one is due, or in the given zone; one task each."""
    if not settings.HEADROOM.failover.enabled:
        return {}
    zones = due_zones() if az is None else [az]
    for zone in zones:
        send_task(RECONCILE_ZONE, [zone])
    return {"zones": len(zones)}


@job(RECONCILE_ZONE, limits=(840, 900), id_prefix=ID_PREFIX)
def reconcile_one_zone(run: Run, zone: str) -> dict[str, object]:
    """Run the loop once in a zone, and come back soon while there is much to do."""
    done = reconcile_zone(zone, request_id=run.request_id)
    _come_back(done)
    return {"zone": zone, "outcome": str(done.outcome), "brake": done.brake}


def _come_back(run: ZoneRun) -> None:
    if run.next_run_at is None or not run.hit_limit:
        return
    wait = (run.next_run_at - database_now()).total_seconds()
    if wait < SOON_SECONDS:
        send_task(RECONCILE_ZONE, [run.zone], countdown=max(0.0, wait))


@job(VALIDATE_DUE, every(30, "failover-validation"), limits=(45, 50), queue="soon")
def validate_due(run: Run) -> dict[str, int]:
    """Start validation in every zone that has due reservations; one task each."""
    if not settings.HEADROOM.failover.enabled:
        return {}
    zones = due_validation_zones(now=run.now)
    for zone in zones:
        send_task(VALIDATE_ZONE, [zone])
    return {"zones": len(zones)}


@job(VALIDATE_ZONE, limits=(570, 600), id_prefix=ID_PREFIX)
def validate_one_zone(run: Run, zone: str) -> dict[str, int]:
    """Validate the due reservations of a zone."""
    report = validate_zone(zone, request_id=run.request_id)
    return {
        "valid": report.valid,
        "removed_users": report.removed_users,
        "deleted": report.deleted,
        "transient": report.transient,
        "invalid": report.invalid,
    }


@job(VALIDATE_ONE, limits=(110, 120), queue="soon")
def validate_reservation(_: Run, reservation_id: int) -> dict[str, int]:
    """Validate one reservation now."""
    from failover.services import FailoverService  # noqa: PLC0415 - it imports the loop

    report = FailoverService().reconcile_reservation(reservation_id)
    return {"valid": report.valid, "deleted": report.deleted}


@job(REPLAN_DUE, every(2, "failover-due-vms"), limits=(110, 120), queue="soon", id_prefix=ID_PREFIX)
def replan_what_is_due(run: Run) -> dict[str, int]:
    """Plan the VMs that something happened to; running twice does no harm."""
    if not settings.HEADROOM.failover.enabled:
        return {}
    return dict(replan_due(request_id=run.request_id))


@job(REPLAN_ONE, limits=(55, 60), queue="soon", id_prefix=ID_PREFIX)
def replan_one_vm(run: Run, vm_uuid: str) -> dict[str, object]:
    """Plan one VM now."""
    done = replan_vm(vm_uuid, request_id=run.request_id)
    return {"outcome": str(done.outcome), "joined": done.joined, "reason": done.reason}


@job(FORGET, every(3600, "failover-retention"), limits=(270, 300), queue="long")
def forget(run: Run) -> dict[str, int]:
    """Forget old runs and events, and cooldowns that are over."""
    return forget_old(now=run.now)
