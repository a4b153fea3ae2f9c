"""``manage.py host_agent``: the agent's commands where Headroom is installed."""

from __future__ import annotations

import argparse
import sys

from django.core.management.base import BaseCommand, CommandParser
from headroom_host_agent.cli import main


class Command(BaseCommand):
    """Hand the arguments to the agent, which needs nothing of Headroom."""

    help = "The host agent's commands, for example: host_agent discover --json"

    def add_arguments(self, parser: CommandParser) -> None:
        """Take everything as it is."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_: object, arguments: list[str], **__: object) -> None:
        """Run the command and end with its exit code."""
        code = main(arguments, program="manage.py host_agent")
        if code:
            sys.exit(code)
