"""``manage.py host_agent``: the agent's commands where Headroom is installed, and our own."""

from __future__ import annotations

import argparse
import sys

from django.core.management.base import BaseCommand, CommandError, CommandParser
from headroom_host_agent.cli import main

from hosts.agents.operating import COMMANDS, operate
from journal.errors import HeadroomError

PROGRAM = "manage.py host_agent"


class Command(BaseCommand):
    """Hand the arguments to the agent, which needs nothing of Headroom; but for tokens and keys."""

    help = "The host agent's commands, for example: host_agent discover --json; tokens and keys"

    def add_arguments(self, parser: CommandParser) -> None:
        """Take everything as it is."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_: object, arguments: list[str], **__: object) -> None:
        """Run the command and end with its exit code.

        Raises:
            CommandError: What is asked of tokens or keys is out of bounds.
        """
        if arguments[:1] and arguments[0] in COMMANDS:
            try:
                operate(arguments, program=PROGRAM, out=self.stdout)
            except HeadroomError as error:
                raise CommandError(error.message) from error
            return
        code = main(arguments, program=PROGRAM)
        if code:
            sys.exit(code)
