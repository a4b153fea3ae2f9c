"""``manage.py set_up_demo_webhooks``: the endpoint that ``./run demo`` tells of changes."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from journal.actors import command_actor
from webhooks.addresses import AddressForbidden
from webhooks.models import Endpoint
from webhooks.services import save_endpoint

NAME: Final = "demo"


class Command(BaseCommand):
    """Make the demo's endpoint, or change where it is; what an operator chose of it stays."""

    help = "Have the receiver of ./run demo told of changes, at the given address."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--url", required=True, help="where the receiver listens")
        parser.add_argument("--secret-name", default=NAME, help="file with the secret")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Save the endpoint, unless it is so already.

        Raises:
            CommandError: deliveries do not go to such an address.
        """
        fields: dict[str, Any] = {"url": options["url"], "secret_name": options["secret_name"]}
        known = Endpoint.objects.filter(name=NAME).first()
        if known is not None and all(getattr(known, key) == fields[key] for key in fields):
            return
        fields["kinds"] = [] if known is None else known.kinds
        fields["is_paused"] = known is not None and known.is_paused
        try:
            save_endpoint(
                name=NAME,
                fields=fields,
                actor=command_actor("set_up_demo_webhooks"),
                request_id=str(uuid.uuid4()),
            )
        except AddressForbidden as error:
            raise CommandError(error.message) from error
