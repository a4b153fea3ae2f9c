"""``manage.py placement_export``: write all that our Placement holds (spec placement, 10.3)."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection, transaction

from core.prepared import run
from placement.domain.transfer_lines import export_lines
from placement.selectors.contents import read_contents

ONE_STATE = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Command(BaseCommand):
    """Write classes, traits, providers and consumers as JSON lines; placement_import reads them."""

    help = (
        "Write everything our Placement holds as lines of JSON, as of one moment. Read it back "
        "with placement_import --from-file."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument(
            "--output", metavar="FILE", help="where to; standard output when left out"
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Read, then write.

        Raises:
            CommandError: the file cannot be written.
        """
        is_outermost = not connection.in_atomic_block
        with transaction.atomic():
            if is_outermost:
                run(ONE_STATE)
            contents = read_contents()
        lines = export_lines(contents)
        if not options["output"]:
            for line in lines:
                self.stdout.write(line.decode(), ending="")
            return
        try:
            with Path(options["output"]).open("wb") as file:
                file.writelines(lines)
        except OSError as error:
            raise CommandError(str(error)) from error
        sys.stderr.write(
            f"{len(contents.providers)} providers, {len(contents.consumers)} consumers\n"
        )
