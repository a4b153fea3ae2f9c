"""What commands that read a region show: bars of their steps, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from uuid import uuid4

from django.core.management.base import OutputWrapper
from rich.table import Table

from hosts.clients.listing import CloudReader
from hosts.feed.lists import PassKind
from hosts.feed.passes import run_pass
from hosts.region.run import ImportProgress, ImportReport
from journal.actors import Actor
from journal.progress import StepBar, printing_to, progress_bars


def watched_passes(
    kinds: Iterable[PassKind], cloud: CloudReader, *, actor: Actor, accepts_shrink: bool = False
) -> dict[PassKind, ImportReport]:
    """Read lists of a live cloud one after the other, with a bar; return what came of each.

    Raises:
        CloudUnreachable: A list could not be read; kinds that came before are written.
        Busy: Another pass of a kind is on.
    """
    with progress_bars() as bars:
        step = StepBar(bars)
        progress = ImportProgress(step_begun=step.begin, step_sized=step.size, step_grown=step.grow)
        return {
            kind: run_pass(
                kind,
                cloud=cloud,
                actor=actor,
                request_id=f"req-{uuid4()}",
                accepts_shrink=accepts_shrink,
                progress=progress,
            )
            for kind in kinds
        }


def print_report(report: ImportReport, output: OutputWrapper, *, title: str) -> None:
    """Print counts, what was skipped and why, and the notes."""
    console = printing_to(output)
    console.print(_counts_table(report, title))
    if report.remarks:
        console.print(_remarks_table(report))
    for refusal in report.refusals.values():
        console.print(f"refused: {refusal}", soft_wrap=True)
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if report.placement:
        listed = ", ".join(f"{count} {name}" for name, count in report.placement.items())
        console.print(f"slots: {listed}", soft_wrap=True)


def _counts_table(report: ImportReport, title: str) -> Table:
    table = Table(title=title, title_justify="left")
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
