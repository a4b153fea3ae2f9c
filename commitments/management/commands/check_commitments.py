"""``manage.py check_commitments``: check a running server end to end (spec liquid, 17)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from commitments.e2e.checks import ENDS, CheckSettings, LiquidResult, run_checks
from commitments.e2e.client import LiquidServer
from core.server_checks.results import CheckEnd, counts_text, token_in

DEFAULT_URL = "http://localhost:8080"
DEFAULT_PROJECT = "00000000-0000-0000-0000-000000000e2e"
DEFAULT_OTHER_PROJECT = "00000000-0000-0000-0000-000000000e2f"
DEFAULT_ZONE = "qa-de-1b"
MARKS = {
    CheckEnd.PASSED: "ok",
    CheckEnd.REJECTED: "full",
    CheckEnd.WARNED: "warn",
    CheckEnd.FAILED: "FAIL",
}


class Command(BaseCommand):
    """Run the checks against any base URL; exit 1 when one failed."""

    help = (
        "Check a running LIQUID server: info, reports, dry run, round trip, batch and transfer of "
        "short-lived commitments, for each zone and each resource that handles commitments."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--url", default=DEFAULT_URL, help=f"server (default {DEFAULT_URL})")
        parser.add_argument(
            "--token-file", type=Path, metavar="FILE", help="holds what is sent as X-Auth-Token"
        )
        parser.add_argument("--project", default=DEFAULT_PROJECT, help="project of the commitments")
        parser.add_argument(
            "--other-project",
            default=DEFAULT_OTHER_PROJECT,
            help="project that a commitment is transferred to and from",
        )
        parser.add_argument(
            "--zone",
            dest="zones",
            action="append",
            metavar="ZONE",
            help=f"availability zone to check; may be repeated (default {DEFAULT_ZONE})",
        )
        parser.add_argument(
            "--timeout", type=float, default=30.0, metavar="SECONDS", help="limit of one request"
        )
        parser.add_argument(
            "--no-cleanup", action="store_true", help="leave the accepted commitments behind"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object per check")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Run the checks and print each as it ends.

        Raises:
            CommandError: A check failed, or an option makes no sense.
        """
        if options["timeout"] <= 0:
            raise CommandError("--timeout: must be more than 0 seconds")
        if options["project"] == options["other_project"]:
            raise CommandError("--other-project: must differ from --project")
        server = LiquidServer(
            base_url=options["url"],
            token=token_in(options["token_file"]),
            timeout_seconds=options["timeout"],
        )
        settings = CheckSettings(
            project_id=options["project"],
            other_project_id=options["other_project"],
            zones=tuple(options["zones"] or (DEFAULT_ZONE,)),
            keeps_commitments=options["no_cleanup"],
        )
        counts: Counter[CheckEnd] = Counter()
        for result in run_checks(server, settings, timezone.now):
            counts[result.outcome] += 1
            self.stdout.write(_json_line(result) if options["json"] else _line(result))
            self.stdout.flush()
        if not options["json"]:
            self.stdout.write(counts_text(counts, ENDS))
        if counts[CheckEnd.FAILED]:
            raise CommandError(f"{counts[CheckEnd.FAILED]} check(s) failed")


def _line(result: LiquidResult) -> str:
    where = " ".join(part for part in (result.zone, result.resource) if part)
    named = f"{result.check} ({where})" if where else result.check
    return f"{MARKS[result.outcome]:<5}{named}" + (f": {result.detail}" if result.detail else "")


def _json_line(result: LiquidResult) -> str:
    return orjson.dumps(asdict(result)).decode()
