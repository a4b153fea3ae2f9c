"""Importing region files in one transaction (spec region-file, rules)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from django.db import connection, transaction

from hosts.region.parse import RegionFileParser
from hosts.region.registry import Registry, Shape, Step, registry
from hosts.region.run import ImportOptions, ImportReport, ImportRun
from hosts.region.staging import StagingTable
from journal.actors import Actor
from journal.clock import database_now
from journal.services import Change, record_changes
from journal.statistics import analyze_grown_tables

Sink = Callable[..., None]
NO_OPTIONS: Final = ImportOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProgress:
    """What is told while an import runs; the command draws bars with it.

    Attributes:
        bytes_read: Called with the number of bytes read since the last call.
        step_begun: Called with the name of each step.
    """

    bytes_read: Callable[[int], None] = lambda _: None
    step_begun: Callable[[str], None] = lambda _: None


SILENT: Final = ImportProgress()


def import_region(
    *,
    files: Sequence[Path],
    actor: Actor,
    request_id: str,
    options: ImportOptions = NO_OPTIONS,
    progress: ImportProgress = SILENT,
    sections: Registry = registry,
) -> ImportReport:
    """Load region files: parse into staging tables, then write everything in one transaction.

    Two imports at once wait for each other (lock on ``hosts_region``). Rows that do not differ are
    not written. A dry run does the same and rolls back.

    Args:
        files: The files; their sections are joined.
        actor: Who imports.
        request_id: Correlation id.
        options: Pruning, dry run, ended commitments, placing.
        progress: Told how far the import is.
        sections: Registry of sections; the tests pass their own.

    Returns:
        Counts per section, every skipped object with its reason, and notes.

    Raises:
        RegionFileError: A file is malformed; nothing was written.
    """
    run = ImportRun(actor=actor, request_id=request_id, now=database_now(), options=options)
    with ExitStack() as stack:
        for witness in sections.witnesses():
            stack.enter_context(witness(run))
        _import(run, files, progress, sections)
    return run.report


def _import(
    run: ImportRun, files: Sequence[Path], progress: ImportProgress, sections: Registry
) -> None:
    try:
        _parse(run, files, progress, sections)
        with transaction.atomic(durable=True):
            _write(run, progress, sections)
            if run.options.is_dry_run:
                transaction.set_rollback(True)
    finally:
        for close in run.closers:
            close()
    if not run.options.is_dry_run:
        for step in sections.follow_ups():
            _run_step(run, step, progress)


def _run_step(run: ImportRun, step: Step, progress: ImportProgress) -> None:
    """Do a step; what it filled is looked at before the next one reads it."""
    progress.step_begun(step.name)
    step.run(run)
    analyze_grown_tables()


def _parse(
    run: ImportRun, files: Sequence[Path], progress: ImportProgress, sections: Registry
) -> None:
    sinks: dict[str, tuple[Shape, Sink]] = {
        section.path: (section.shape, section.reader(run)) for section in sections.sections()
    }
    for path in files:
        parser = RegionFileParser(path, sinks, progress=progress.bytes_read)
        parser.run()
        run.sections_seen |= parser.sections_seen
    for staged in run.stash.values():
        if isinstance(staged, StagingTable):
            staged.finish()


def _write(run: ImportRun, progress: ImportProgress, sections: Registry) -> None:
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE hosts_region IN SHARE ROW EXCLUSIVE MODE")
    for step in sections.writers():
        _run_step(run, step, progress)
    for step in sections.pruners():
        _run_step(run, replace(step, name=f"prune {step.name}"), progress)
    for step in sections.finishers():
        _run_step(run, step, progress)
    record_changes(
        [
            Change(
                action="region_imported",
                object_type="RegionSection",
                object_id=counts.section,
                after=asdict(counts),
            )
            for counts in run.report.counts.values()
            if counts.changed
        ],
        actor=run.actor,
        request_id=run.request_id,
    )
