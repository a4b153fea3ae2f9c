"""Traces: what spans say, what they keep to themselves, and that they cost nothing when off."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from celery import Celery
from celery.app.trace import build_tracer
from celery.signals import before_task_publish, task_postrun, task_prerun
from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection
from django.db.backends.signals import connection_created
from django.test import RequestFactory
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from config.launcher.places import this_checkout
from journal import spans as tracing
from journal.conf import TracingSettings
from placement.wsgi import placement_first
from tests.e2e.processes import process_environment

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
KEPT, DROPPED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"
SECRET = "s3cr3t-of-a-login"  # noqa: S105 - of nobody
ENDPOINT = {"HEADROOM_TRACING__ENDPOINT": "http://127.0.0.1:1/v1/traces"}


@pytest.fixture(scope="module")
def exporter() -> Iterator[InMemorySpanExporter]:
    kept = InMemorySpanExporter()
    tracing.start_tracing("web", TracingSettings(), SimpleSpanProcessor(kept))
    yield kept
    for signal in (connection_created, before_task_publish, task_prerun, task_postrun):
        signal.disconnect(dispatch_uid="headroom.spans")


@pytest.fixture
def spans(exporter: InMemorySpanExporter, db: None) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    connection.ensure_connection()
    connection_created.send(sender=type(connection), connection=connection)
    yield exporter
    connection.execute_wrappers.remove(tracing._run_statement)


def get(path: str, application: Any = None, **headers: str) -> int:
    """Send a request to the application as the web server has it; return the status."""
    told: list[str] = []
    environ = RequestFactory().get(path, **headers).environ  # type: ignore[arg-type] # headers
    served = tracing.traced(application or placement_first(WSGIHandler()))
    b"".join(served(environ, lambda status, _headers, *_: told.append(status)))
    return int(told[0][:3])


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def text_of(spans: InMemorySpanExporter) -> str:
    return "".join(span.to_json() for span in spans.get_finished_spans())


def statements(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.kind == trace.SpanKind.CLIENT]


def requests(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.kind == trace.SpanKind.SERVER]


def test_request_continues_the_trace_of_its_caller(spans: InMemorySpanExporter) -> None:
    status = get("/commitments/v1/info", HTTP_TRACEPARENT=KEPT, HTTP_X_REQUEST_ID="req-77")
    (span,) = requests(spans)
    assert span.parent is not None
    assert trace.format_trace_id(span.parent.trace_id) == TRACE
    assert trace.format_span_id(span.parent.span_id) == CALLER
    assert span.name == "GET /commitments/v1/info"
    assert facts(span) == {
        "http.request.method": "GET",
        "url.path": "/commitments/v1/info",
        "http.route": "/commitments/v1/info",
        "http.response.status_code": status,
        "headroom.request_id": "req-77",
    }
    assert span.resource.attributes["service.name"] == "headroom-web"


def test_caller_who_does_not_sample_is_obeyed(spans: InMemorySpanExporter) -> None:
    get("/statusz", HTTP_TRACEPARENT=DROPPED)
    assert spans.get_finished_spans() == ()


@pytest.mark.parametrize("broken", ["", "00-zz-1-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_broken_context_starts_a_new_trace(spans: InMemorySpanExporter, broken: str) -> None:
    get("/commitments/v1/info", HTTP_TRACEPARENT=broken)
    (span,) = requests(spans)
    assert span.parent is None


def test_paths_that_nobody_serves_have_one_name(spans: InMemorySpanExporter) -> None:
    assert get("/no/such/path-1") == 404
    assert get("/no/such/path-2") == 404
    assert {span.name for span in requests(spans)} == {"GET"}


def test_no_query_header_or_parameter_is_in_a_span(spans: InMemorySpanExporter) -> None:
    def application(environ: Any, start_response: Any) -> list[bytes]:
        User.objects.filter(username=SECRET).exists()
        return placement_first(WSGIHandler())(environ, start_response)  # type: ignore[no-any-return]

    get(
        f"/placement/resource_providers?code={SECRET}",
        application,
        HTTP_X_AUTH_TOKEN=SECRET,
        HTTP_AUTHORIZATION=f"Bearer {SECRET}",
        HTTP_COOKIE=f"sessionid={SECRET}",
        HTTP_BAGGAGE=f"token={SECRET}",
    )
    (request,) = requests(spans)
    assert request.name == "GET /placement/resource_providers"
    assert facts(request)["headroom.request_id"].startswith("req-")
    first = statements(spans)[0]
    assert first.name == "SELECT"
    assert "auth_user" in facts(first)["db.query.text"]
    assert first.parent is not None
    assert first.parent.span_id == request.context.span_id
    assert SECRET not in text_of(spans)


def test_statements_of_placement_are_spans_too(spans: InMemorySpanExporter, settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"auth": "noauth"})
    assert get("/placement/resource_providers", HTTP_X_AUTH_TOKEN="admin") == 200
    assert "FROM placement_provider" in "".join(
        facts(span)["db.query.text"] for span in statements(spans)
    )


def test_statements_outside_requests_and_tasks_leave_no_span(spans: InMemorySpanExporter) -> None:
    assert User.objects.count() == 0
    assert spans.get_finished_spans() == ()


def test_failure_tells_its_class_and_not_its_text(spans: InMemorySpanExporter) -> None:
    def application(_environ: Any, _start: Any) -> list[bytes]:
        raise ValueError(SECRET)

    with pytest.raises(ValueError, match=SECRET):
        get("/statusz", application)
    (span,) = requests(spans)
    assert facts(span)["error.type"] == "ValueError"
    assert span.status.status_code == trace.StatusCode.ERROR
    assert SECRET not in text_of(spans)


def test_log_lines_of_a_request_name_its_trace(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[dict[str, Any]] = []

    def application(_environ: Any, start_response: Any) -> list[bytes]:
        lines.append(tracing.add_trace_id(None, "info", {"event": "inside"}))
        start_response("204 No Content", [])
        return []

    get("/statusz", application, HTTP_TRACEPARENT=KEPT)
    lines.append(tracing.add_trace_id(None, "info", {"event": "outside"}))
    assert lines == [{"event": "inside", "trace_id": TRACE}, {"event": "outside"}]


def ran(body: Any, headers: dict[str, Any]) -> None:
    """Run a task as a worker does when such a message came."""
    app = Celery("spans", set_as_current=False)
    task = app.task(name="tests.body")(body)
    request = {"id": "run-1", "args": (), "kwargs": {}, "is_eager": True, **headers}
    build_tracer(task.name, task, app=app, eager=True)("run-1", [], {}, request)


def test_task_continues_the_trace_of_the_request_that_sent_it(spans: InMemorySpanExporter) -> None:
    headers: dict[str, Any] = {}

    def application(_environ: Any, start_response: Any) -> list[bytes]:
        structlog.contextvars.bind_contextvars(greq="committed-resource-9")
        before_task_publish.send(sender="tests.body", headers=headers)
        start_response("204 No Content", [])
        return []

    get("/statusz", application, HTTP_TRACEPARENT=KEPT)
    ran(User.objects.count, headers)
    statement, task = spans.get_finished_spans()[1:]
    assert task.name == "task tests.body"
    assert task.parent is not None
    assert task.parent.span_id == requests(spans)[0].context.span_id
    assert facts(task) == {
        "messaging.system": "celery",
        "messaging.message.id": "run-1",
        "headroom.request_id": "committed-resource-9",
    }
    assert statement.parent is not None
    assert statement.parent.span_id == task.context.span_id
    assert not trace.get_current_span().get_span_context().is_valid


def test_task_of_beat_starts_a_trace(spans: InMemorySpanExporter) -> None:
    headers: dict[str, Any] = {}
    before_task_publish.send(sender="tests.body", headers=headers)
    assert "traceparent" not in headers
    ran(User.objects.none, headers)
    (task,) = spans.get_finished_spans()
    assert task.parent is None


def test_task_that_fails_says_so_and_not_why(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    def body() -> None:
        raise ValueError(SECRET)

    with caplog.at_level(logging.CRITICAL):
        ran(body, {})
    (task,) = spans.get_finished_spans()
    assert task.status.status_code == trace.StatusCode.ERROR
    assert SECRET not in text_of(spans)
    assert not trace.get_current_span().get_span_context().is_valid


#: Hides the packages of the extra, as where they are not installed, and notes who asks for them.
WITHOUT_EXTRA = """
import sys

