"""What others ask of coming runs: to begin now, to plan a zone anew, to remove what the brake held.

Source: spec failover, 17.9; style, 9.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from failover.models import FailoverZone
from journal.actors import Actor
from journal.errors import InvalidInput
from journal.nudges import hand_to_worker, hint_worker
from journal.services import Change, record_changes


class NoBrake(InvalidInput):
    """A zone whose brake is not on was to be confirmed."""

    code = "failover_no_brake"


def confirm_removal(zone: str, *, actor: Actor, request_id: str, now: datetime) -> None:
    """Allow the next run of a zone to remove whatever it finds, once.

    Raises:
        NoBrake: the zone's brake is not on.
    """
    with transaction.atomic(durable=True):
        state = FailoverZone.objects.select_for_update(no_key=True).filter(zone=zone).first()
        if state is None or not state.brake_reason:
            raise NoBrake(f"zone {zone}: no brake is on", zone=zone)
        state.confirmed_at, state.confirmed_by = now, actor.name
        state.next_run_at = None
        state.save(update_fields=["confirmed_at", "confirmed_by", "next_run_at"])
        record_changes(
            [
                Change(
                    action="failover_removal_confirmed",
                    object_type="failover_zone",
                    object_id=zone,
                    after={"brake": state.brake_reason, "facts": state.brake_facts},
                    reason="an operator confirmed that the data is right",
                )
            ],
            actor=actor,
            request_id=request_id,
        )


def run_soon() -> None:
    """Make the next run of every zone due and tell the worker; beat would come anyway."""
    FailoverZone.objects.filter(next_run_at__isnull=False).update(next_run_at=None)
    for task in ("failover.reconcile_periodic", "failover.validate_due"):
        hint_worker(task)


def start_rebalancing(zone: str, most_steps: int | None) -> None:
    """Let the worker plan a zone from scratch and move towards that plan.

    Raises:
        BrokerUnavailable: the broker does not take the task; nothing was started.
    """
    hand_to_worker("failover.rebalance_zone", [zone, most_steps])
