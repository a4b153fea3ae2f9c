"""``manage.py verify_snapshot``: follow the host table by change and compare it with a new one."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError

from capacity.host_table import current_host_table, verify_host_table

EXIT_DIFFERENT = 1


class Command(BaseCommand):
    """Say whether the host table kept by change equals one built anew."""

    help = (
        "Follow the scheduling host table by change for a while, then compare it with one built "
        "anew. Web processes check their own table every so often "
        "(HEADROOM_SCHEDULER__HOST_TABLE_CHECK_SECONDS)."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument(
            "--seconds",
            type=float,
            default=0.0,
            help="how long to follow changes before the comparison",
        )
        parser.add_argument(
            "--interval", type=float, default=0.2, help="seconds between two refreshes"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Follow, compare, print.

        Raises:
            CommandError: The tables differ.
        """
        table = current_host_table()
        refreshes = 0
        until = time.monotonic() + options["seconds"]
        while time.monotonic() < until:
            time.sleep(options["interval"])
            current_host_table()
            refreshes += 1
        differences = verify_host_table()
        table = current_host_table()
        if options["json"]:
            answer = {"hosts": len(table), "refreshes": refreshes, "differences": differences}
            self.stdout.write(orjson.dumps(answer).decode())
        else:
            self.stdout.write(
                f"{len(table)} hosts, {len(table.reservations.by_id)} reservations, "
                f"{refreshes} refreshes: {'different' if differences else 'equal'}"
            )
        if differences:
            listed = ", ".join(f"{name} {count}" for name, count in sorted(differences.items()))
            raise CommandError(f"differences: {listed}", returncode=EXIT_DIFFERENT)
