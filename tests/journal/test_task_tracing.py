from __future__ import annotations

from types import SimpleNamespace

import structlog
from structlog.contextvars import bound_contextvars

from journal.tracing import (
    GLOBAL_HEADER,
    REQUEST_HEADER,
    add_request_ids,
    bind_request_ids,
    clear_request_ids,
    current_global_request_id,
    with_global_request_id,
)


def test_ids_travel_from_sender_to_task_and_end_with_it() -> None:
    headers: dict[str, object] = {}
    with with_global_request_id("committed-resource-1"), bound_contextvars(req="slot-7"):
        add_request_ids(headers=headers)
    task = SimpleNamespace(name="commitments.dispatch_due", request=SimpleNamespace(**headers))
    bind_request_ids(task=task, task_id="run-1")
    assert structlog.contextvars.get_contextvars() == {
        "greq": "committed-resource-1",
        "req": "slot-7",
        "task": "commitments.dispatch_due",
        "task_run": "run-1",
    }
    clear_request_ids()
    assert current_global_request_id() == ""


def test_task_of_beat_has_no_ids() -> None:
    headers: dict[str, object] = {}
    add_request_ids(headers=headers)
    assert {GLOBAL_HEADER: "", REQUEST_HEADER: ""}.items() <= headers.items()
    add_request_ids()
    bind_request_ids(task=SimpleNamespace(name="journal.beat", request=SimpleNamespace()))
    assert structlog.contextvars.get_contextvars()["task"] == "journal.beat"
    clear_request_ids()
