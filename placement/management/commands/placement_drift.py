"""``manage.py placement_drift``: look whether both sides of mode ``hybrid`` fit together."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any, Final

import orjson
from django.core.management.base import BaseCommand, CommandError
from rich.table import Table

from journal.errors import HeadroomError
from journal.progress import printing_to
from placement.cutover.peer import Peer, opened_peer
from placement.gateway.drift import Report, is_hybrid, make_names_there, verify

#: What is done about a finding of each kind.
REMEDIES: Final = {
    "shadow": "take from its consumers what they hold there, and delete it there",
    "owner": "write the consumer's allocations again, through Headroom",
    "trait": "--fix creates it there",
    "resource_class": "--fix creates it there",
    "unsettled": "docs/gateway.md, allocations on both sides",
}


class Command(BaseCommand):
    """Read both sides, and tell what does not fit; exit 1 while something does not."""

    help = (
        "Look at both sides of a gateway in mode hybrid: providers that are on both, consumers of "
        "which they say something else, names that one lacks. Exit status 1 while something "
        "is left."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--fix", action="store_true", help="create names there that it lacks")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Look, mend what can be mended, print.

        Raises:
            CommandError: something is left, the other side does not answer, or the mode is another.
        """
        if not is_hybrid():
            raise CommandError("no group is in mode hybrid: HEADROOM_GATEWAY__MODES")
        try:
            with opened_peer() as peer:
                report = self._looked(peer, fixes=options["fix"])
        except HeadroomError as error:
            raise CommandError(error.message) from error
        if options["json"]:
            self.stdout.write(orjson.dumps(asdict(report)).decode())
        else:
            self._print(report)
        if report.findings:
            raise CommandError(f"{len(report.findings)} findings are left", returncode=1)

    def _looked(self, peer: Peer, *, fixes: bool) -> Report:
        report = verify(peer)
        if fixes and make_names_there(peer, report.findings):
            report = verify(peer)
        return report

    def _print(self, report: Report) -> None:
        console = printing_to(self.stdout)
        console.print(
            f"{report.providers_there} providers there, {report.split_consumers} consumers on both "
            f"sides, {report.seconds:.1f} s"
        )
        if not report.findings:
            console.print("both sides fit together")
            return
        table = Table(title="Findings", title_justify="left")
        for heading in ("kind", "subject", "detail", "what to do"):
            table.add_column(heading, overflow="fold")
        for one in report.findings:
            table.add_row(one.kind, one.subject, one.detail, REMEDIES[one.kind])
        console.print(table)
