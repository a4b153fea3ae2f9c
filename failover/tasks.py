"""Celery entry points of the failover loop and of validation (spec failover, 9, 13, 17.8)."""

from __future__ import annotations

from celery import current_app, shared_task
from django.conf import settings

from failover.log import new_global_request_id
from failover.services.housekeeping import forget_old
from failover.services.loop import ZoneRun, due_zones, reconcile_zone
from failover.services.replanning import replan_due, replan_vm
from failover.services.validation import due_validation_zones, validate_zone
from journal.clock import database_now

RECONCILE = "failover.reconcile_periodic"
RECONCILE_ZONE = "failover.reconcile_zone"
VALIDATE_DUE = "failover.validate_due"
VALIDATE_ZONE = "failover.validate_zone"
VALIDATE_ONE = "failover.validate_reservation"
REPLAN_DUE = "failover.replan_due"
REPLAN_ONE = "failover.replan_vm"
FORGET = "failover.forget_old"

SOON_SECONDS = 10.0


@shared_task(name=RECONCILE, time_limit=50, soft_time_limit=45)
def reconcile_periodic(az: str | None = None) -> dict[str, int]:
    """Start a run in every zone where one is due, or in the given zone; one task each."""
    if not settings.HEADROOM.failover.enabled:
        return {}
    zones = due_zones() if az is None else [az]
    for zone in zones:
        current_app.send_task(RECONCILE_ZONE, args=[zone], expires=60, retry=False)
    return {"zones": len(zones)}


@shared_task(name=RECONCILE_ZONE, time_limit=900, soft_time_limit=840)
def reconcile_one_zone(zone: str) -> dict[str, object]:
    """Run the loop once in a zone, and come back soon while there is much to do."""
    run = reconcile_zone(zone, request_id=new_global_request_id())
    _come_back(run)
    return {"zone": zone, "outcome": str(run.outcome), "brake": run.brake}


def _come_back(run: ZoneRun) -> None:
    if run.next_run_at is None or not run.hit_limit:
        return
    wait = (run.next_run_at - database_now()).total_seconds()
    if wait < SOON_SECONDS:
        current_app.send_task(
            RECONCILE_ZONE, args=[run.zone], countdown=max(0.0, wait), expires=60, retry=False
        )


@shared_task(name=VALIDATE_DUE, time_limit=50, soft_time_limit=45)
def validate_due() -> dict[str, int]:
    """Start validation in every zone that has due reservations; one task each."""
    if not settings.HEADROOM.failover.enabled:
        return {}
    zones = due_validation_zones(now=database_now())
    for zone in zones:
        current_app.send_task(VALIDATE_ZONE, args=[zone], expires=60, retry=False)
    return {"zones": len(zones)}


@shared_task(name=VALIDATE_ZONE, time_limit=600, soft_time_limit=570)
def validate_one_zone(zone: str) -> dict[str, int]:
    """Validate the due reservations of a zone."""
    report = validate_zone(zone, request_id=new_global_request_id())
    return {
        "valid": report.valid,
        "removed_users": report.removed_users,
        "deleted": report.deleted,
        "transient": report.transient,
        "invalid": report.invalid,
    }


@shared_task(name=VALIDATE_ONE, time_limit=120, soft_time_limit=110)
def validate_reservation(reservation_id: int) -> dict[str, int]:
    """Validate one reservation now."""
    from failover.services import FailoverService  # noqa: PLC0415 - it imports the loop

    report = FailoverService().reconcile_reservation(reservation_id)
    return {"valid": report.valid, "deleted": report.deleted}


@shared_task(name=REPLAN_DUE, time_limit=120, soft_time_limit=110)
def replan_what_is_due() -> dict[str, int]:
    """Plan the VMs that something happened to; running twice does no harm."""
    if not settings.HEADROOM.failover.enabled:
        return {}
    return dict(replan_due(request_id=new_global_request_id()))


@shared_task(name=REPLAN_ONE, time_limit=60, soft_time_limit=55)
def replan_one_vm(vm_uuid: str) -> dict[str, object]:
    """Plan one VM now."""
    done = replan_vm(vm_uuid, request_id=new_global_request_id())
    return {"outcome": str(done.outcome), "joined": done.joined, "reason": done.reason}


@shared_task(name=FORGET, time_limit=300, soft_time_limit=270)
def forget() -> dict[str, int]:
    """Forget old runs and events, and cooldowns that are over."""
    return forget_old(now=database_now())
