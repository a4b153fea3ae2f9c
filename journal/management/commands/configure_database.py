"""``manage.py configure_database``: the deadlines of requests, as defaults of the database user."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from journal.deadlines import differing_defaults, set_user_defaults


class Command(BaseCommand):
    """Set them, or say which differ."""

    help = (
        "Sets HEADROOM_DEADLINES__... as defaults of the database user in this database "
        "(ALTER ROLE ... IN DATABASE ... SET). migrate does so for its own user."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the user, and whether to look only."""
        parser.add_argument("--user", default="", help="the user of the web processes, if another")
        parser.add_argument("--check", action="store_true", help="fail if any differs; set nothing")

    def handle(self, *_: Any, **options: Any) -> None:  # Any: of Django
        """Set or compare them.

        Raises:
            CommandError: they differ, or may not be set.
        """
        user = options["user"]
        if not options["check"]:
            try:
                set_user_defaults(user)
            except Error as error:
                raise CommandError(str(error).strip()) from error
        differing = differing_defaults(user)
        for name, (found, wanted) in differing.items():
            self.stdout.write(f"{name}: {found or 'not set'}, configured is {wanted}")
        if differing:
            raise CommandError("run ./run manage configure_database as this user or as an owner")
        self.stdout.write("the database user has the deadlines of requests; new sessions use them")
