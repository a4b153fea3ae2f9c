"""The row of a region import's run, written around it (style, 9; spec commitments, 16.7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commitments.models import SyncOutcome, SyncRun
from commitments.services.sync_runs import begin_run, finish_run
from hosts.region.run import ImportReport, ImportRun
from journal.errors import HeadroomError

SOURCE = "region_file"
COUNTED = ("created", "updated", "removed", "skipped")
SHRANK = "list_shrank"


@contextmanager
def recorded_import(run: ImportRun) -> Iterator[None]:
    """Write the row of an import when it begins and how it ended when it ends.

    A dry run leaves no row. An import runs alone, so what has no end was abandoned.
    """
    if run.options.is_dry_run:
        yield
        return
    row = begin_run(run.now, source=SOURCE, is_alone=True)
    try:
        yield
    except BaseException as error:
        code = error.code if isinstance(error, HeadroomError) else "internal"
        message = str(error) or type(error).__name__
        _finish(row, run.report, SyncOutcome.FAILED, code, message)
        raise
    refusals = "\n".join(run.report.refusals[key] for key in sorted(run.report.refusals))
    outcome = SyncOutcome.GUARDED if refusals else SyncOutcome.SUCCESS
    _finish(row, run.report, outcome, SHRANK if refusals else "", refusals)


def last_import() -> SyncRun | None:
    """Return the last import that ended."""
    runs = SyncRun.objects.filter(source=SOURCE, finished_at__isnull=False)
    return runs.order_by("-id").first()


def _finish(
    row: SyncRun, report: ImportReport, outcome: SyncOutcome, error_code: str, message: str
) -> None:
    counts = {
        f"{section} {name}": count
        for section, counted in report.counts.items()
        for name in COUNTED
        if (count := getattr(counted, name))
    }
    finish_run(row, outcome=outcome, counts=counts, error_code=error_code, message=message)
