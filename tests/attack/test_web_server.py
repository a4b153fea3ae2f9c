"""Attacks on the web server itself: slow, giant and odd bodies, stuck threads, killed processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest
from django.db import connection, transaction

from config.environment import load_environment
from config.launcher.demo import ADDRESS
from config.launcher.processes import is_alive, wait_until
from tests.e2e.own_postgres import OwnPostgres
from tests.e2e.processes import ADMIN, ALONE, WebServer
from tests.factories import make_group, make_host
from tests.hosts.agents.agents import enrolled

DEADLINES = [
    f"HEADROOM_{name.upper().replace('.', '__')}"
    for name in load_environment({"HEADROOM_DEBUG": "true"}).web_deadlines()
]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

PATIENCE_SECONDS = 30.0
PROBE_SECONDS = 1.0
CHANGE = "/commitments/v1/change-commitments"
INFO = "/commitments/v1/info"
PROVIDERS = "/placement/resource_providers"
VERSION = {"OpenStack-API-Version": "placement 1.39"}
SLOW_CLIENTS = 200
THREADS = 2 * 8
MANY = 6 * THREADS  # the kernel divides connections between the workers by chance


def head(path: str, *fields: str, method: str = "POST") -> bytes:
    """Return the head of a request."""
    lines = (
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"X-Auth-Token: {ADMIN}",
        "Content-Type: application/json",
        *fields,
    )
    return "\r\n".join((*lines, "", "")).encode()


def connected(web: WebServer) -> socket.socket:
    return socket.create_connection((ADDRESS, web.port), timeout=PATIENCE_SECONDS)


def answer_of(link: socket.socket) -> bytes:
    """Return all that comes until the server closes; the end of a refused body may be reset."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := link.recv(65536):
            parts.append(part)
    return b"".join(parts)


def sent(web: WebServer, request: bytes) -> bytes:
    with connected(web) as link:
        link.sendall(request)
        return link.recv(65536)


@contextlib.contextmanager
def slow_clients(web: WebServer, count: int, length: int = 1000) -> Iterator[list[socket.socket]]:
    """Keep clients that have sent the head and half a body."""
    with contextlib.ExitStack() as held:
        links = []
        for _ in range(count):
            links.append(held.enter_context(connected(web)))
            send_half(links[-1], length)
        yield links


