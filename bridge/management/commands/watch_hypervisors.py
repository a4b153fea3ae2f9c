"""``manage.py watch_hypervisors``: follow Hypervisor objects (docs/hypervisors.md)."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from bridge.hypervisors.kubernetes import hypervisors_api
from bridge.hypervisors.watcher import Watcher
from hosts.region.described import is_taken_from_objects
from hosts.region.run import ImportReport
from journal.actors import command_actor
from journal.errors import HeadroomError
from journal.exporter import start_exporter


class Command(BaseCommand):
    """Follow until SIGTERM or SIGINT, or read the list once."""

    help = "Follow the Hypervisor objects of Kubernetes: they say what hosts are and hold."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--once", action="store_true", help="read the whole list, then end")
        parser.add_argument(
            "--accept-shrink",
            action="store_true",
            help="with --once: remove hosts without an object, however many they are",
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Follow, or read once and print what changed.

        Raises:
            CommandError: The settings do not ask for it, or, once, the list cannot be read.
        """
        if not is_taken_from_objects():
            raise CommandError("HEADROOM_HYPERVISORS__SYNC is not import (docs/hypervisors.md)")
        if options["accept_shrink"] and not options["once"]:
            raise CommandError("--accept-shrink is for one list: add --once")
        until = threading.Event()
        watcher = Watcher(hypervisors_api, actor=command_actor("watch_hypervisors"), until=until)
        if options["once"]:
            try:
                self._print(watcher.list_once(accepts_shrink=options["accept_shrink"]))
            except HeadroomError as error:
                raise CommandError(error.message) from error
            return
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: until.set())
        start_exporter("hypervisors", port=settings.HEADROOM.hypervisors.metrics_port)
        watcher.run()

    def _print(self, report: ImportReport) -> None:
        for counts in report.counts.values():
            told = ", ".join(
                f"{number} {name}"
                for name, number in asdict(counts).items()
                if name != "section" and number
            )
            self.stdout.write(f"{counts.section}: {told or 'none'}")
        for remark in report.remarks:
            self.stdout.write(f"{remark.object_id}: {remark.reason}: {remark.detail}")
        for refusal in report.refusals.values():
            self.stdout.write(f"refused: {refusal}")
