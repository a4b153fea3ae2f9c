"""``manage.py reconcile_failover``: run the failover loop now, or show what it would do."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from failover.log import new_global_request_id
from failover.selectors.zone import failover_zones
from failover.services.loop import ZoneRun, reconcile_zone
from journal.errors import HeadroomError
from journal.progress import progress_bar


class Command(BaseCommand):
    """Give VMs their failover reservations, zone by zone."""

    help = "Run the failover loop once in some zones; --dry-run shows what it would do."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--zone", action="append", default=[], help="all when left out")
        parser.add_argument("--dry-run", action="store_true", help="plan and write nothing")
        parser.add_argument("--json", action="store_true", help="one line of JSON for each zone")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Run the loop and print what it did.

        Raises:
            CommandError: A zone is not known, or could not be worked on.
        """
        known = failover_zones()
        unknown = sorted(set(options["zone"]) - set(known))
        if unknown:
            raise CommandError(f"no such zone: {', '.join(unknown)}")
        zones = options["zone"] or known
        for number, zone in enumerate(zones):
            try:
                with progress_bar(f"covering VMs of {zone}", len(zones), done=number):
                    run = reconcile_zone(
                        zone, request_id=new_global_request_id(), is_dry_run=options["dry_run"]
                    )
            except HeadroomError as error:
                raise CommandError(error.message) from error
            self.stdout.write(_as_json(run) if options["json"] else _as_text(run))


def _planned(run: ZoneRun) -> dict[str, int]:
    if run.plan is None:
        return {"removals": 0, "create": 0, "joins": 0, "uncovered": 0}
    return {
        "removals": len(run.plan.cleaning.removals),
        "create": len(run.plan.cover.created),
        "joins": len(run.plan.cover.joins),
        "uncovered": len(run.plan.cover.shortfalls),
    }


def _as_json(run: ZoneRun) -> str:
    content = {
        "zone": run.zone,
        "outcome": str(run.outcome),
        "brake": run.brake,
        "figures": asdict(run.figures),
        "planned": _planned(run),
    }
    return json.dumps(content, sort_keys=True)


def _as_text(run: ZoneRun) -> str:
    figures, planned = run.figures, _planned(run)
    words = [
        f"{run.zone}: {run.outcome}{f' ({run.brake})' if run.brake else ''}",
        f"{figures.total_vms:,} VMs, {figures.vms_missing_failover:,} lacked reservations",
        (
            f"planned {planned['create']:,} new, {planned['joins'] - planned['create']:,} joins,"
            f" {planned['removals']:,} removals"
        ),
        f"wrote {figures.created:,} new, {figures.reused:,} joins",
        f"{planned['uncovered']:,} VMs still lack some",
    ]
    return "; ".join(words)
