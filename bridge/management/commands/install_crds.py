"""``manage.py install_crds``: make the kinds of the mirror known to the clusters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from bridge.clusters import cluster_names, naming, open_client
from bridge.kube.client import ClusterClient
from bridge.kube.definitions import (
    Definition,
    await_served,
    difference,
    guard_definitions,
    install,
    load_definitions,
)
from journal.errors import HeadroomError

PATIENCE_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.2


class Command(BaseCommand):
    """Show what would change, ask, apply."""

    help = "Install the custom resource definitions: shows the difference and asks first."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the cluster and whether to ask."""
        parser.add_argument("--cluster", choices=cluster_names(), help="only this one")
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--yes", action="store_true", help="apply without asking")
        group.add_argument("--dry-run", action="store_true", help="only show the difference")
        parser.add_argument(
            "--only-user",
            metavar="USER",
            help="also install an admission policy that lets only this user of the cluster write "
            "objects of our kinds, such as system:serviceaccount:headroom:bridge",
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Install.

        Raises:
            CommandError: a cluster does not take them.
        """
        for name in [options["cluster"]] if options["cluster"] else cluster_names():
            try:
                self._install(name, options)
            except HeadroomError as error:
                raise CommandError(f"cluster {name}: {error.message}") from error

    def _install(self, name: str, options: dict[str, Any]) -> None:  # Any: what was typed
        client = open_client(name)
        try:
            kinds = load_definitions(naming())
            changed = self._changed(client, name, kinds)
            if options["only_user"]:
                guards = guard_definitions(naming(), user=options["only_user"])
                changed += self._changed(client, name, guards)
            if not changed or options["dry_run"]:
                return
            if not options["yes"] and input(f"apply to cluster {name}? [y/N] ").lower() != "y":
                raise CommandError("nothing was applied")
            for definition in changed:
                install(client, definition)
                self.stdout.write(f"applied {definition.title}")
            if not await_served(client, kinds, wait=_wait):
                raise CommandError(f"cluster {name} does not serve the new kinds yet")
        finally:
            client.close()

    def _changed(
        self, client: ClusterClient, name: str, definitions: list[Definition]
    ) -> list[Definition]:
        changed = []
        for definition in definitions:
            if text := difference(client, definition):
                changed.append(definition)
                self.stdout.write(text)
            else:
                self.stdout.write(f"{definition.title} in cluster {name}: nothing changes")
        return changed


def _wait(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True
