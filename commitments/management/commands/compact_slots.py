"""``manage.py compact_slots``: which hosts empty slots could leave, and let them, now."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError

from commitments.models import CompactionOutcome
from commitments.selectors.compaction import HostUse, zones_with_slots
from commitments.services.compaction import Compaction, compact_zone
from commitments.services.compaction_plans import PlannedCompaction, plan_zone
from core.text import count_text, memory_short, plural
from journal.actors import command_actor
from journal.clock import database_now
from journal.errors import NotReady
from journal.tracing import with_new_global_request_id

EXIT_REFUSED = 1
BAD_OUTCOMES = {CompactionOutcome.REFUSED, CompactionOutcome.BUSY, CompactionOutcome.FAILED}
USE_WORDS = {
    HostUse.FREE: "free",
    HostUse.NOT_READY: "not in service",
    HostUse.VMS: "with VMs",
    HostUse.IN_FLIGHT: "with VMs on the way",
    HostUse.FAILOVER: "with failover slots",
    HostUse.OTHER_SLOTS: "with slots that stay",
    HostUse.EMPTY_SLOTS: "with empty slots alone",
}


class Command(BaseCommand):
    """Free whole hosts of some zones, or show what would move."""

    help = (
        "Move empty slots of commitments to hosts that are in use anyway, so that whole hosts "
        "become free. With --dry-run nothing is changed and every move is listed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--zone", action="append", help="only this zone; may be repeated")
        parser.add_argument("--dry-run", action="store_true", help="show what would move")
        parser.add_argument("--most-moves", type=int, help="most slots to move in a zone")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Plan or run, then print.

        Raises:
            CommandError: A zone is unknown, or could not be worked on.
        """
        known = zones_with_slots()
        unknown = sorted(set(options["zone"] or ()) - set(known))
        if unknown:
            raise CommandError(f"no slots in zone {', '.join(unknown)}")
        most_moves = options["most_moves"]
        if most_moves is not None and most_moves < 1:
            raise CommandError("--most-moves must be 1 or more")
        self._is_json = options["json"]
        zones = options["zone"] or known
        try:
            records, problems = (
                self._plan(zones, most_moves)
                if options["dry_run"]
                else self._compact(zones, most_moves)
            )
        except NotReady as error:
            raise CommandError(error.message) from None
        if self._is_json:
            self.stdout.write(orjson.dumps(records, option=orjson.OPT_INDENT_2).decode())
        if problems:
            raise CommandError("; ".join(problems), returncode=EXIT_REFUSED)

    def _plan(
        self, zones: list[str], most_moves: int | None
    ) -> tuple[list[dict[str, object]], list[str]]:
        records: list[dict[str, object]] = []
        for zone in zones:
            plan = plan_zone(zone, now=database_now(), most_moves=most_moves)
            records.append(plan_record(plan))
            if not self._is_json:
                self._print_plan(plan)
        return records, []

    def _print_plan(self, plan: PlannedCompaction) -> None:
        uses = ", ".join(
            f"{plan.uses[use]:,} {USE_WORDS[use]}" for use in HostUse if plan.uses[use]
        )
        self.stdout.write(f"{plan.zone}: {uses or 'no hosts'}")
        for release in plan.releases:
            self.stdout.write(
                f"  {release.host_name} would be free "
                f"({memory_short(release.size.memory_bytes)}, "
                f"{count_text(release.size.vcpus, 'vCPUs')}):"
            )
            for move in release.moves:
                self.stdout.write(
                    f"    slot {move.slot_index} of {move.commitment_uuid} "
                    f"({memory_short(move.size.memory_bytes)}) to {move.host_name}"
                )
        self.stdout.write(
            f"  {plural(len(plan.releases), 'host')} would be free after "
            f"{plural(plan.moves, 'move')}; of the "
            f"others with empty slots alone, {plan.no_room:,} have slots that fit nowhere else, "
            f"{plan.not_tried:,} have more than the limit leaves"
        )
        if plan.refusal:
            self.stdout.write(f"  but nothing may move now: {plan.refusal}")

    def _compact(
        self, zones: list[str], most_moves: int | None
    ) -> tuple[list[dict[str, object]], list[str]]:
        records: list[dict[str, object]] = []
        problems = []
        for zone in zones:
            with with_new_global_request_id() as request_id:
                done = compact_zone(
                    zone,
                    actor=command_actor("compact_slots"),
                    request_id=request_id,
                    now=database_now(),
                    most_moves=most_moves,
                    on_step=self._tell,
                )
            records.append(_run_record(done))
            if done.run is None:
                problems.append(f"{zone}: another run is at work")
                continue
            if done.run.outcome in BAD_OUTCOMES:
                problems.append(f"{zone}: {done.run.message}")
            if not self._is_json:
                self.stdout.write(
                    f"{zone}: {done.run.get_outcome_display()}; {done.run.hosts_freed:,} of "
                    f"{plural(done.run.hosts_planned, 'host')} freed, "
                    f"{plural(done.run.slots_moved, 'slot')} moved"
                )
        return records, problems

    def _tell(self, number: int, total: int) -> None:
        """Show progress on standard error, if somebody watches."""
        if self.stderr.isatty():
            ending = "\n" if number == total else ""
            self.stderr.write(f"\r{number:,} of {total:,} hosts", ending=ending)
            self.stderr.flush()


def plan_record(plan: PlannedCompaction) -> dict[str, object]:
    """Return a plan for programs."""
    return {
        "zone": plan.zone,
        "refusal": plan.refusal,
        "hosts": {use.value: count for use, count in plan.uses.items()},
        "no_room": plan.no_room,
        "not_tried": plan.not_tried,
        "moves": plan.moves,
        "releases": [
            {
                "host": release.host_name,
                "memory_bytes": release.size.memory_bytes,
                "vcpus": release.size.vcpus,
                "moves": [
                    {
                        "commitment": move.commitment_uuid,
                        "slot": move.slot_index,
                        "memory_bytes": move.size.memory_bytes,
                        "vcpus": move.size.vcpus,
                        "to": move.host_name,
                    }
                    for move in release.moves
                ],
            }
            for release in plan.releases
        ],
    }


def _run_record(done: Compaction) -> dict[str, object]:
    if done.run is None:
        return {"zone": done.zone, "outcome": "skipped"}
    return {
        "zone": done.zone,
        "outcome": done.run.outcome,
        "hosts_planned": done.run.hosts_planned,
        "hosts_freed": done.run.hosts_freed,
        "hosts_refused": done.run.hosts_refused,
        "slots_moved": done.run.slots_moved,
        "message": done.run.message,
    }
