"""``manage.py sync_nova``: read a live cloud now (docs/feed.md)."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

import orjson
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from hosts.feed.lists import PassKind
from hosts.feed.passes import FULL_KINDS
from hosts.management.showing import watched_passes
from hosts.region.run import ImportReport
from journal.actors import command_actor
from journal.errors import HeadroomError


class Command(BaseCommand):
    """Read what the cloud lists, once; the workers do the same all the time."""

    help = "Read a live cloud once: all kinds of lists, or those that are named."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare cloud, kinds and options."""
        parser.add_argument(
            "--cloud", metavar="NAME", help="cloud of clouds.yaml (default: HEADROOM_FEED__CLOUD)"
        )
        parser.add_argument(
            "--kind",
            action="append",
            choices=[kind.value for kind in PassKind],
            help="what is read; again for more. `changes`: VMs that changed since the last look",
        )
        parser.add_argument(
            "--accept-shrink",
            action="store_true",
            help="remove what the cloud says is gone, however much a list lacks",
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Read, and print what changed.

        Raises:
            CommandError: The cloud cannot be read; kinds that came before are written.
        """
        # openstacksdk takes a second to import: only for those who need it.
        from hosts.clients.cloud import OpenStackCloud  # noqa: PLC0415

        name = options["cloud"] or settings.HEADROOM.feed.cloud or None
        kinds = [PassKind(kind) for kind in options["kind"] or FULL_KINDS]
        try:
            cloud = OpenStackCloud(name, timeout_seconds=settings.HEADROOM.feed.timeout_seconds)
            reports = watched_passes(
                kinds,
                cloud,
                actor=command_actor("sync_nova"),
                accepts_shrink=options["accept_shrink"],
            )
        except HeadroomError as error:
            raise CommandError(error.message) from error
        if options["json"]:
            self.stdout.write(orjson.dumps(_as_json(reports)).decode())
            return
        for each, report in reports.items():
            self._print(each, report)

    def _print(self, kind: str, report: ImportReport) -> None:
        for counts in report.counts.values():
            told = ", ".join(
                f"{number} {name}"
                for name, number in asdict(counts).items()
                if name != "section" and number
            )
            self.stdout.write(f"{kind}: {counts.section}: {told or 'none'}")
        for remark in report.remarks:
            self.stdout.write(
                f"{kind}: {remark.section} {remark.object_id}: {remark.reason}: {remark.detail}"
            )
        for refusal in report.refusals.values():
            self.stdout.write(f"{kind}: refused: {refusal}")


def _as_json(reports: dict[PassKind, ImportReport]) -> dict[str, object]:
    return {
        kind.value: {
            "sections": [asdict(counts) for counts in report.counts.values()],
            "remarks": [asdict(remark) for remark in report.remarks],
            "refusals": report.refusals,
        }
        for kind, report in reports.items()
    }