class Hidden:
    asked = set()

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "opentelemetry":
            return None
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        self.asked.add(frame.f_globals["__name__"])
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
WEB_AND_WORKER = """
import json, config.wsgi, config.celery_app
from celery.signals import worker_init
worker_init.disconnect(config.celery_app.tell_metrics_of_worker)
worker_init.send(sender=None)
print(json.dumps(sorted(Hidden.asked)))
"""


def python(directory: Path, code: str, **overrides: str) -> subprocess.CompletedProcess[str]:
    environment = process_environment(directory, HEADROOM_PLACEMENT__WARM_UP="false", **overrides)
    return subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-c", code],
        cwd=this_checkout().root,
        env={**environment, "PYTHONPATH": os.fspath(this_checkout().root)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_switched_off_nothing_of_it_is_imported(tmp_path: Path) -> None:
    made = python(tmp_path, WITHOUT_EXTRA + WEB_AND_WORKER)
    assert made.returncode == 0, made.stderr
    asked = [name for name in json.loads(made.stdout) if not name.startswith("redis.")]
    assert asked == []  # redis takes it for metrics of its own, where it is there


def test_switched_on_without_the_extra_the_start_is_refused_in_one_line(tmp_path: Path) -> None:
    made = python(tmp_path, WITHOUT_EXTRA + "import config.wsgi", **ENDPOINT)
    assert made.returncode == 1
    assert made.stderr == (
        "headroom: configuration error: HEADROOM_TRACING__ENDPOINT: needs the packages of "
        "requirements-tracing.lock, opentelemetry is not installed (docs/operations.md, Traces)\n"
    )
