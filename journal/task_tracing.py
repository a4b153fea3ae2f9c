"""Request ids across the broker (spec commitments, 18): headers out, log context in."""

from __future__ import annotations

from typing import Any

import structlog
from celery.signals import before_task_publish, task_postrun, task_prerun

from journal.tracing import current_global_request_id, current_request_id

GLOBAL_HEADER = "headroom_greq"
REQUEST_HEADER = "headroom_req"


def add_request_ids(headers: dict[str, Any] | None = None, **_: object) -> None:
    """Put the ids of the sender into the headers of a task message."""
    if headers is not None:
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
