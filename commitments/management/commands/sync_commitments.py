"""``manage.py sync_commitments``: read commitments from Limes now (spec commitments, 16)."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from commitments.services.sync import configured_cloud, sync_commitments
from commitments.services.sync_runs import SyncProblem
from journal.actors import command_actor
from journal.tracing import with_new_global_request_id


class Command(BaseCommand):
    """Sync once and say what it did."""

    help = "Bring commitments in line with what Limes lists."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--dry-run", action="store_true", help="write nothing, count only")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Sync and print; fails when the run is not a success.

        Raises:
            CommandError: There is no login, or the run failed, was cut short or was guarded.
        """
        try:
            with with_new_global_request_id() as request_id:
                report = sync_commitments(
                    configured_cloud(),
                    actor=command_actor("sync_commitments"),
                    request_id=request_id,
                    dry_run=options["dry_run"],
                )
        except SyncProblem as problem:
            raise CommandError(problem.message) from None
        if options["json"]:
            document = {
                "outcome": report.outcome,
                "error_code": report.error_code,
                "message": report.message,
                "counts": dict(report.counts),
                "dry_run": options["dry_run"],
            }
            self.stdout.write(json.dumps(document, indent=2))
        else:
            for name, count in report.counts.items():
                self.stdout.write(f"{name.replace('_', ' '):<32} {count}")
        if report.error_code:
            raise CommandError(f"{report.error_code}: {report.message}")
