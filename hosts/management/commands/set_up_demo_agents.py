"""``manage.py set_up_demo_agents``: enrol the agents of the demo (``./run demo``)."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from headroom_host_agent.server.client import RefusedError, ServerError

from hosts.demo.agents import enrolled_hosts


class Command(BaseCommand):
    """Print the root of each host whose agent is to run, one on a line."""

    help = "Enrol agents of a few hosts of the demo; ./run demo runs them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add where the demo is served, and where the hosts are kept."""
        parser.add_argument("--url", required=True)
        parser.add_argument("--places", type=Path, required=True)

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Enrol.

        Raises:
            CommandError: The demo does not take them.
        """
        try:
            for root in enrolled_hosts(options["places"], options["url"]):
                self.stdout.write(str(root))
        except (RefusedError, ServerError, OSError) as error:
            raise CommandError(str(error)) from error
