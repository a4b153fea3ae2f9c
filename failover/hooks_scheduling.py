"""What scheduling asks of failover: where a VM of a dead host is planned to go."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog
from django.db import DatabaseError

from capacity.hooks import hooks
from capacity.models import ReservationAllocation
from failover.services.evacuation import is_unplanned, plan_evacuation, retire_slots, start_move
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import HeadroomError

log = structlog.get_logger(__name__)

GUIDE_ACTOR: Final = Actor(name="hook:failover.evacuation")


class PlannedEvacuations:
    """Implements ``capacity.hooks.EvacuationGuide``."""

    def planned_host(self, vm_uuid: str) -> str:
        """Return the host that is planned for a VM; empty when there is none.

        Nova evacuates VMs of dead hosts alone, so the first request for a VM of a host that no
        plan knows is the signal to plan for all its VMs. A zone that is locked by others does not
        hold up the answer for longer than the lock timeout.
        """
        now = database_now()
        try:
            planned = start_move(vm_uuid, now=now)
            unplanned = None if planned else is_unplanned(vm_uuid)
            slots = ReservationAllocation.objects.filter(
                vm_uuid=vm_uuid, reservation__kind="failover"
            )
            if unplanned is None or not slots.exists():
                return planned
            zone, host = unplanned
            request_id = str(structlog.contextvars.get_contextvars().get("greq", ""))
            plan_evacuation(
                zone, actor=GUIDE_ACTOR, request_id=request_id, now=now, also_failed=(host,)
            )
            return start_move(vm_uuid, now=now)
        except (HeadroomError, DatabaseError) as error:
            log.warning("evacuation_not_planned", vm_uuid=vm_uuid, error=str(error))
            return ""

    def arrived(self, reservation_ids: Collection[int]) -> None:
        """End slots whose VM arrived; the claim that brought it holds their rooms."""
        retire_slots("", reservation_ids, database_now())


def register() -> None:
    """Offer the plans to scheduling."""
    hooks.evacuation_guide = PlannedEvacuations()
