"""The small server by which workers and beat tell their metrics."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from config.launcher.demo import choose_port
from journal import exporter

ADDRESS = "127.0.0.1"
SECRET = "metrics-secret"  # noqa: S105 - made up here


@pytest.fixture(autouse=True)
def no_token(settings: Any) -> None:
    give_token(settings, None)


def give_token(settings: Any, token: SecretStr | None) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"metrics_token": token})


@pytest.fixture
def server() -> Iterator[exporter.Exporter]:
    started = exporter.start_exporter("worker", port=choose_port(0))
    assert started is not None
    yield started
    started.shutdown()
    exporter.close_inherited_exporter()


def ask(
    server: exporter.Exporter, path: str = "/metrics", *, authorization: str = ""
) -> tuple[int, str]:
    headers = {"Authorization": authorization} if authorization else {}
    link = http.client.HTTPConnection(ADDRESS, server.server_port, timeout=30)
    try:
        link.request("GET", path, headers=headers)
        answer = link.getresponse()
        return answer.status, answer.read().decode()
    finally:
        link.close()


def test_it_tells_its_role_and_counters_and_no_fact_of_the_database(
    server: exporter.Exporter,
) -> None:
    _, page = ask(server)
    assert 'cortex_role{role="worker"} 1.0' in page
    assert "cortex_quota_reconcile_total" in page
    assert "cortex_committed_resource_capacity_ready" not in page


@pytest.mark.parametrize(
    ("authorization", "status"),
    [("", 401), ("Bearer wrong", 401), (SECRET, 401), (f"Bearer {SECRET}", 200)],
)
def test_it_asks_for_the_token_if_there_is_one(
    server: exporter.Exporter, settings: Any, authorization: str, status: int
) -> None:
    give_token(settings, SecretStr(SECRET))
    answered, page = ask(server, authorization=authorization)
    assert answered == status
    assert ("cortex" in page) == (status == 200)


def test_it_does_not_open_because_the_last_token_was_taken_out(
    server: exporter.Exporter, settings: Any, tmp_path: Path
) -> None:
    path = tmp_path / "tokens.json"
    digest = sha256(SECRET.encode()).hexdigest()
    path.write_text(json.dumps([{"token_sha256": digest, "name": "p", "roles": ["metrics"]}]))
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"tokens_file": path})
    assert ask(server, authorization=f"Bearer {SECRET}")[0] == 200
    assert ask(server)[0] == 401
    path.write_text("[]")
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"tokens_file": path.with_suffix("")})
    path.rename(path.with_suffix(""))  # another name is read at once
    assert ask(server, authorization=f"Bearer {SECRET}")[0] == 401
    assert ask(server)[0] == 401


def test_it_has_one_page_only(server: exporter.Exporter) -> None:
    assert ask(server, "/")[0] == 404
    assert ask(server, "/metrics?name=x")[0] == 200


def test_a_client_that_sends_nothing_keeps_nobody_waiting(server: exporter.Exporter) -> None:
    with socket.create_connection((ADDRESS, server.server_port)) as silent:
        silent.sendall(b"GET /metr")
        assert ask(server)[0] == 200


def test_a_port_that_is_taken_is_logged_and_stops_nothing(server: exporter.Exporter) -> None:
    with structlog.testing.capture_logs() as lines:
        assert exporter.start_exporter("worker", port=server.server_port) is None
    assert [line["event"] for line in lines] == ["metrics_not_told"]
    assert exporter.start_exporter("worker", port=0) is None
