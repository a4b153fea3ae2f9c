"""One trace from a caller through the web server, its statements, the broker and the worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from config.celery_app import app
from config.launcher.processes import wait_until
from tests.e2e.processes import ADMIN, PATIENCE_SECONDS, WebServer, Worker
from tests.factories import make_group, make_host

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PATH = "/commitments/v1/projects/0b9f2b0c-9c1f-4a43-8b1c-7f6a0d0f3b11/quota"
BODY = {"resources": {"hw_version_hana_1_ram": {"quota": 3, "perAZ": {"az-a": {"quota": 3}}}}}
TASK = "commitments.reconcile_changed_quota"


@dataclass(frozen=True, slots=True)
class Seen:
    service: str
    name: str
    trace: str


class Collector(ThreadingHTTPServer):
    """Takes spans as OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: set[Seen] = set()
        self.bodies = b""

    def take(self, body: bytes) -> None:
        self.bodies += body
        for batch in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {fact.key: fact.value.string_value for fact in batch.resource.attributes}
            for scope in batch.scope_spans:
                for span in scope.spans:
                    self.seen.add(Seen(names["service.name"], span.name, span.trace_id.hex()))


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.take(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def test_one_trace_from_the_caller_to_the_task(tmp_path: Path) -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_host("h1", zone="az-a", memory_gib=64, vcpus=64)
    with ExitStack() as stack:
        collector = stack.enter_context(collecting())
        endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        overrides = {
            "HEADROOM_TRACING__ENDPOINT": endpoint,
            # So long that what is seen is what processes send when they end.
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
            "GRANIAN_WORKERS": "1",
        }
        worker = Worker(directory=tmp_path, overrides=overrides, queue=app.conf.task_default_queue)
        stack.callback(worker.forget)
        worker.start()
        web = WebServer(directory=tmp_path, overrides=overrides)
        stack.callback(web.end)
        web.start()
        answer = web.send(
            "PUT",
            PATH,
            BODY,
            headers={"Traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
        )
        assert answer.status < 300, answer.body
        log = tmp_path / "worker.log"
        assert wait_until(lambda: f"Task {TASK}" in log.read_text(), PATIENCE_SECONDS), worker.log()
        web.stop()
        worker.stop()
        expected = {
            Seen("headroom-web", "PUT /commitments/v1/projects/<project_id>/quota", TRACE),
            Seen("headroom-web", "INSERT", TRACE),
            Seen("headroom-worker", f"task {TASK}", TRACE),
            Seen("headroom-worker", "SELECT", TRACE),
        }
        assert expected <= collector.seen
        assert ADMIN.encode() not in collector.bodies
        lines = (tmp_path / "web.log").read_text().splitlines()
        (line,) = [line for line in lines if '"api_request"' in line]
        assert json.loads(line)["trace_id"] == TRACE
