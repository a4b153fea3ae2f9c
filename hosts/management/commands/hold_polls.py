"""``manage.py hold_polls``: hold polls of agents (``./run serve agents``)."""

from __future__ import annotations

import asyncio
import signal
from argparse import ArgumentParser
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand

from journal.collector import collect_rarely
from journal.exporter import start_exporter

#: How long polls may take to be answered at the end; they are told at once.
STOP_SECONDS: Final = 10.0


class Command(BaseCommand):
    """Hold polls until SIGTERM or SIGINT, then answer them."""

    help = "Hold polls of agents on hosts until there is something for them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add where to listen."""
        parser.add_argument("--host", default=settings.HEADROOM.listen_address)
        parser.add_argument("--port", type=int, default=settings.HEADROOM.agents.poll_port)

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Serve."""
        start_exporter("agents", port=settings.HEADROOM.agents.metrics_port)
        asyncio.run(_serve(options["host"], options["port"]))


async def _serve(host: str, port: int) -> None:
    from granian.constants import HTTPModes, Interfaces  # noqa: PLC0415 - only for who serves
    from granian.server.embed import Server  # noqa: PLC0415 - likewise

    from hosts.agents.poll_app import PollApp  # noqa: PLC0415 - likewise

    chosen = settings.HEADROOM.agents
    app = PollApp(most=chosen.poll_most_waiters, threads=chosen.poll_threads)
    collect_rarely()
    server = Server(
        app,
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=4096,
        backpressure=2 * chosen.poll_most_waiters + 100,
        log_enabled=False,
    )
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop.set)
    serving = asyncio.create_task(server.serve())
    stopping = asyncio.create_task(asked_to_stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        await app.stop(STOP_SECONDS)
        server.stop()
    stopping.cancel()
    await serving
