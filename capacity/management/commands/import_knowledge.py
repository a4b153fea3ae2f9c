"""``manage.py import_knowledge``: facts of VMware hosts for weighers (spec scheduling, 17.1)."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from django.core.management.base import BaseCommand, CommandError

from capacity.nova.knowledge import replace_knowledge
from journal.actors import command_actor
from journal.clock import database_now
from journal.errors import InvalidInput

EXIT_MALFORMED = 2
MAX_SECONDS = 366 * 24 * 3600


class Command(BaseCommand):
    """Load knowledge; exit 2 and change nothing when a file is refused."""

    help = "Load facts of VMware hosts from JSON: each named knowledge is replaced as a whole."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare files and options."""
        parser.add_argument("files", nargs="+", metavar="FILE", help="knowledge by name (JSON)")
        parser.add_argument(
            "--valid-for",
            type=int,
            metavar="SECONDS",
            help="count the facts as missing after so long; by default they count until replaced",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="report what would change, change nothing"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Import, then print what was done.

        Raises:
            CommandError: A file or a fact is refused.
        """
        try:
            documents = _read_all(options["files"])
            done = replace_knowledge(
                documents,
                actor=command_actor("import_knowledge"),
                request_id=f"req-{uuid4()}",
                expires_at=_expiry(options["valid_for"]),
                is_dry_run=options["dry_run"],
            )
        except InvalidInput as error:
            raise CommandError(error.message, returncode=EXIT_MALFORMED) from None
        if options["json"]:
            content = {
                "dry_run": options["dry_run"],
                "knowledge": [
                    {"name": one.name, "before": one.before, "after": one.after} for one in done
                ],
            }
            self.stdout.write(orjson.dumps(content).decode())
            return
        if options["dry_run"]:
            self.stdout.write("dry run: nothing was changed")
        for one in done:
            self.stdout.write(f"{one.name}: {one.before} -> {one.after} entries")


def _expiry(seconds: int | None) -> datetime | None:
    if seconds is None:
        return None
    if not 0 < seconds <= MAX_SECONDS:
        raise InvalidInput(f"--valid-for: must be from 1 to {MAX_SECONDS}")
    return database_now() + timedelta(seconds=seconds)


def _read_all(file_names: list[str]) -> dict[str, object]:
    documents: dict[str, object] = {}
    for file_name in file_names:
        for name, content in _read(file_name).items():
            if name in documents:
                raise InvalidInput(f"{file_name}: {name} is given twice")
            documents[name] = content
    return documents


def _read(file_name: str) -> dict[str, object]:
    try:
        content = orjson.loads(Path(file_name).read_bytes())
    except OSError as error:
        raise InvalidInput(f"{file_name}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{file_name}: is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{file_name}: must be an object, knowledge by name")
    return content
