"""``manage.py listen``: turn Nova's notifications into hints (``./run serve listener``)."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from journal.errors import HeadroomError
from journal.exporter import start_exporter


class Command(BaseCommand):
    """Listen until SIGTERM or SIGINT."""

    help = "Listen to Nova's notifications, so that the feed looks at what changed at once."

    def handle(self, *_: object, **__: Any) -> None:  # Any: Django's own signature
        """Listen.

        Raises:
            CommandError: It is not said where to listen, or the packages are missing.
        """
        try:
            from hosts.listener import listen  # noqa: PLC0415 - an extra, see below
        except ModuleNotFoundError as error:
            raise CommandError(
                f"{error.name} is not installed: the listener needs the packages of "
                "requirements-listener.lock (docs/notifications.md)"
            ) from error
        until = threading.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: until.set())
        start_exporter("listener", port=settings.HEADROOM.listener.metrics_port)
        try:
            listen(until)
        except HeadroomError as error:
            raise CommandError(error.message) from error
