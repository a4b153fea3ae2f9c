"""``manage.py mirror``: keep Kubernetes as the database is (``./run serve bridge``)."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from bridge.mirror import Mirror
from journal.exporter import start_exporter


class Command(BaseCommand):
    """Mirror until SIGTERM or SIGINT."""

    help = "Mirror rows into Kubernetes until stopped; several processes stand in for each other."

    def handle(self, *_: object, **__: Any) -> None:  # Any: Django's own signature
        """Mirror."""
        until = threading.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: until.set())
        start_exporter("bridge", port=settings.HEADROOM.bridge.metrics_port)
        Mirror().run(until)
