"""``manage.py placement_sync_names``: copy traits and classes of another Placement now."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from core.conf import headroom
from placement.gateway.asking import NoAccountError
from placement.gateway.sync import sync_names


class Command(BaseCommand):
    """Copy the names of the Placement behind the gateway, as the task does every minute."""

    help = "Copy traits and resource classes of the Placement behind the gateway now."

    def handle(self, *_: object, **__: Any) -> None:  # Any: Django's own signature
        """Copy, and say how much changed.

        Raises:
            CommandError: there is no other Placement, or it did not answer.
        """
        if not headroom().gateway.upstream_url:
            raise CommandError("HEADROOM_GATEWAY__UPSTREAM_URL is empty: there is no other one")
        try:
            done = sync_names()
        except NoAccountError as error:
            raise CommandError(error.message) from error
        for one in done:
            self.stdout.write(f"{one.kind}: {one.inserted} new, {one.deleted} deleted")
        failed = [one.kind for one in done if one.result != "ok"]
        if failed:
            raise CommandError(f"not copied: {', '.join(failed)}; the log says why")
