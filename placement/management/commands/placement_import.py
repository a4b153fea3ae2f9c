"""``manage.py placement_import``: copy another Placement into ours (spec placement, 10.3, 13)."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import openstack
import orjson
from django.core.management.base import BaseCommand, CommandError
from keystoneauth1.adapter import Adapter as KeystoneAdapter
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token
from rich.table import Table

from journal.actors import command_actor
from journal.errors import HeadroomError
from journal.progress import printing_to, reading_bars
from placement.clients.reference_api import Adapter, read_api
from placement.clients.reference_database import read_database
from placement.cutover.state import refuse_while_moving
from placement.database import in_transaction
from placement.domain.transfer import Contents, CopyPlan
from placement.domain.transfer_lines import UnreadableExportError, contents_of_lines
from placement.services.transfer import import_contents, plan_import, refuse_problems

TOKEN_VARIABLE = "PLACEMENT_TOKEN"  # noqa: S105 - the name of a variable


class Command(BaseCommand):
    """Copy everything another Placement holds; safe to repeat, all or nothing."""

    help = (
        "Copy classes, traits, providers, inventories, aggregates and allocations of another "
        "Placement, keeping uuids; nested providers that exist here are matched by name. Nothing "
        "is removed. Repeating it writes what changed since."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the sources and options."""
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument("--from-url", metavar="URL", help="address of a Placement API")
        source.add_argument("--from-cloud", metavar="NAME", help="a cloud of clouds.yaml")
        source.add_argument(
            "--from-database",
            metavar="URL",
            help="postgresql://, sqlite:///FILE or mysql://, as the service's own setting",
        )
        source.add_argument(
            "--from-file", metavar="FILE", help="lines of JSON that placement_export wrote"
        )
        parser.add_argument(
            "--token", help=f"token for --from-url (default: {TOKEN_VARIABLE} of the environment)"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="report what would be written, write nothing"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Read, write, read again, print.

        Raises:
            CommandError: the source cannot be read or copied, does not agree afterwards, or a
                cloud moves.
        """
        try:
            in_transaction(lambda: refuse_while_moving("an import"))  # and again when it writes
            source = _read(options)
            if options["dry_run"]:
                plan = plan_import(source)
                refuse_problems(plan)
            else:
                plan = import_contents(
                    source,
                    actor=command_actor("placement_import"),
                    request_id=f"req-{uuid4()}",
                )
                _verify(source)
        except HeadroomError as error:
            raise CommandError(f"{error.message}; nothing was imported") from error
        if options["json"]:
            content = {"dry_run": options["dry_run"], "written": plan.counts}
            self.stdout.write(orjson.dumps(content).decode())
        else:
            self._print(plan, is_dry_run=options["dry_run"])

    def _print(self, plan: CopyPlan, *, is_dry_run: bool) -> None:
        console = printing_to(self.stdout)
        title = "Import (dry run)" if is_dry_run else "Import"
        table = Table(title=title, title_justify="left")
        table.add_column("what")
        table.add_column("count", justify="right")
        for name, count in plan.counts.items():
            table.add_row(name, f"{count:,}")
        console.print(table)
        if plan.is_empty:
            console.print("everything is here already")


def _read(options: dict[str, Any]) -> Contents:  # Any: Django's options
    if options["from_database"]:
        return read_database(options["from_database"])
    if options["from_file"]:
        return _read_file(options["from_file"])
    with reading_bars() as seen:
        return read_api(_adapter(options), seen)


def _read_file(name: str) -> Contents:
    """Return what an export holds.

    Raises:
        UnreadableExportError: the file cannot be read, or is no export.
    """
    try:
        with Path(name).open("rb") as lines:
            return contents_of_lines(lines)
    except OSError as error:
        raise UnreadableExportError(str(error)) from error


def _adapter(options: dict[str, Any]) -> Adapter:  # Any: Django's options
    if options["from_cloud"]:
        return cast("Adapter", openstack.connect(cloud=options["from_cloud"]).placement)
    url = options["from_url"].rstrip("/")
    token = options["token"] or os.environ.get(TOKEN_VARIABLE, "")
    session = Session(auth=Token(url, token))
    return cast("Adapter", KeystoneAdapter(session=session, endpoint_override=url))


def _verify(source: Contents) -> None:
    """Compare what is here now with what was read.

    Raises:
        CommandError: something differs; another writer may have been quicker.
    """
    left = plan_import(source)
    if not left.is_empty:
        differs = ", ".join(f"{count} {name}" for name, count in left.counts.items() if count)
        raise CommandError(f"after the import these still differ: {differs}; repeat it")
