"""``manage.py export_pipelines``: write pipelines as YAML (spec scheduling, 4)."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from capacity.nova.pipeline_files import pipelines_as_yaml
from journal.errors import InvalidInput

EXIT_USAGE = 2


class Command(BaseCommand):
    """Write pipelines to a file or to standard output."""

    help = "Write scheduling pipelines as YAML that import_pipelines reads."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare names and options."""
        parser.add_argument("names", nargs="*", metavar="NAME", help="only these pipelines")
        parser.add_argument("--output", metavar="FILE", help="write here instead of printing")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Write the file.

        Raises:
            CommandError: No pipeline has one of the names, or the file cannot be written.
        """
        try:
            text = pipelines_as_yaml(options["names"] or None)
        except InvalidInput as error:
            raise CommandError(error.message, returncode=EXIT_USAGE) from None
        if not options["output"]:
            self.stdout.write(text, ending="")
            return
        try:
            Path(options["output"]).write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"cannot write {options['output']}: {error.strerror}") from None
