"""``manage.py import_pipelines``: load pipelines from YAML files (spec scheduling, 4)."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from django.core.management.base import BaseCommand, CommandError

from capacity.nova.pipeline_files import PipelineImport, import_pipelines, parse_pipelines
from journal.actors import command_actor
from journal.errors import HeadroomError, InvalidInput
from scheduling.pipelines import PipelineSpec

EXIT_MALFORMED = 2
VERBS = {"create": "created", "change": "changed", "keep": "unchanged"}


class Command(BaseCommand):
    """Load pipelines; exit 2 and change nothing when one is refused."""

    help = "Load scheduling pipelines from YAML: all or nothing, and safe to repeat."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare files and options."""
        parser.add_argument("files", nargs="+", metavar="FILE", help="pipelines (YAML)")
        parser.add_argument(
            "--prune", action="store_true", help="remove pipelines that are in no file"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="report what would change, change nothing"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Import, then print what was done.

        Raises:
            CommandError: A file or a definition is refused.
        """
        try:
            done = import_pipelines(
                [spec for name in options["files"] for spec in _read(name)],
                actor=command_actor("import_pipelines"),
                request_id=f"req-{uuid4()}",
                is_pruning=options["prune"],
                is_dry_run=options["dry_run"],
            )
        except InvalidInput as error:
            raise CommandError(error.message, returncode=EXIT_MALFORMED) from None
        except HeadroomError as error:
            raise CommandError(f"{error.message}; nothing was imported") from None
        if options["json"]:
            self.stdout.write(orjson.dumps(_as_json(done, is_dry_run=options["dry_run"])).decode())
        else:
            self._print(done, is_dry_run=options["dry_run"])

    def _print(self, done: PipelineImport, *, is_dry_run: bool) -> None:
        if is_dry_run:
            self.stdout.write("dry run: nothing was changed")
        for plan in done.plans:
            self.stdout.write(f"{plan.spec.name}: {VERBS[plan.verb]}, version {plan.version}")
            for line in (*plan.changes, *(f"warning: {text}" for text in plan.warnings)):
                self.stdout.write(f"  {line}")
        for name in done.removed:
            self.stdout.write(f"{name}: removed")


def _read(file_name: str) -> tuple[PipelineSpec, ...]:
    try:
        text = Path(file_name).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{file_name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file_name}: is not UTF-8 text") from None
    return parse_pipelines(text, file_name=file_name)


def _as_json(done: PipelineImport, *, is_dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": is_dry_run,
        "pipelines": [
            {
                "name": plan.spec.name,
                "outcome": VERBS[plan.verb],
                "version": plan.version,
                "changes": plan.changes,
                "warnings": plan.warnings,
            }
            for plan in done.plans
        ],
        "removed": done.removed,
    }
