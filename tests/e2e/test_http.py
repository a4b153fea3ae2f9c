"""Tokens, request ids, readiness and metrics over real HTTP, with two worker processes."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from config.launcher.demo import ADDRESS
from config.launcher.processes import wait_until
from journal.services import record_heartbeat
from tests.e2e.processes import MEMBER, VIEWER, Answer, WebServer
from tests.factories import make_group, make_hosts

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

INFO = "/commitments/v1/info"
CHANGE = "/commitments/v1/change-commitments"
UNKNOWN = "no-such-token-0123456789"
PLAIN_TEXT = "text/plain; charset=utf-8"
PATIENCE_SECONDS = 30.0


@pytest.fixture
def web_without_broker(transactional_db: None, tmp_path: Path) -> Iterator[WebServer]:
    del transactional_db
    nowhere = f"unix://{tmp_path}/nobody-listens.sock"
    with WebServer(directory=tmp_path, overrides={"REDIS_URL": nowhere}) as server:
        yield server


def assert_refused(answer: Answer, status: int, text: bytes) -> None:
    assert (answer.status, answer.body) == (status, text)
    assert answer.headers["content-type"] == PLAIN_TEXT
    assert answer.headers["x-request-id"]


def test_tokens_and_request_ids(lasting_web: WebServer) -> None:
    make_group()
    web = lasting_web
    assert_refused(web.send("GET", INFO, token=None), 401, b"Unauthorized")
    assert_refused(web.send("GET", INFO, token=UNKNOWN), 401, b"Unauthorized")
    assert_refused(web.send("GET", INFO, token=MEMBER), 403, b"Forbidden")
    assert_refused(web.send("POST", CHANGE, {"az": "az-a"}, token=VIEWER), 403, b"Forbidden")
    assert web.send("GET", INFO, token=VIEWER).status == 200

    given = web.send("GET", INFO, headers={"X-Request-ID": "limes.42:a-b_c"})
    assert given.headers["x-request-id"] == "limes.42:a-b_c"
    assert given.headers["x-openstack-request-id"] == "limes.42:a-b_c"
    odd = web.send("GET", INFO, headers={"X-Request-ID": "a b"})
    assert re.fullmatch(r"[0-9a-f-]{36}", odd.headers["x-request-id"])
    other = web.send("GET", "/nowhere", headers={"X-OpenStack-Request-ID": "req-1"})
    assert (other.status, other.headers["x-request-id"]) == (404, "req-1")

    redirect = web.send("POST", CHANGE + "/", {"az": "az-a"})
    assert_refused(redirect, 404, b"Not found")


MALFORMED = (
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: a\x00b\r\n\r\n",
    b"GET /health z HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"nonsense\r\n\r\n",
)


def test_malformed_http_never_reaches_the_application(lasting_web: WebServer) -> None:
    for lines in MALFORMED:
        address = (ADDRESS, lasting_web.port)
        with socket.create_connection(address, timeout=PATIENCE_SECONDS) as link:
            link.sendall(lines)
            assert link.recv(64).startswith(b"HTTP/1.1 400 "), lines


def test_readiness_needs_no_beat_and_status_tells_of_it(lasting_web: WebServer) -> None:
    web = lasting_web
    assert web.send("GET", "/healthz", token=None).body == b"ok"
    answer = web.send("GET", "/readyz", token=None)
    assert (answer.status, set(answer.json()["checks"])) == (200, {"database", "migrations"})
    assert web.send("GET", "/statusz", token=None).json()["checks"]["beat"]["ok"] is False
    record_heartbeat("beat")
    assert web.send("GET", "/statusz", token=None).json()["checks"]["beat"]["ok"] is True


def test_without_broker_the_server_is_ready_and_changes_are_still_decided(
    web_without_broker: WebServer,
) -> None:
    assert web_without_broker.send("GET", "/readyz", token=None).status == 200
    answer = web_without_broker.send("GET", "/statusz", token=None)
    assert answer.json()["checks"]["broker"]["ok"] is False
    assert b"nobody-listens" not in answer.body

    make_group()
    version = web_without_broker.send("GET", INFO).json()["version"]
    make_hosts(1)
    body = change_body(version)
    answer = web_without_broker.send("POST", CHANGE, body)
    assert (answer.status, answer.json()) == (200, {})


def change_body(version: int) -> dict[str, Any]:
    """Return a request for one confirmed commitment of 4 GiB."""
    entry = {
        "uuid": "aaaaaaaa-0000",
        "oldStatus": None,
        "newStatus": "confirmed",
        "amount": 4,
        "expiresAt": "2036-01-01T00:00:00Z",
    }
    changeset = {"totalConfirmedAfter": 4, "commitments": [entry]}
    projects = {"alpha": {"byResource": {"hw_version_hana_1_ram": changeset}}}
    return {"az": "az-a", "infoVersion": version, "byProject": projects}


def counted(page: str, status_code: str) -> float:
    name = "cortex_committed_resource_info_api_requests_total"
    pattern = rf'^{name}{{status_code="{status_code}"}} (\S+)$'
    match = re.search(pattern, page, re.MULTILINE)
    return float(match[1]) if match else 0.0


def test_metrics_of_two_processes_are_summed(web: WebServer) -> None:
    make_group()
    directory = web.directory / "prometheus"
    sent = 0

    def fire() -> bool:
        """Send a few requests at once; return whether both processes have counted some."""
        nonlocal sent
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: web.send("GET", INFO), range(16)))
        assert {answer.status for answer in answers} == {200}
        sent += len(answers)
        return len(list(directory.glob("counter_*.db"))) >= 2

    assert wait_until(fire, PATIENCE_SECONDS)
    web.send("GET", INFO, token=None)
    pages = [web.send("GET", "/metrics") for _ in range(6)]
    for page in pages:
        assert page.status == 200
        assert page.headers["content-type"].startswith("text/plain")
        assert counted(page.body.decode(), "200") == sent
        assert counted(page.body.decode(), "401") == 1
