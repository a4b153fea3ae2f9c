"""``manage.py import_region FILE...``: load region files (spec region-file)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from django.core.management.base import BaseCommand, CommandError
from rich.table import Table

from hosts.region.node import RegionFileError
from hosts.region.run import ImportOptions, ImportProgress, ImportReport
from hosts.services.region_import import import_region
from journal.actors import command_actor
from journal.errors import HeadroomError
from journal.progress import StepBar, printing_to, progress_bars

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
            self._print(report, chosen)

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

    def _print(self, report: ImportReport, options: ImportOptions) -> None:
        console = printing_to(self.stdout)
        console.print(_counts_table(report, options))
        if report.remarks:
            console.print(_remarks_table(report))
        for refusal in report.refusals.values():
            console.print(f"refused: {refusal}", soft_wrap=True)
        for note in report.notes:
            console.print(f"note: {note}", soft_wrap=True)
        if report.placement:
            listed = ", ".join(f"{count} {name}" for name, count in report.placement.items())
            console.print(f"slots: {listed}", soft_wrap=True)
        if options.is_dry_run:
            console.print("dry run: nothing was changed")


def _counts_table(report: ImportReport, options: ImportOptions) -> Table:
    table = Table(
        title="Import (dry run)" if options.is_dry_run else "Import", title_justify="left"
    )
    table.add_column("section")
    for name in ("created", "updated", "unchanged", "removed", "skipped", "incomplete"):
        table.add_column(name, justify="right")
    kept = Counter(remark.section for remark in report.remarks if remark.is_kept)
    for counts in report.counts.values():
        numbers = (
            counts.created,
            counts.updated,
            counts.unchanged,
            counts.removed,
            counts.skipped,
            kept[counts.section],
        )
        table.add_row(counts.section, *(f"{number}" for number in numbers))
    return table


def _remarks_table(report: ImportReport) -> Table:
    table = Table(title="Skipped, or kept but incomplete", title_justify="left")
    for name in ("section", "object", "", "reason", "detail"):
        table.add_column(name, overflow="fold")
    for remark in report.remarks:
        table.add_row(
            remark.section,
            remark.object_id,
            "kept" if remark.is_kept else "skipped",
            remark.reason,
            remark.detail,
        )
    return table


def _as_json(report: ImportReport, options: ImportOptions) -> dict[str, object]:
    return {
        "dry_run": options.is_dry_run,
        "sections": [asdict(counts) for counts in report.counts.values()],
        "remarks": [asdict(remark) for remark in report.remarks],
        "refusals": report.refusals,
        "notes": report.notes,
        "placement": report.placement,
    }
