"""``manage.py dump_region > region.json``: write a region file (spec region-file)."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from hosts.clients.listing import CloudUnreachable
from hosts.region.dump import dump_region
from hosts.region.registry import DumpOptions
from hosts.services.cloud_dump import dump_cloud

EXIT_USAGE = 2


class Command(BaseCommand):
    """Write a region file of our own tables, or of a live cloud."""

    help = "Write a region file: of Headroom's own tables (--from-db) or of a live cloud (--cloud)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare where to read from and write to."""
        source = parser.add_mutually_exclusive_group()
        source.add_argument("--from-db", action="store_true", help="read Headroom's own tables")
        source.add_argument(
            "--cloud",
            metavar="NAME",
            help="read the live cloud of this name in clouds.yaml (default: OS_CLOUD)",
        )
        parser.add_argument("--output", metavar="FILE", help="write to a file, not to the terminal")
        parser.add_argument(
            "--with-ended", action="store_true", help="with commitments that have ended"
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Write the dump.

        Raises:
            CommandError: The file cannot be written, or the cloud cannot be read.
        """
        chosen = DumpOptions(with_ended=options["with_ended"])
        if options["from_db"]:
            self._to_output(options["output"], lambda stream: dump_region(stream, chosen))
            return
        # openstacksdk takes a second to import: only for those who need it.
        from hosts.clients.cloud import OpenStackCloud  # noqa: PLC0415

        try:
            cloud = OpenStackCloud(options["cloud"])
            self._to_output(
                options["output"],
                lambda stream: dump_cloud(
                    stream, cloud, name=cloud.region_name, now=timezone.now()
                ),
            )
        except CloudUnreachable as error:
            raise CommandError(error.message) from None

    def _to_output(self, name: str | None, write: Callable[[BinaryIO], None]) -> None:
        if name is None:
            write(sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        unfinished = Path(f"{name}.part")
        try:
            with unfinished.open("wb") as stream:
                write(stream)
            unfinished.replace(name)
        except OSError as error:
            raise CommandError(
                f"{name}: cannot be written: {error.strerror}", returncode=EXIT_USAGE
            ) from None
        finally:
            unfinished.unlink(missing_ok=True)
