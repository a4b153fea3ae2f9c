"""``manage.py export_configuration``: write ``docs/configuration.md`` from the settings tree."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from config.reference import configuration_page

PAGE = Path("docs") / "configuration.md"


class Command(BaseCommand):
    """Write the page of all environment variables, or say that it is out of date."""

    help = "Write docs/configuration.md from config/environment.py."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument(
            "--check", action="store_true", help="write nothing, fail if the page is out of date"
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Write or compare.

        Raises:
            CommandError: With ``--check``, the page is not what the code says.
        """
        path = Path(settings.BASE_DIR) / PAGE
        page = configuration_page()
        if not options["check"]:
            path.write_text(page, encoding="utf-8")
            self.stdout.write(f"wrote {PAGE}")
            return
        written = path.read_text(encoding="utf-8") if path.is_file() else ""
        if written != page:
            raise CommandError(f"{PAGE} is out of date: run ./run manage export_configuration")
