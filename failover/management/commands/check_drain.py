"""``manage.py check_drain HOST...``: may these hosts be drained together?"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError

from core.text import memory_short, moment_text
from failover.api.rendering import drain_document
from failover.selectors.drain import DrainAnswer, check_drain
from journal.clock import database_now
from journal.errors import HeadroomError

EXIT_UNSAFE = 1


class Command(BaseCommand):
    """Say what has to move, what cannot, and when it is safe."""

    help = (
        "Say whether hosts may be drained together: what moves where, commitments that would be "
        "stranded, VMs that would lose failover slots, and when it is safe next. Writes nothing. "
        f"Exits with {EXIT_UNSAFE} when it is not safe."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("hosts", nargs="+", metavar="HOST", help="name of a host")
        parser.add_argument("--json", action="store_true", help="print the answer as JSON")
        parser.add_argument("--moves", action="store_true", help="list every move")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Check and print.

        Raises:
            CommandError: A host is unknown, or the hosts may not be drained.
        """
        try:
            answer = check_drain(options["hosts"], now=database_now())
        except HeadroomError as error:
            raise CommandError(error.message) from None
        if options["json"]:
            self.stdout.write(orjson.dumps(drain_document(answer)).decode())
        else:
            for line in drain_lines(answer, with_moves=options["moves"]):
                self.stdout.write(line)
        if not answer.report.is_safe:
            words = ", ".join(blocker.value for blocker in answer.report.blockers)
            raise CommandError(f"not safe: {words}", returncode=EXIT_UNSAFE)


def drain_lines(answer: DrainAnswer, *, with_moves: bool) -> list[str]:
    """Return the answer as lines of text."""
    report = answer.report
    lines = [f"{', '.join(report.hosts)}: {'safe to drain' if report.is_safe else 'NOT safe'}"]
    kinds = [move.kind.value for move in report.moves]
    lines.append(
        "moves: "
        + (", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))) or "none")
    )
    if with_moves:
        lines.extend(
            f"  {move.kind.value} {move.key}: {move.from_host} -> {move.to_host}"
            for move in report.moves
        )
    for uuid, slots in report.stranded_commitments.items():
        memory_bytes = sum(slot.memory_bytes for slot in slots)
        lines.append(
            f"commitment {uuid}: {len(slots)} slots, {memory_short(memory_bytes)} stranded"
        )
    lines.extend(
        f"{row.kind.value} {row.key} on {row.from_host}: {row.reason}" for row in report.stuck
    )
    lines.extend(
        f"VM {row.vm}: {row.after} failover slots after, {row.before} before, {row.required} needed"
        for row in report.weakened
    )
    lines.append(f"next safe window: {_window_text(answer)}")
    return lines


def _window_text(answer: DrainAnswer) -> str:
    window = answer.window
    if window is None:
        return "not before something changes"
    start = "now" if answer.report.is_safe else f"from {moment_text(window.starts_at)}"
    if window.ends_at is None:
        return start
    return f"{start}, until {moment_text(window.ends_at)}"
