"""``manage.py doctor``: what is wrong with this installation, and what to do about it."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from rich.table import Table

from core.doctor.findings import DEADLINE_SECONDS, Finding, offered_checks, run_checks, worst
from journal.progress import printing_to

EXIT_USAGE = 64


class Command(BaseCommand):
    """Run the checks, print what they find; the exit status says how bad it is."""

    help = (
        "Check database, broker, workers, clocks, settings, the cloud's services and what was read "
        "of them. Exit status 0: all is well, 1: warnings, 2: errors."
    )
    requires_system_checks = ()  # they are one of the checks

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--check", action="append", metavar="NAME", help="only this (repeat)")
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")
        parser.add_argument(
            "--deadline",
            type=float,
            default=DEADLINE_SECONDS,
            metavar="SECONDS",
            help="longest time a check may take (default %(default)g)",
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Check, print, exit.

        Raises:
            CommandError: there is no such check.
        """
        checks = offered_checks()
        wanted = options["check"] or list(checks)
        if unknown := sorted(set(wanted) - set(checks)):
            told = f"no check {', '.join(unknown)}; there are {', '.join(checks)}"
            raise CommandError(told, returncode=EXIT_USAGE)
        chosen = {name: checks[name] for name in checks if name in wanted}
        found = list(run_checks(chosen, deadline_seconds=options["deadline"]))
        if options["json"]:
            answer = {"worst": worst(found), "findings": [asdict(one) for one in found]}
            self.stdout.write(orjson.dumps(answer).decode())
        else:
            print_findings(found, self.stdout)
        if status := worst(found).exit_status:
            sys.exit(status)


def print_findings(found: Sequence[Finding], stdout: OutputWrapper) -> None:
    """Print findings as a table."""
    console = printing_to(stdout)
    table = Table()
    for heading in ("check", "", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for one in found:
        table.add_row(one.check, one.severity.upper(), one.found, one.todo)
    console.print(table)
