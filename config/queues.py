"""The queues that workers take tasks from; each job says in which it waits (``core.jobs``).

What is quick never waits behind what takes an hour. Workers take some of the queues or all
(docs/operations.md, "Queues and workers").
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

SOON: Final = "soon"
STEADY: Final = "steady"
LONG: Final = "long"
QUEUES: Final = (SOON, STEADY, LONG)


def broker_url(redis_url: str) -> str:
    """Return ``REDIS_URL`` as Celery spells it, which names sockets and their databases its way."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    query = {"virtual_host" if key == "db" else key: text for key, text in parse_qsl(parts.query)}
    return f"redis+socket://{parts.path}" + (f"?{urlencode(query)}" if query else "")
