"""The month's commitments as a file of cost and usage (FOCUS)."""

from __future__ import annotations

import argparse
from pathlib import Path

from osc_lib.command import command
from osc_lib.exceptions import CommandError

from headroom_osc.client import capacity_of


class ExportFocus(command.Command):
    """Write a month of commitments as FOCUS rows, as CSV."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare which month, and where the file goes."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--month", required=True, metavar="<year-month>", help="As in 2026-11")
        parser.add_argument(
            "--span", choices=("day", "hour"), default="day", help="Length of charge periods"
        )
        parser.add_argument(
            "--output", type=Path, metavar="<file>", help="Standard output unless given"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Write the file; one that is not whole does not get its name."""
        asked = {"month": parsed_args.month, "span": parsed_args.span}
        parts = capacity_of(self.app.client_manager).file("/commitments/focus", asked)
        output: Path | None = parsed_args.output
        if output is None:
            for part in parts:
                self.app.stdout.buffer.write(part)
            self.app.stdout.flush()
            return
        partial = output.with_name(output.name + ".part")
        try:
            with partial.open("wb") as file:
                for part in parts:
                    file.write(part)
            partial.replace(output)
        except OSError as error:
            raise CommandError(f"{output}: {error}") from error
        finally:
            partial.unlink(missing_ok=True)
