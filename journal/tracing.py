"""Request ids from the edge to the last log line (spec commitments, 18).

``global request id`` names a whole operation, ``request id`` the item in work. Both live in
context variables, travel to tasks in message headers and appear in every log line.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from celery.signals import before_task_publish, task_postrun, task_prerun

GLOBAL_HEADER = "headroom_greq"
REQUEST_HEADER = "headroom_req"
SENT_HEADER = "headroom_sent"


def add_request_ids(headers: dict[str, Any] | None = None, **_: object) -> None:
    """Put the ids of the sender, and when it sent, into the headers of a task message."""
    if headers is not None:
        headers[SENT_HEADER] = time.time()
        headers[GLOBAL_HEADER] = current_global_request_id()
        headers[REQUEST_HEADER] = current_request_id()


def bind_request_ids(task: Any = None, task_id: str = "", **_: object) -> None:  # Any: Celery task
    """Bind the ids of a task message to the logs of its run; a task from beat has none."""
    request = getattr(task, "request", None)
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(
        greq=getattr(request, GLOBAL_HEADER, "") or "",
        req=getattr(request, REQUEST_HEADER, "") or "",
        task=getattr(task, "name", ""),
        task_run=task_id,
    )


def clear_request_ids(**_: object) -> None:
    """Forget the ids of the task that ended."""
    structlog.contextvars.clear_contextvars()


def connect_task_tracing() -> None:
    """Follow every task of this process; safe to call twice."""
    before_task_publish.connect(add_request_ids, dispatch_uid="headroom.add_request_ids")
    task_prerun.connect(bind_request_ids, dispatch_uid="headroom.bind_request_ids")
    task_postrun.connect(clear_request_ids, dispatch_uid="headroom.clear_request_ids")


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
