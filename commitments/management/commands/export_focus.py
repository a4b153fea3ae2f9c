"""``manage.py export_focus``: a month of commitments as FOCUS cost and usage rows."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from commitments.selectors.focus import ChargeSpan, focus_file, month_start, unobserved_hours
from core.text import duration_text
from journal.clock import database_now
from journal.errors import InvalidInput


class Command(BaseCommand):
    """Write a month as CSV; what nobody observed is said on standard error."""

    help = "Export a month of commitments as FOCUS 1.1 cost and usage rows (docs/focus.md)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--month", required=True, metavar="YYYY-MM", help="month, in UTC")
        parser.add_argument(
            "--span",
            choices=[span.value for span in ChargeSpan],
            default=ChargeSpan.DAY.value,
            help="length of a charge period (default: day)",
        )
        parser.add_argument(
            "--output", type=Path, metavar="FILE", help="write here instead of standard output"
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Write the file.

        Raises:
            CommandError: The month is malformed, or the file cannot be written.
        """
        try:
            month = month_start(options["month"])
        except InvalidInput as error:
            raise CommandError(f"--{error.message}") from None
        lines = focus_file(month, ChargeSpan(options["span"]))
        if options["output"] is None:
            for text in lines:
                self.stdout.write(text, ending="")
        else:
            try:
                with options["output"].open("w", encoding="utf-8", newline="") as file:
                    file.writelines(lines)
            except OSError as error:
                raise CommandError(f"cannot write {options['output']}: {error.strerror}") from error
        gap = unobserved_hours(month, until=database_now())
        if gap > timedelta(0):
            self.stderr.write(
                f"in this month {duration_text(gap)} were not observed: no row stands for them"
            )
