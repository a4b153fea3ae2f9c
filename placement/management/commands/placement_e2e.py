"""``manage.py placement_e2e``: check a running Placement API end to end (spec placement, 8.9)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from django.core.management.base import BaseCommand, CommandError
from rich.table import Table

from core.server_checks.results import CheckEnd, counts_text, token_in
from journal.progress import printing_to
from placement.e2e.checks import Checked, PlacementResult, run_checks
from placement.e2e.client import PlacementServer
from placement.gateway.modes import ALIASES, Mode
from placement.models.checks import ENDS

DEFAULT_URL: Final = "http://localhost:8080/placement"
AS_CONFIGURED: Final = "as configured"


class Command(BaseCommand):
    """Run the checks against any base URL, in the modes asked for; exit 1 when one failed."""

    help = (
        "Check a running Placement API: each group of endpoints is written to and read from, under "
        "fixed names that are removed before and after each check. Exit status 1 when a check "
        "failed, or none could be run."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument(
            "--base-url", default=DEFAULT_URL, help=f"the Placement API (default {DEFAULT_URL})"
        )
        parser.add_argument(
            "--mode",
            default="",
            metavar="MODES",
            help="modes of the gateway to ask for, such as passthrough,hybrid,local; without it "
            "the server answers as it is configured",
        )
        parser.add_argument(
            "--token-file", type=Path, metavar="FILE", help="holds what is sent as X-Auth-Token"
        )
        parser.add_argument(
            "--header",
            dest="headers",
            action="append",
            default=[],
            metavar="NAME:TEXT",
            help="sent with each request; may be repeated",
        )
        parser.add_argument(
            "--host-provider",
            default="",
            metavar="UUID",
            help="provider of a host that Headroom manages: try to take it away, which must fail",
        )
        parser.add_argument(
            "--timeout", type=float, default=30.0, metavar="SECONDS", help="limit of one request"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object per check")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Run the checks, and print them.

        Raises:
            CommandError: A check failed, none could be run, or an option makes no sense.
        """
        if options["timeout"] <= 0:
            raise CommandError("--timeout: must be more than 0 seconds")
        server = PlacementServer(
            base_url=options["base_url"],
            token=token_in(options["token_file"]),
            headers=dict(map(_header, options["headers"])),
            timeout_seconds=options["timeout"],
        )
        checked = Checked(server=server, host=options["host_provider"])
        results = list(self._results(checked, _modes(options["mode"]), as_json=options["json"]))
        counts = Counter(result.outcome for result in results)
        if not options["json"]:
            self._print(results)
            self.stdout.write(counts_text(counts, ENDS))
        if counts[CheckEnd.FAILED]:
            raise CommandError(f"{counts[CheckEnd.FAILED]} check(s) failed")
        if not counts[CheckEnd.PASSED]:
            raise CommandError("all checks were skipped: nothing is known of this server")

    def _results(
        self, checked: Checked, modes: Sequence[str], *, as_json: bool
    ) -> Iterator[PlacementResult]:
        for mode in modes:
            checked.server.mode = mode
            for result in run_checks(checked):
                if as_json:
                    self.stdout.write(_json_line(result))
                    self.stdout.flush()
                yield result

    def _print(self, results: Sequence[PlacementResult]) -> None:
        table = Table(title="Checks", title_justify="left")
        for heading in ("mode", "check", "outcome", "detail"):
            table.add_column(heading, overflow="fold")
        for result in results:
            mode = result.mode or AS_CONFIGURED
            table.add_row(mode, result.check, result.outcome, result.detail)
        printing_to(self.stdout).print(table)


def _modes(text: str) -> list[str]:
    """Return the modes of a list; without one the mode that is none."""
    if not text:
        return [""]
    try:
        return [str(ALIASES.get(word) or Mode(word)) for word in text.split(",")]
    except ValueError as error:
        raise CommandError(f"--mode: {error}; modes are {', '.join(Mode)}") from error


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise CommandError(f"--header: {text!r} is not NAME:TEXT")
    return name.strip(), value.strip()


def _json_line(result: PlacementResult) -> str:
    told = {
        "test": result.check,
        "mode": result.mode,
        "outcome": result.outcome,
        "detail": result.detail,
    }
    return orjson.dumps(told).decode()
