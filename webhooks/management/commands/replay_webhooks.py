"""Tell an endpoint again what happened since a moment."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.dateparse import parse_datetime

from journal.actors import Actor
from webhooks.models import Endpoint
from webhooks.services import replay_endpoint


class Command(BaseCommand):
    """Replay."""

    help = "Deliver again what happened since a moment to an endpoint, as far as it is kept."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the endpoint and the moment."""
        parser.add_argument("endpoint", help="its name")
        parser.add_argument("--since", required=True, help="such as 2026-11-23T12:00:00Z")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Replay, and say how many deliveries wait for it."""
        try:
            since = parse_datetime(options["since"])
        except ValueError:
            since = None
        if since is None or since.tzinfo is None:
            raise CommandError("--since: must be a moment with its zone: 2026-11-23T12:00:00Z")
        endpoint = Endpoint.objects.filter(name=options["endpoint"]).first()
        if endpoint is None:
            raise CommandError(f"no endpoint {options['endpoint']}")
        count = replay_endpoint(
            endpoint=endpoint,
            since=since,
            actor=Actor(name="manage.py replay_webhooks"),
            request_id=f"req-{uuid4()}",
        )
        self.stdout.write(f"{count} deliveries are made again")
