"""``manage.py placement_audit``: find and repair what has drifted (spec placement, 10.3)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import orjson
from django.core.management.base import BaseCommand, CommandError
from rich.table import Table

from journal.actors import command_actor
from journal.errors import HeadroomError
from journal.progress import printing_to
from placement.services.audit import (
    REPAIRS,
    AuditFinding,
    AuditKind,
    AuditLimits,
    find_problems,
    repair_problems,
)

EXIT_FOUND = 1


class Command(BaseCommand):
    """Report what is wrong with the Placement tables; exit 1 while something is."""

    help = (
        "Compare used amounts with allocations, trees with their roots, consumers with VMs, and "
        "find aggregates that nothing uses. Exit status 1 when something is left to repair."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--fix", action="store_true", help="repair what can be repaired")
        parser.add_argument(
            "--force", action="store_true", help="give back orphaned allocations however many"
        )
        parser.add_argument(
            "--orphan-hours", type=int, default=24, help="age of orphaned consumers (default 24)"
        )
        parser.add_argument(
            "--aggregate-days", type=int, default=30, help="age of unused aggregates (default 30)"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Look, repair when asked, print.

        Raises:
            CommandError: something is left to repair, or a repair was refused.
        """
        limits = AuditLimits(
            orphan_hours=options["orphan_hours"], aggregate_days=options["aggregate_days"]
        )
        found = find_problems(limits)
        repaired: Mapping[AuditKind, int] = {}
        left = found
        if options["fix"] and found:
            try:
                repaired = repair_problems(
                    found,
                    actor=command_actor("placement_audit"),
                    request_id=f"req-{uuid4()}",
                    is_forced=options["force"],
                )
            except HeadroomError as error:
                raise CommandError(error.message) from error
            left = find_problems(limits)
        if options["json"]:
            self.stdout.write(orjson.dumps(_as_json(found, repaired, left)).decode())
        else:
            self._print(found, repaired)
        if left:
            raise CommandError(f"{len(left)} problems are left", returncode=EXIT_FOUND)

    def _print(self, found: Sequence[AuditFinding], repaired: Mapping[AuditKind, int]) -> None:
        console = printing_to(self.stdout)
        if not found:
            console.print("nothing is wrong")
            return
        table = Table(title="Findings", title_justify="left")
        for heading in ("kind", "uuid", "name", "detail"):
            table.add_column(heading, overflow="fold")
        for finding in found:
            table.add_row(finding.kind, finding.subject, finding.name, finding.detail)
        console.print(table)
        for kind, count in sorted(Counter(finding.kind for finding in found).items()):
            done = f"{repaired.get(kind, 0)} repaired" if repaired else "--fix: " + REPAIRS[kind]
            console.print(f"{kind}: {count} found, {done}")


def _as_json(
    found: Sequence[AuditFinding], repaired: Mapping[AuditKind, int], left: Sequence[AuditFinding]
) -> dict[str, object]:
    return {
        "findings": [asdict(finding) for finding in found],
        "repaired": {str(kind): count for kind, count in repaired.items()},
        "left": len(left),
    }