def send_half(link: socket.socket, length: int) -> None:
    link.sendall(head(CHANGE, f"Content-Length: {length}") + b" " * (length // 2))


def seconds_of(web: WebServer, path: str) -> tuple[int, float]:
    started = time.monotonic()
    status = web.send("GET", path, token=None).status
    return status, time.monotonic() - started


@pytest.fixture(scope="module")
def operators_web(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebServer]:
    """A web server whose token may do everything, in Placement as well; nothing is written."""
    del django_db_setup
    tokens = [{"token": ADMIN, "name": "operator", "roles": ["cloud_resource_admin", "admin"]}]
    overrides = {"HEADROOM_TOKENS": json.dumps(tokens), **ALONE}
    with WebServer(directory=tmp_path_factory.mktemp("operators"), overrides=overrides) as server:
        yield server


def test_200_slow_bodies_hold_up_nobody(lasting_web: WebServer) -> None:
    make_group()
    web = lasting_web
    with slow_clients(web, SLOW_CLIENTS) as links:
        for _ in range(THREADS):
            assert web.send("GET", INFO).status == 200
            assert web.send("POST", CHANGE, {"az": "az-a", "byProject": {}}).status in {200, 409}
        assert seconds_of(web, "/livez") < (200, PROBE_SECONDS)
        links[0].sendall(b" " * 500)  # a whole body is heard, however long it took
        assert links[0].recv(64).startswith(b"HTTP/1.1 4")


@pytest.fixture(scope="module")
def impatient_web(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebServer]:
    """A web server that gives bodies half a second, as it does everything that may wait."""
    del django_db_setup
    tokens = [{"token": ADMIN, "name": "operator", "roles": ["cloud_resource_admin", "admin"]}]
    overrides = {
        **dict.fromkeys(DEADLINES, "0.5"),
        "HEADROOM_TOKENS": json.dumps(tokens),
        "HEADROOM_WEB__BODY_GRACE_SECONDS": "0.5",
        "HEADROOM_WEB__STUCK_SECONDS": "1",
        "GRANIAN_WORKERS": "1",
    }
    with WebServer(directory=tmp_path_factory.mktemp("impatient"), overrides=overrides) as server:
        yield server


def test_body_that_stalls_is_given_up(impatient_web: WebServer) -> None:
    with slow_clients(impatient_web, 3) as links:
        for link in links:
            assert answer_of(link).startswith(b"HTTP/1.1 408 ")


def test_bodies_beyond_the_memory_for_them_are_refused_oldest_first(
    transactional_db: None, tmp_path: Path
) -> None:
    del transactional_db
    overrides = {
        "HEADROOM_WEB__BODIES_MIB": "1",
        "HEADROOM_WEB__BODY_GRACE_SECONDS": "100",
        "GRANIAN_WORKERS": "1",
    }
    web = WebServer(directory=tmp_path, overrides=overrides)
    web.start()
    try:
        with contextlib.ExitStack() as held:
            links = []
            for _ in range(5):
                links.append(held.enter_context(connected(web)))
                links[-1].sendall(head(CHANGE, "Content-Length: 600000", "Expect: 100-continue"))
                assert links[-1].recv(64).startswith(b"HTTP/1.1 100 ")  # its body is awaited by now
            for link in links:
                link.sendall(b" " * 300_000)
            assert answer_of(links[0]).startswith(b"HTTP/1.1 503 ")
            assert web.send("GET", "/placement").status == 200
    finally:
        web.end()


POSTS = {
    CHANGE: 2,
    "/api/v1/failover/simulations": 2,
    "/api/v1/commitments/what-if": 2,
    "/api/v1/scheduling/explain": 16,
    PROVIDERS: 8,
    "/api/v1/placement/simulate": 8,
    "/scheduler/nova/external": 16,
    "/admin/login/": 2,
}


def test_parts_of_a_stream_come_when_they_are_there(operators_web: WebServer) -> None:
    make_group()
    make_host("h1")
    enrolled("h1")
    request = head("/api/v1/hosts/h1/counters", method="GET")
    with connected(operators_web) as link:
        link.sendall(request)
        told = b""
        while told.count(b"event: counters") < 2:  # of fifteen
            part = link.recv(65536)
            assert part, told
            told += part
        assert told.startswith(b"HTTP/1.1 200")
    for _ in range(2 * THREADS):  # who goes away leaves no thread behind
        assert operators_web.send("GET", INFO).status == 200


def test_giant_bodies_are_refused_unread(operators_web: WebServer) -> None:
    for path, most_mib in POSTS.items():
        with connected(operators_web) as link:
            link.sendall(head(path, f"Content-Length: {(most_mib << 20) + 1}"))
            assert link.recv(64).startswith(b"HTTP/1.1 413 "), path


def test_chunked_bodies_are_refused_and_never_taken_for_empty_ones(
    operators_web: WebServer,
) -> None:
    for path in POSTS:
        chunks = b'12\r\n{"az": "az-a"     }\r\n0\r\n\r\n'
        answer = sent(operators_web, head(path, "Transfer-Encoding: chunked") + chunks)
        assert answer.startswith(b"HTTP/1.1 411 "), (path, answer)
        assert (b'"errors"' in answer) == (path == PROVIDERS), answer
        assert (b"problem+json" in answer) == path.startswith("/api/"), answer


def test_deep_and_wide_json_is_refused(operators_web: WebServer) -> None:
    deep = b'{"az": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    wide = b'{"az": [' + b"0," * 600_000 + b"0]}"
    for body, status in ((deep, b"400"), (wide, b"413")):
        for path in POSTS:
            if path.startswith("/admin/"):
                continue
            answer = sent(operators_web, head(path, f"Content-Length: {len(body)}") + body)
            assert answer.startswith(b"HTTP/1.1 " + status), (path, answer)


@contextlib.contextmanager
def table_locked() -> Iterator[None]:
    """Let every reader of the service info wait."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE capacity_flavorgroup IN ACCESS EXCLUSIVE MODE")
        yield


def ask_until(over: threading.Event, web: WebServer, ended: list[str]) -> None:
    """Ask for what cannot be had, again when the server says so, which is noted."""
    while not over.is_set():
        with contextlib.suppress(OSError):
            web.send("GET", INFO)
        ended.append(INFO)


def test_probes_answer_while_every_thread_waits(transactional_db: None, tmp_path: Path) -> None:
    """In one process: which of several gets how many connections is the kernel's choice."""
    del transactional_db
    web = WebServer(directory=tmp_path, overrides={"GRANIAN_WORKERS": "1"})
    web.start()
    try:
        _ask_probes_while_every_thread_waits(web)
    finally:
        web.end()


def _ask_probes_while_every_thread_waits(web: WebServer) -> None:
    make_group()
    assert web.send("GET", INFO).status == 200
    over = threading.Event()
    ended: list[str] = []

    def answers_while_no_thread_is_free(path: str) -> bool:
        """Whether a probe came back with every thread waiting and none done meanwhile."""
        before = len(ended)
        if waiting_sessions() < THREADS // 2:
            return False
        assert web.send("GET", path, token=None).status == 200
        return len(ended) == before

    with ThreadPoolExecutor(MANY) as pool, table_locked(), contextlib.ExitStack() as ends:
        ends.callback(over.set)
        for _ in range(MANY):
            pool.submit(ask_until, over, web, ended)
        for path in ("/livez", "/healthz", "/readyz"):
            answers = partial(answers_while_no_thread_is_free, path)
            assert wait_until(answers, PATIENCE_SECONDS), path
    assert web.send("GET", INFO).status == 200


def waiting_sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int((cursor.fetchone() or (0,))[0])


def test_stuck_threads_fail_liveness_and_finished_ones_mend_it(impatient_web: WebServer) -> None:
    make_group()
    web = impatient_web
    with ThreadPoolExecutor(16) as pool, table_locked(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE placement_provider IN ACCESS EXCLUSIVE MODE")
        for _ in range(8):  # one API alone never has all threads
            pool.submit(web.send, "GET", INFO)
            pool.submit(web.send, "GET", PROVIDERS, headers=VERSION)
        assert wait_until(lambda: seconds_of(web, "/livez")[0] == 503, PATIENCE_SECONDS)
        assert b"no thread has finished" in web.send("GET", "/livez").body
    assert wait_until(lambda: seconds_of(web, "/livez")[0] == 200, PATIENCE_SECONDS)


def generations_of(web: WebServer) -> list[psutil.Process]:
    assert web.child is not None
    return list(psutil.Process(web.child.process.pid).children())


def workers_of(web: WebServer) -> list[int]:
    return [worker.pid for one in generations_of(web) for worker in one.children()]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_main_process(web: WebServer, signum: int) -> None:
    assert web.child is not None
    workers = workers_of(web)
    ending = [*workers, *(one.pid for one in generations_of(web))]
    assert len(workers) == 2
    os.kill(web.child.process.pid, signum)
    assert web.child.process.wait(PATIENCE_SECONDS) == (-signum if signum == signal.SIGKILL else 0)
    assert wait_until(lambda: not any(is_alive(pid) for pid in ending), PATIENCE_SECONDS)


def test_main_process_and_workers_end_with_their_generation(web: WebServer) -> None:
    assert web.child is not None
    workers = workers_of(web)
    (generation,) = generations_of(web)
    generation.kill()
    assert web.child.process.wait(PATIENCE_SECONDS) == 1
    assert wait_until(lambda: not any(is_alive(pid) for pid in workers), PATIENCE_SECONDS)


def test_workers_share_what_their_generation_has_loaded(web: WebServer) -> None:
    """Threads of the application come after the fork, and most of its memory before."""
    make_group()
    (generation,) = generations_of(web)
    assert all(web.send("GET", INFO).status == 200 for _ in range(MANY))
    for pid in workers_of(web):
        memory = psutil.Process(pid).memory_full_info()
        assert memory.uss < memory.rss / 2
    links = [link.status for link in generation.net_connections("all")]
    assert psutil.CONN_ESTABLISHED not in links


def test_killed_worker_is_replaced_and_no_connection_is_refused(lasting_web: WebServer) -> None:
    web = lasting_web
    before = workers_of(web)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert web.send("GET", "/livez").status == 200  # it waits for the next worker
    assert wait_until(lambda: len(set(workers_of(web)) - set(before)) == 2, PATIENCE_SECONDS)


def test_reload_under_load_refuses_no_connection(lasting_web: WebServer) -> None:
    make_group()
    web = lasting_web
    assert web.child is not None
    before = set(workers_of(web))
    over = threading.Event()

    def ask_until_over() -> int:
        asked = 0
        while not over.is_set():
            assert web.send("GET", INFO, headers={"Connection": "close"}).status == 200
            asked += 1
        return asked

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask_until_over) for _ in range(4)]
        os.kill(web.child.process.pid, signal.SIGHUP)

        def are_new() -> bool:
            now = set(workers_of(web))
            return len(now) == 2 and not now & before

        has_followed = wait_until(are_new, 4 * PATIENCE_SECONDS)
        over.set()
        assert all(client.result() for client in clients)
    assert has_followed, web.log()


def test_reload_into_something_broken_leaves_the_old_workers(
    transactional_db: None, tmp_path: Path
) -> None:
    del transactional_db
    policy = tmp_path / "policy.yaml"
    policy.write_text("")
    web = WebServer(directory=tmp_path, overrides={"HEADROOM_POLICY_FILE": str(policy)})
    web.start()
    try:
        assert web.child is not None
        assert wait_until(lambda: web.log().count("Started worker-") == 2, PATIENCE_SECONDS)
        before = workers_of(web)
        policy.write_text('"liquid:get_info": [')  # stops the start of a process
        os.kill(web.child.process.pid, signal.SIGHUP)
        assert wait_until(lambda: "did not come up" in web.log(), PATIENCE_SECONDS)
        assert set(before) <= set(workers_of(web))
        assert web.send("GET", "/livez").status == 200
    finally:
        web.end()


def test_ready_without_broker_and_with_a_newer_migration(
    transactional_db: None, tmp_path: Path
) -> None:
    del transactional_db
    nowhere = {"REDIS_URL": f"unix://{tmp_path}/nobody-listens.sock"}
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_migrations (app, name, applied)"
            " VALUES ('capacity', '9999_of_the_next_version', now())"
        )
    server = WebServer(directory=tmp_path, overrides=nowhere)
    server.start()
    try:
        assert server.send("GET", "/readyz", token=None).status == 200
        found = server.send("GET", "/statusz", token=None).json()
        assert (found["ok"], found["checks"]["broker"]["ok"]) == (False, False)
    finally:
        server.end()


def test_not_ready_without_database_and_alive(
    web_on_postgres: WebServer, postgres: OwnPostgres
) -> None:
    web = web_on_postgres
    assert seconds_of(web, "/readyz")[0] == 200
    with postgres.stopped():
        status, seconds = seconds_of(web, "/readyz")
        assert (status, seconds < PROBE_SECONDS) == (503, True)
        assert web.send("GET", "/livez").status == 200
    assert wait_until(lambda: seconds_of(web, "/readyz")[0] == 200, PATIENCE_SECONDS)
