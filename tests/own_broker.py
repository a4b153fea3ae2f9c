"""Each process of a test run has a database of the broker, as it has one of PostgreSQL.

Loaded before Django's settings are. A worker that a test starts takes what waits in the queues; it
would also take, and first do, what tests in another process ask for at that moment.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

BROKER_DATABASES = 16
"""What Redis has unless told otherwise."""


def own_database(redis_url: str, process: str) -> str:
    """Return the address with the number of the database for ``gw0``, ``gw1`` and so on."""
    number = 1 + int(process.removeprefix("gw")) % (BROKER_DATABASES - 1)
    parts = urlsplit(redis_url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}?db={number}"
    return parts._replace(path=f"/{number}").geturl()


if (given := os.environ.get("REDIS_URL")) and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
    os.environ["REDIS_URL"] = own_database(given, worker)
