"""``manage.py placement_cutover``: move a running cloud to our tables, and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final
from uuid import uuid4

import orjson
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.progress import TaskID
from rich.table import Table

from core.chunks import in_chunks
from journal.actors import command_actor
from journal.errors import HeadroomError
from journal.progress import printing_to, progress_bar, progress_bars, reading_bars
from placement.clients.reference_database import read_database
from placement.cutover import comparing, copying, mirroring, parts, planning, state, switching
from placement.cutover.peer import Peer, opened_peer
from placement.cutover.rounds import one_round
from placement.cutover.status import status_facts
from placement.domain.transfer import Contents
from placement.models import Phase

PARTS: Final = {"host": "NAME", "aggregate": "UUID", "zone": "NAME"}
OF_PARTS: Final = frozenset({"plan", "verify", "switch", "rollback"})
STEPS: Final = ("plan", "copy", "verify", "switch", "rollback", "status", "follow", "stop")
PAUSE_SECONDS: Final = 0.5
SHOWN: Final = 50


class Command(BaseCommand):
    """Copy while writes go on, compare, switch, mirror back, roll back; each safe to repeat."""

    help = (
        "Move a running cloud from the other Placement to Headroom's tables: plan, copy, verify, "
        "switch; rollback undoes the switch, stop ends copying, follow does what workers do in the "
        "background, status tells where it stands. Each step may be interrupted and repeated. "
        "With --host, --aggregate or --zone plan, verify, switch and rollback are about those."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the step and its options."""
        parser.add_argument("step", choices=STEPS)
        parser.add_argument(
            "--from-database",
            metavar="URL",
            default="",
            help="read the other Placement's database instead of its API (plan, copy, verify)",
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="say what copy, switch or rollback would do, and do nothing",
        )
        for name, what in PARTS.items():
            parser.add_argument(
                f"--{name}", action="append", default=[], metavar=what, help=f"only this {name}"
            )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Do the step, and print what came of it.

        Raises:
            CommandError: it could not be done; the truth is where it was.
        """
        step = "plan" if options["dry_run"] else options["step"]
        named = parts.Named(
            hosts=options["host"], aggregates=options["aggregate"], zones=options["zone"]
        )
        if named and step not in OF_PARTS:
            raise CommandError(f"{step} is about all: leave out {', '.join(PARTS)}")
        try:
            if step in OF_PARTS:
                found = getattr(self, f"_{step}")(options["from_database"], named)
            else:
                found = getattr(self, f"_{step}")(options["from_database"])
        except HeadroomError as error:
            raise CommandError(error.message) from error
        if options["json"]:
            self.stdout.write(orjson.dumps(found, default=str).decode())
        else:
            self._print(step, found)
        wrong = [*found.get("in_the_way", ()), *map(_told, found.get("differences", ()))]
        if wrong:
            more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise CommandError(f"{wrong[0]}{more}")

    def _plan(self, database: str, named: parts.Named) -> dict[str, Any]:  # Any: several kinds
        phase = state.read_state().phase
        if named:
            return asdict(parts.plan_part(named, planning.settings_in_the_way(phase)))
        with opened_peer() as peer:
            return asdict(planning.make_plan(peer, _contents(peer, database), phase))

    def _copy(self, database: str) -> dict[str, Any]:  # Any: as above
        planning.refuse_what_is_in_the_way(state.read_state().phase)
        with opened_peer() as peer, switching.held_or_refused():
            is_new = state.begin()
            if not is_new and state.read_state().phase not in {Phase.COPYING, Phase.PARTED}:
                raise state.WrongPhaseError(
                    f"the phase is {state.read_state().phase}: nothing is copied now"
                )
            state.forget_moved()
            with progress_bar("waiting for writes from before"):
                switching.wait_for_old_writes()
            began_at = time.monotonic()
            if database and state.read_state().phase is Phase.COPYING:
                copying.store_contents(read_database(database))
            with _left() as seen:
                copying.copy_all(peer, seen, few=switching.FEW_DUE)
        return {**status_facts(), "seconds": round(time.monotonic() - began_at, 1)}

    def _verify(self, database: str, named: parts.Named) -> dict[str, Any]:  # Any: as above
        phase = state.read_state().phase
        with opened_peer() as peer, switching.held_or_refused(), reading_bars() as seen:
            switching.wait_for_old_writes()

            def even() -> None:
                if phase in {Phase.SWITCHED, Phase.PARTED}:
                    mirroring.mirror(peer)
                if phase in {Phase.COPYING, Phase.PARTED}:
                    copying.follow(peer, few=switching.FEW_DUE)

            only = parts.members_of(parts.trees_of(named)) if named else None
            there, found = comparing.compare(
                peer, database=database, seen=seen, even=even, only=only
            )
        return {
            "providers": len(there.providers),
            "consumers": len(there.consumers),
            "differences": [asdict(one) for one in found],
        }

    def _switch(self, _: str, named: parts.Named) -> dict[str, Any]:  # Any: as above
        planning.refuse_what_is_in_the_way(state.read_state().phase)
        if named:
            return self._turned_in_parts(switching.switch_part, named, to_us=True)
        return self._turned(switching.switch)

    def _rollback(self, _: str, named: parts.Named) -> dict[str, Any]:  # Any: as above
        if named or state.read_state().phase in state.PARTED:
            return self._turned_in_parts(switching.rollback_part, named, to_us=False)
        return self._turned(switching.rollback)

    def _turned(self, turn: Callable[..., switching.Turn]) -> dict[str, Any]:  # Any: as above
        with opened_peer() as peer:
            done = turn(peer, actor=command_actor("placement_cutover"), request_id=f"req-{uuid4()}")
        return {**status_facts(), **asdict(done)}

    def _turned_in_parts(
        self, turn: Callable[..., switching.Turn], named: parts.Named, *, to_us: bool
    ) -> dict[str, Any]:  # Any: as above
        """Let a few trees at a time change sides; those that have are left alone."""
        left = [tree for tree in parts.trees_of(named) if tree.is_ours is not to_us]
        attempts, held_ms, turned = 0, 0, 0
        request_id = f"req-{uuid4()}"
        with opened_peer() as peer, progress_bars() as bars:
            task = bars.add_task("trees", total=len(left))
            for trees in in_chunks(left, parts.TREES_AT_ONCE):
                done = turn(
                    peer, trees, actor=command_actor("placement_cutover"), request_id=request_id
                )
                turned += len(trees)
                attempts, held_ms = attempts + done.attempts, max(held_ms, done.held_ms)
                bars.advance(task, len(trees))
        return {**status_facts(), "turned": turned, "attempts": attempts, "held_ms": held_ms}

    def _status(self, _: str) -> dict[str, Any]:  # Any: as above
        return status_facts()

    def _stop(self, _: str) -> dict[str, Any]:  # Any: as above
        state.end_parts()
        if not state.end():
            raise state.WrongPhaseError(
                f"the phase is {state.read_state().phase}: only copying can be stopped"
            )
        return status_facts()

    def _follow(self, _: str) -> dict[str, Any]:  # Any: as above
        """Go on until interrupted."""
        try:
            while True:
                one_round()
                time.sleep(PAUSE_SECONDS)
        except KeyboardInterrupt:
            return status_facts()

    def _print(self, step: str, found: dict[str, Any]) -> None:  # Any: as above
        console = printing_to(self.stdout)
        table = Table(title=f"Cut-over: {step}", title_justify="left")
        table.add_column("what")
        table.add_column("is")
        for name, value in found.items():
            rows = value if isinstance(value, list | tuple) else [value]
            for row in list(rows)[:SHOWN]:
                table.add_row(name.replace("_", " "), _told(row))
            if len(rows) > SHOWN:
                table.add_row("", f"and {len(rows) - SHOWN} more")
        console.print(table)


def _told(row: Any) -> str:  # Any: as above
    if not isinstance(row, dict):
        return str(row)
    if "zone" in row:
        return f"{row['zone']}: {row['trees_of_ours']} of {row['trees']} trees"
    return f"{row['kind']} {row['subject']}: {row['detail']}"


def _contents(peer: Peer, database: str) -> Contents:
    if database:
        return read_database(database)
    with reading_bars() as seen:
        return peer.contents(seen)


@contextmanager
def _left() -> Iterator[copying.Seen]:
    """Show for each kind of thing how much of the most there was is done."""
    with progress_bars() as bars:
        tasks: dict[str, TaskID] = {}
        most: dict[str, int] = {}

        def seen(kind: str, left: int) -> None:
            most[kind] = max(most.get(kind, 0), left)
            if kind not in tasks:
                tasks[kind] = bars.add_task(f"copying {kind}", total=left)
            bars.update(tasks[kind], total=most[kind], completed=most[kind] - left)

        yield seen
