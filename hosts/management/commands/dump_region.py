"""``manage.py dump_region > region.json``: write a region file (spec region-file)."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from django.core.management.base import BaseCommand, CommandError

from hosts.region.registry import DumpOptions
from hosts.services.region_dump import dump_region

EXIT_USAGE = 2


class Command(BaseCommand):
    """Write a region file of our own tables."""

    help = "Write a region file: of Headroom's own tables (--from-db)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare where to read from and write to."""
        parser.add_argument(
            "--from-db", action="store_true", required=True, help="read Headroom's own tables"
        )
        parser.add_argument("--output", metavar="FILE", help="write to a file, not to the terminal")
        parser.add_argument(
            "--with-ended", action="store_true", help="with commitments that have ended"
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Write the dump.

        Raises:
            CommandError: The file cannot be written.
        """
        chosen = DumpOptions(with_ended=options["with_ended"])
        self._to_output(options["output"], lambda stream: dump_region(stream, chosen))

    def _to_output(self, name: str | None, write: Callable[[BinaryIO], None]) -> None:
        if name is None:
            write(sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        unfinished = Path(f"{name}.part")
        try:
            with unfinished.open("wb") as stream:
                write(stream)
            unfinished.replace(name)
        except OSError as error:
            message = f"{name}: cannot be written: {error.strerror}"
            raise CommandError(message, returncode=EXIT_USAGE) from None
        finally:
            unfinished.unlink(missing_ok=True)
