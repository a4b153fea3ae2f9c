"""``manage.py placement_sync_names``: copy traits and classes of another Placement now."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from core.conf import headroom
from journal.errors import HeadroomError
from placement.cutover.state import refuse_while_moving
from placement.database import in_transaction
from placement.gateway.sync import sync_names


class Command(BaseCommand):
    """Copy the names of the Placement behind the gateway, as the task does every minute."""

    help = "Copy traits and resource classes of the Placement behind the gateway now."

    def handle(self, *_: object, **__: Any) -> None:  # Any: Django's own signature
        """Copy, and say how much changed.

        Raises:
            CommandError: there is no other Placement, it did not answer, or a cloud moves, whose
                names are copied already.
        """
        if not headroom().gateway.upstream_url:
            raise CommandError("HEADROOM_GATEWAY__UPSTREAM_URL is empty: there is no other one")
        try:
            in_transaction(lambda: refuse_while_moving("copying names"))
            done = sync_names()
        except HeadroomError as error:
            raise CommandError(error.message) from error
        for one in done:
            self.stdout.write(f"{one.kind}: {one.inserted} new, {one.deleted} deleted")
        failed = [one.kind for one in done if one.result != "ok"]
        if failed:
            raise CommandError(f"not copied: {', '.join(failed)}; the log says why")
