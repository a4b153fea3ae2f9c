"""``manage.py make_token``: make a static token and the entry by which it is known."""

from __future__ import annotations

import json
import secrets
import sys
from argparse import ArgumentParser
from hashlib import sha256
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from journal.conf import LEAST_TOKEN_CHARACTERS

RANDOM_BYTES = 32


class Command(BaseCommand):
    """Print a new token, once, and its entry for the file that HEADROOM_TOKENS_FILE names."""

    help = "Make a static token, and the entry of HEADROOM_TOKENS_FILE by which it is known."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("name", help="who holds it, as the audit trail names them")
        parser.add_argument("--role", action="append", default=[], help="may be repeated")
        parser.add_argument("--project-id", default="", help="project, for Placement's rules")
        parser.add_argument(
            "--existing", action="store_true", help="take the token from standard input"
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Make it, or read it, and print.

        Raises:
            CommandError: the token that was given is too short to be random.
        """
        is_new = not options["existing"]
        token = secrets.token_urlsafe(RANDOM_BYTES) if is_new else sys.stdin.readline().strip()
        if len(token) < LEAST_TOKEN_CHARACTERS:
            raise CommandError(f"a token has at least {LEAST_TOKEN_CHARACTERS} characters")
        entry = {
            "token_sha256": sha256(token.encode()).hexdigest(),
            "name": options["name"],
            "roles": options["role"],
            "project_id": options["project_id"],
        }
        if is_new:
            self.stdout.write(f"token: {token}")
        self.stdout.write(f"entry: {json.dumps(entry)}")
