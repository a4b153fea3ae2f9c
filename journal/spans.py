"""Traces: a span of OpenTelemetry for each request, each task, and each statement inside them.

Imported only where ``HEADROOM_TRACING__ENDPOINT`` asks for it, since its packages are an extra. The
instrumentations of OpenTelemetry are not used: those of Django, Celery and psycopg take queries of
URLs and texts of exceptions along, which hold codes of logins and values of rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from multiprocessing.util import Finalize
from typing import Any

from celery.signals import (
    before_task_publish,
    task_postrun,
    task_prerun,
    worker_process_shutdown,
)
from django.db.backends.signals import connection_created
from django.urls import Resolver404, resolve
from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from journal.conf import TracingSettings
from journal.tracing import GLOBAL_HEADER

Application = Callable[..., Any]  # Any: as WSGI has it
REQUEST_ID = "headroom.request_id"
#: Characters of a path or statement that a span shows at most.
MOST_TEXT = 2000
#: Time that a collector has to take a batch; longer, and it is lost.
EXPORT_SECONDS = 2.0
_FIRST_FAILURE = 500
_GROUP = re.compile(r"\(\?P<(\w+)>[^()]*\)")
_FIELDS = ("traceparent", "tracestate")
_PROPAGATOR = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("headroom")


def start_tracing(
    role: str, settings: TracingSettings, processor: SpanProcessor | None = None
) -> None:
    """Make spans in this process from now on, and in those that it forks.

    Args:
        role: ``web`` or ``worker``, behind the name of the service.
        settings: Where spans go, and how many are kept.
        processor: What takes them; a batch on its way to the collector when left out.
    """
    provider = TracerProvider(
        resource=Resource.create({SERVICE_NAME: f"{settings.service_name}-{role}"}),
        sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
    )
    exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=EXPORT_SECONDS)
    provider.add_span_processor(processor or BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    connection_created.connect(_watch_connection, dispatch_uid="headroom.spans")
    before_task_publish.connect(_send_context, dispatch_uid="headroom.spans")
    task_prerun.connect(_begin_task, dispatch_uid="headroom.spans")
    task_postrun.connect(_end_task, dispatch_uid="headroom.spans")
    # The exit of forked processes skips what atexit knows, and each has its own way of ending.
    worker_process_shutdown.connect(_send_rest, dispatch_uid="headroom.spans")
    Finalize(None, _send_rest, exitpriority=0)


def add_trace_id(_logger: object, _name: str, line: MutableMapping[str, Any]) -> Any:  # Any: values
    """Name the trace in a log line."""
    found = trace.get_current_span().get_span_context()
    if found.is_valid:
        line["trace_id"] = trace.format_trace_id(found.trace_id)
    return line


def traced(application: Application) -> Application:
    """Return a WSGI application with a span around each request, in the trace of its caller."""

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        carrier = {name: environ.get(f"HTTP_{name.upper()}", "") for name in _FIELDS}
        method, path = environ.get("REQUEST_METHOD", ""), environ.get("PATH_INFO", "")
        route = _route(path)
        facts = {"http.request.method": method, "url.path": path[:MOST_TEXT], "http.route": route}

        def answer(status: str, headers: list[tuple[str, str]], *more: object) -> Any:
            code = int(status[:3])
            span.set_attribute("http.response.status_code", code)
            given = {name.lower(): value for name, value in headers}
            span.set_attribute(REQUEST_ID, given.get("x-openstack-request-id", ""))
            if code >= _FIRST_FAILURE:
                span.set_status(trace.StatusCode.ERROR)
            return start_response(status, headers, *more)

        with _span(
            f"{method} {route}".rstrip(),
            facts,
            kind=trace.SpanKind.SERVER,
            context=_PROPAGATOR.extract(carrier, context.Context()),
        ) as span:
            return application(environ, answer)

    return serve


def _route(path: str) -> str:
    """Return the pattern of a path, so that spans of one kind have one name."""
    try:
        route = resolve(path).route
    except Resolver404:
        return ""
    return "/" + _GROUP.sub(r"<\1>", route).replace("^", "").removesuffix("$").removesuffix("\\Z")


@contextmanager
def _span(name: str, facts: dict[str, str], **how: Any) -> Iterator[trace.Span]:  # Any: the API's
    """Open a span that tells the class of an exception; its text may hold values of rows."""
    with _tracer.start_as_current_span(
        name, attributes=facts, record_exception=False, set_status_on_exception=False, **how
    ) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(trace.StatusCode.ERROR)
            raise


def _watch_connection(connection: Any, **_: object) -> None:  # Any: Django's wrapper
    if _run_statement not in connection.execute_wrappers:
        connection.execute_wrappers.append(_run_statement)


def _run_statement(execute: Callable[..., Any], sql: Any, *others: Any) -> Any:  # Any: Django's
    """Run a statement in a span with its text; its parameters stay out."""
    if not trace.get_current_span().is_recording():
        return execute(sql, *others)
    text = sql if isinstance(sql, str) else ""  # composed by the driver: values are in it
    facts = {"db.system.name": "postgresql", "db.query.text": text[:MOST_TEXT]}
    with _span(_verb(text), facts, kind=trace.SpanKind.CLIENT):
        return execute(sql, *others)


def _verb(sql: str) -> str:
    return next(iter(sql[:MOST_TEXT].split(maxsplit=1)), "SQL").upper()[:20]


def _send_context(headers: dict[str, Any] | None = None, **_: object) -> None:
    if headers is not None:
        _PROPAGATOR.inject(headers)


def _begin_task(task: Any, task_id: str, **_: object) -> None:  # Any: Celery's
    carrier = {name: getattr(task.request, name, None) or "" for name in _FIELDS}
    span = _tracer.start_span(
        f"task {task.name}",
        context=_PROPAGATOR.extract(carrier, context.Context()),
        kind=trace.SpanKind.CONSUMER,
        attributes={
            "messaging.system": "celery",
            "messaging.message.id": task_id,
            REQUEST_ID: getattr(task.request, GLOBAL_HEADER, None) or "",
        },
    )
    task.request.headroom_span = span, context.attach(trace.set_span_in_context(span))


def _end_task(task: Any, state: str | None = None, **_: object) -> None:  # Any: Celery's
    span, token = task.request.headroom_span
    if state == "FAILURE":
        span.set_status(trace.StatusCode.ERROR)
    span.end()
    context.detach(token)


def _send_rest(**_: object) -> None:
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()
