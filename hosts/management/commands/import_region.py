"""``manage.py import_region FILE...``: load region files (spec region-file)."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from django.core.management.base import BaseCommand, CommandError

from hosts.management.showing import print_report
from hosts.region.node import RegionFileError
from hosts.region.run import ImportOptions, ImportProgress, ImportReport
from hosts.services.region_import import import_region
from journal.actors import command_actor
from journal.errors import HeadroomError
from journal.progress import StepBar, progress_bars

EXIT_MALFORMED = 2


class Command(BaseCommand):
    """Load region files; exit 2 and change nothing when one is malformed."""

    help = "Load region files: all or nothing, and safe to repeat."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare files and options."""
        parser.add_argument("files", nargs="+", metavar="FILE", help="region file (JSON)")
        parser.add_argument(
            "--prune", action="store_true", help="remove what the files' sections do not hold"
        )
        parser.add_argument(
            "--accept-shrink",
            action="store_true",
            help="with --prune: remove however much the files lack",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="report what would change, change nothing"
        )
        parser.add_argument(
            "--with-ended", action="store_true", help="keep ended commitments as history"
        )
        parser.add_argument(
            "--no-place", action="store_true", help="leave placing of slots to the workers"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Import, then print the result.

        Raises:
            CommandError: A file is malformed, or the region is in use by another.
        """
        files = [Path(name) for name in options["files"]]
        chosen = ImportOptions(
            prune=options["prune"],
            is_dry_run=options["dry_run"],
            with_ended=options["with_ended"],
            place=not options["no_place"],
            accepts_shrink=options["accept_shrink"],
        )
        try:
            report = self._import(files, chosen)
        except RegionFileError as error:
            raise CommandError(error.message, returncode=EXIT_MALFORMED) from None
        except HeadroomError as error:
            raise CommandError(f"{error.message}; nothing was imported") from error
        if options["json"]:
            self.stdout.write(orjson.dumps(_as_json(report, chosen)).decode())
        else:
            is_dry = chosen.is_dry_run
            print_report(report, self.stdout, title="Import (dry run)" if is_dry else "Import")
            if is_dry:
                self.stdout.write("dry run: nothing was changed")

    def _import(self, files: list[Path], options: ImportOptions) -> ImportReport:
        with progress_bars() as bars:
            total_bytes = sum(path.stat().st_size for path in files if path.is_file())
            reading = bars.add_task("reading", total=max(1, total_bytes))
            step = StepBar(bars)
            return import_region(
                files=files,
                actor=command_actor("import_region"),
                request_id=f"req-{uuid4()}",
                options=options,
                progress=ImportProgress(
                    bytes_read=lambda count: bars.advance(reading, count),
                    step_begun=step.begin,
                    step_sized=step.size,
                    step_grown=step.grow,
                ),
            )


def _as_json(report: ImportReport, options: ImportOptions) -> dict[str, object]:
    return {
        "dry_run": options.is_dry_run,
        "sections": [asdict(counts) for counts in report.counts.values()],
        "remarks": [asdict(remark) for remark in report.remarks],
        "refusals": report.refusals,
        "notes": report.notes,
        "placement": report.placement,
    }
