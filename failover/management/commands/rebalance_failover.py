"""``manage.py rebalance_failover ZONE``: what a plan from scratch would save, and do it."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError

from core.text import memory_short, percent_text
from failover.selectors.zone import failover_zones
from failover.services.rebalancing import rebalance_zone
from failover.services.shadow_plans import compute_shadow_plan
from journal.actors import command_actor
from journal.clock import database_now
from journal.errors import HeadroomError


class Command(BaseCommand):
    """Compute the shadow plan of a zone and show or take the steps towards it."""

    help = (
        "Plan the failover slots of a zone from scratch, show what that would save and how it "
        "would be done; with --apply do it, make before break."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("zone", metavar="ZONE", help="availability zone")
        parser.add_argument("--apply", action="store_true", help="carry it out")
        parser.add_argument("--steps", type=int, help="most single steps to take")
        parser.add_argument("--json", action="store_true", help="print the answer as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Compute, show, and carry out if asked to.

        Raises:
            CommandError: The zone is unknown or busy.
        """
        zone, now, request_id = options["zone"], database_now(), str(uuid.uuid4())
        if zone not in failover_zones():
            raise CommandError(f"no such zone: {zone}")
        try:
            shadow = compute_shadow_plan(zone, request_id=request_id, now=now)
            facts: dict[str, Any] = {
                "zone": zone,
                "state": shadow.state,
                "reserved_bytes": shadow.reserved_memory_bytes,
                "shadow_bytes": shadow.shadow_memory_bytes,
                "lower_bound_bytes": shadow.lower_bound_bytes,
            }
            if shadow.state == "proposed":
                done = rebalance_zone(
                    zone,
                    actor=command_actor("rebalance_failover"),
                    request_id=request_id,
                    now=now,
                    most_steps=options["steps"],
                    is_dry_run=not options["apply"],
                )
                facts |= {
                    "exchange": done.is_exchange,
                    "steps": done.steps,
                    "done": done.done,
                    "refused": done.refused,
                    "blocked": done.blocked,
                    "reserved_after_bytes": done.reserved_after,
                }
        except HeadroomError as error:
            raise CommandError(error.message) from None
        if options["json"]:
            self.stdout.write(orjson.dumps(facts).decode())
            return
        saved = max(0, shadow.reserved_memory_bytes - shadow.shadow_memory_bytes)
        self.stdout.write(
            f"{zone}: {memory_short(shadow.reserved_memory_bytes)} reserved, "
            f"{memory_short(shadow.shadow_memory_bytes)} from scratch, at least "
            f"{memory_short(shadow.lower_bound_bytes)} needed; saves "
            f"{percent_text(saved, shadow.reserved_memory_bytes)}: {shadow.get_state_display()}"
        )
        if "steps" in facts:
            how = "memberships exchanged at once" if facts["exchange"] else "single steps"
            self.stdout.write(
                f"{facts['steps']} {how}, {facts['done']} done, {facts['refused']} refused, "
                f"{facts['blocked']} memberships out of reach"
            )
            if not options["apply"]:
                self.stdout.write("dry run: nothing was changed; --apply carries it out")
