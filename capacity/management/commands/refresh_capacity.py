"""``manage.py refresh_capacity``: compute the capacity of flavor groups (spec liquid, 13)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError
from rich.table import Table

from capacity.figures.group_capacity import (
    WRITTEN_COLUMNS,
    ZoneRefresh,
    known_zones,
    refresh_group_capacity,
)
from capacity.models import GroupCapacity
from journal.errors import NotReady
from journal.progress import printing_to, progress_bar
from scheduling.resources import GIB

EXIT_NOT_READY = 1
EXIT_USAGE = 2

JSON_COLUMNS = ("group_name", "zone", *WRITTEN_COLUMNS)


class Command(BaseCommand):
    """Compute what is stale, then print every row."""

    help = "Compute the capacity of flavor groups in the zones where something changed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument(
            "--zone", action="append", metavar="ZONE", help="only this zone (repeatable)"
        )
        parser.add_argument(
            "--force", action="store_true", help="compute zones where nothing changed too"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Compute, then print.

        Raises:
            CommandError: Flavor groups are not ready, or a zone is unknown.
        """
        unknown = sorted(set(options["zone"] or ()) - known_zones())
        if unknown:
            raise CommandError(
                f"no hosts in zone {', '.join(unknown)}; known: {', '.join(sorted(known_zones()))}",
                returncode=EXIT_USAGE,
            )
        wanted = set(options["zone"] or known_zones())
        try:
            with progress_bar("computing capacity of zones", len(wanted)) as advance:
                refreshed = refresh_group_capacity(
                    zones=wanted, is_forced=options["force"], progress=advance
                )
        except NotReady as error:
            raise CommandError(error.message, returncode=EXIT_NOT_READY) from None
        zones = [entry.zone for entry in refreshed]
        rows = list(GroupCapacity.objects.filter(zone__in=zones).order_by("zone", "group_name"))
        if options["json"]:
            answer = {
                "zones": [asdict(entry) for entry in refreshed],
                "groups": [{name: getattr(row, name) for name in JSON_COLUMNS} for row in rows],
            }
            self.stdout.write(orjson.dumps(answer).decode())
            return
        console = printing_to(self.stdout)
        console.print(_groups_table(rows))
        console.print(_zones_table(refreshed))


def _groups_table(rows: Sequence[GroupCapacity]) -> Table:
    table = Table(title="capacity of flavor groups, memory in GiB")
    for title in ("zone", "group", "smallest"):
        table.add_column(title)
    for title in ("total", "vCPUs", "running", "reserved", "exclusive", "slots", "free", "ready"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row.zone,
            row.group_name,
            row.smallest_flavor_name,
            _gib(row.total_memory_bytes),
            "-" if row.total_vcpus is None else str(row.total_vcpus),
            f"{_gib(row.running_memory_bytes)} ({row.running_instances} VMs)",
            _gib(row.reserved_unused_memory_bytes),
            _gib(row.exclusively_free_memory_bytes),
            str(row.exclusively_free_slots),
            _gib(row.free_memory_bytes),
            "yes" if row.is_ready else f"no: {row.ready_message}",
        )
    return table


def _zones_table(refreshed: Sequence[ZoneRefresh]) -> Table:
    table = Table(title="zones")
    for title in ("zone", "outcome", "changed groups", "failed groups"):
        table.add_column(title)
    for entry in refreshed:
        table.add_row(
            entry.zone,
            entry.outcome,
            ", ".join(entry.changed_groups) or "-",
            ", ".join(entry.failed_groups) or "-",
        )
    return table


def _gib(memory_bytes: int) -> str:
    return f"{memory_bytes / GIB:.1f}".removesuffix(".0")
