"""Importing region files in one transaction (spec region-file, rules)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from django.db import transaction

from hosts.region.parse import RegionFileParser
from hosts.region.registry import Phase, Shape, Step, registry
from hosts.region.run import SILENT, ImportOptions, ImportProgress, ImportReport, ImportRun
from hosts.region.staging import StagingTable
from journal.actors import Actor
from journal.clock import database_now
from journal.services import Change, record_changes
from journal.statements import execute
from journal.statistics import analyze_grown_tables

Sink = Callable[..., None]
NO_OPTIONS: Final = ImportOptions()


def import_region(
    *,
    files: Sequence[Path],
    actor: Actor,
    request_id: str,
    options: ImportOptions = NO_OPTIONS,
    progress: ImportProgress = SILENT,
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

    Returns:
        Counts per section, every skipped object with its reason, and notes.

    Raises:
        RegionFileError: A file is malformed; nothing was written.
    """
    run = ImportRun(
        actor=actor,
        request_id=request_id,
        now=database_now(),
        options=options,
        progress=progress,
    )
    with ExitStack() as stack:
        for name in sorted(registry.witnesses):
            stack.enter_context(registry.witnesses[name](run))
        _import(run, files)
    return run.report


def _import(run: ImportRun, files: Sequence[Path]) -> None:
    try:
        _parse(run, files)
        with transaction.atomic(durable=True):
            _write(run)
            if run.options.is_dry_run:
                transaction.set_rollback(True)
    finally:
        for close in run.closers:
            close()
    if not run.options.is_dry_run:
        for step in registry.steps(Phase.FOLLOW_UP):
            _run_step(run, step)


def _run_step(run: ImportRun, step: Step) -> None:
    """Do a step; what it filled is looked at before the next one reads it."""
    run.progress.step_begun(step.name)
    step.run(run)
    analyze_grown_tables()


def _parse(run: ImportRun, files: Sequence[Path]) -> None:
    sinks: dict[str, tuple[Shape, Sink]] = {
        section.path: (section.shape, section.reader(run)) for section in registry.sections()
    }
    for path in files:
        parser = RegionFileParser(path, sinks, progress=run.progress.bytes_read)
        parser.run()
        run.sections_seen |= parser.sections_seen
    for staged in run.stash.values():
        if isinstance(staged, StagingTable):
            staged.finish()


def _write(run: ImportRun) -> None:
    execute("LOCK TABLE hosts_region IN SHARE ROW EXCLUSIVE MODE")
    for step in registry.steps(Phase.WRITE):
        _run_step(run, step)
    for step in registry.steps(Phase.PRUNE):
        _run_step(run, replace(step, name=f"prune {step.name}"))
    for step in registry.steps(Phase.FINISH):
        _run_step(run, step)
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
