"""A cutover as an operator drives it: its commands, and what a gateway waits for."""

from __future__ import annotations

import json
import threading
from io import StringIO
from typing import Any

from django.core.management import call_command
from django.db import connection

from placement.cutover import peer
from tests.placement.client import PlacementClient

TIMEOUT_SECONDS = 20.0
RATE = 5.0  # of each of four
LONG_AGO = "UPDATE placement_cutover SET began_at = began_at - interval '1 hour'"


def gateway_client() -> PlacementClient:
    return PlacementClient(version="1.36", X_Roles="admin,service")


def step(name: str, *arguments: str) -> dict[str, Any]:
    out = StringIO()
    call_command("placement_cutover", name, "--json", *arguments, stdout=out)
    return dict(json.loads(out.getvalue()))


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def wait_for_mirror() -> None:
    """Wait until this process mirrors nothing just now."""
    for thread in threading.enumerate():
        if thread.name == "mirror":
            thread.join()


def forget_peer() -> None:
    """End the connections of this process to the other Placement."""
    if peer._shared is not None:
        peer._shared[1].close()
        peer._shared = None
