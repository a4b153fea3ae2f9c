"""Request ids from the edge to the last log line (spec commitments, 18).

``global request id`` names a whole operation, ``request id`` the item in work. Both live in
context variables, travel to tasks in message headers and appear in every log line.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}")
CORRELATION_PREFIX = "committed-resource-"


def accepted_request_id(candidate: str | None) -> str:
    """Return the caller's request id, or a fresh UUIDv4 when it is absent or unsafe to log."""
    if candidate is not None and REQUEST_ID_PATTERN.fullmatch(candidate):
        return candidate
    return str(uuid.uuid4())


def correlation_id(request_id: str) -> str:
    """Return the id under which an API request is known in rows and logs (spec liquid, 2.2)."""
    return f"{CORRELATION_PREFIX}{request_id}"


@contextmanager
def with_global_request_id(global_request_id: str) -> Iterator[str]:
    """Bind the id of the whole operation to every log line inside."""
    with structlog.contextvars.bound_contextvars(greq=global_request_id):
        yield global_request_id


@contextmanager
def with_new_global_request_id() -> Iterator[str]:
    """Bind a fresh operation id; see :func:`with_global_request_id`."""
    with with_global_request_id(correlation_id(str(uuid.uuid4()))) as global_request_id:
        yield global_request_id


def current_global_request_id() -> str:
    """Return the bound operation id, or the empty string."""
    return str(structlog.contextvars.get_contextvars().get("greq", ""))


def current_request_id() -> str:
    """Return the bound item id, or the empty string."""
    return str(structlog.contextvars.get_contextvars().get("req", ""))
