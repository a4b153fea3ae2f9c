"""Importing region files (spec region-file, rules)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db import transaction

from hosts.region.parse import RegionFileParser
from hosts.region.registry import Phase, RegionSection, Shape, Step, registry
from hosts.region.run import SILENT, ImportOptions, ImportProgress, ImportReport, ImportRun
from hosts.region.staging import StagingTable
from hosts.region.writing import write_part
from journal.actors import Actor
from journal.clock import database_now
from journal.collector import rare_collections
from journal.errors import Busy
from journal.leases import held_lease
from journal.services import Change, record_changes
from journal.statements import one_session
from journal.statistics import analyze_grown_tables

Sinks = Mapping[str, tuple[Shape, Callable[..., None]]]
Source = Callable[[ImportRun, Sinks], None]
"""Hands each element of what it reads to the sink of its section, and says which it saw."""
NO_OPTIONS: Final = ImportOptions()
LEASE: Final = "hosts.import_region"
WAIT_SECONDS: Final = 0.2


def import_region(
    *,
    files: Sequence[Path],
    actor: Actor,
    request_id: str,
    options: ImportOptions = NO_OPTIONS,
    progress: ImportProgress = SILENT,
) -> ImportReport:
    """Load region files: parse into staging tables, then write in small transactions.

    Two imports at once wait for each other. Rows that do not differ are not written. One that dies
    leaves whole parts; the next one writes the rest. A dry run writes the same and rolls back.

    Args:
        files: The files; their sections are joined.
        options: Pruning, dry run, ended commitments, placing.
        progress: Told how far the import is.

    Returns:
        Counts per section, every skipped object with its reason, and notes.

    Raises:
        RegionFileError: A file is malformed; nothing was written.
        Busy: Another import is running, or what a part needs was not free.
    """
    run = ImportRun(
        actor=actor,
        request_id=request_id,
        now=database_now(),
        options=options,
        progress=progress,
    )
    with ExitStack() as stack:
        stack.enter_context(alone(options))
        for name in sorted(registry.witnesses):
            stack.enter_context(registry.witnesses[name](run))
        take_in(run, partial(_read_files, files), sections=registry.sections())
    return run.report


def take_in(
    run: ImportRun,
    source: Source,
    *,
    sections: Iterable[RegionSection],
    writing: AbstractContextManager[None] | None = None,
) -> None:
    """Read what a region has, then write it: the way of files and of live clouds.

    Args:
        source: Reads it.
        sections: What it may read.
        writing: Held while there is writing, where the caller does not hold it anyway.
    """
    with one_session():
        try:
            with rare_collections():
                _stage(run, source, sections)
                with writing or nullcontext():
                    _write_all(run)
        finally:
            for close in run.closers:
                close()


def _write_all(run: ImportRun) -> None:
    if run.options.is_dry_run:
        with transaction.atomic(durable=True):
            _write(run)
            transaction.set_rollback(True)
        return
    _write(run)
    for step in _steps(run, Phase.FINISH, Phase.FOLLOW_UP):
        _run_step(run, step)
    if run.live is None or run.options.prune:
        write_part(run, partial(_record, run))


def _steps(run: ImportRun, *phases: Phase) -> list[Step]:
    """Return the steps of phases that have something to do after what was read."""
    steps = [step for phase in phases for step in registry.steps(phase)]
    return [step for step in steps if not step.after or step.after & run.sections_seen]


def _run_step(run: ImportRun, step: Step) -> None:
    """Do a step; what it filled is looked at before the next one reads it."""
    run.progress.step_begun(step.name)
    if step.is_divided:
        step.run(run)
    else:
        write_part(run, partial(_whole_step, run, step))
    analyze_grown_tables()


def _whole_step(run: ImportRun, step: Step) -> None:
    """Do a step that is one part; what it told counts only if it is not tried again."""
    before = deepcopy(run.report)
    try:
        step.run(run)
    except BaseException:
        run.report = before
        raise


def _stage(run: ImportRun, source: Source, sections: Iterable[RegionSection]) -> None:
    source(run, {section.path: (section.shape, section.reader(run)) for section in sections})
    for staged in run.stash.values():
        if isinstance(staged, StagingTable):
            staged.finish()


def _read_files(files: Sequence[Path], run: ImportRun, sinks: Sinks) -> None:
    for path in files:
        parser = RegionFileParser(path, sinks, progress=run.progress.bytes_read)
        parser.run()
        run.sections_seen |= parser.sections_seen


def _write(run: ImportRun) -> None:
    for step in _steps(run, Phase.WRITE):
        _run_step(run, step)
    for step in _steps(run, Phase.PRUNE):
        _run_step(run, replace(step, name=f"prune {step.name}"))


def _record(run: ImportRun) -> None:
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


@contextmanager
def alone(options: ImportOptions) -> Iterator[None]:
    """Wait until no other import is on; a dry run waits for nobody.

    Raises:
        Busy: another was on all the time.
    """
    if options.is_dry_run:
        yield
        return
    waited_until = time.monotonic() + 2 * settings.HEADROOM.lease_seconds
    while True:
        with held_lease(LEASE) as is_alone:
            if is_alone:
                yield
                return
        if time.monotonic() > waited_until:
            raise Busy("another import is running", lease=LEASE)
        time.sleep(WAIT_SECONDS)
