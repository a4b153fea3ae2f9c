"""Two Placement servers under load: starting them, talking to them, counting their CPU."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
from psycopg import sql

from config.launcher.demo import ADDRESS, choose_port
from config.launcher.peers import Peer, start_reference
from config.launcher.places import this_checkout
from config.launcher.processes import Child, start_child, stop_children, wait_until
from config.launcher.production import serve_command, serve_environment

WORKERS = 2
THREADS = 4
READY_SECONDS = 90.0
REQUEST_SECONDS = 300.0
REFERENCE_DATABASE = "headroom_bench_reference"
STOP = ((signal.SIGTERM, 10.0),)
CPUCLOCK_SCHED = 2
#: A server that uses no CPU for so long is done; it goes on a little after its answer.
IDLE_SECONDS = 0.0002


@dataclass(slots=True)
class Target:
    """A running server: where it listens, its processes, its database."""

    name: str
    port: int
    prefix: str
    child: Child
    conninfo: str

    def processes(self) -> list[psutil.Process]:
        """Return the server's processes."""
        root = psutil.Process(self.child.process.pid)
        return [root, *root.children(recursive=True)]

    def backends(self) -> list[psutil.Process]:
        """Return the database server's processes that work for it."""
        with psycopg.connect(self.conninfo, autocommit=True) as link:
            rows = link.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ).fetchall()
        found = []
        for (pid,) in rows:
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found

    def cpu(self) -> dict[int, float]:
        """Return CPU seconds so far by process."""
        found = {}
        for process in (*self.processes(), *self.backends()):
            with suppress(OSError):
                found[process.pid] = cpu_seconds(process.pid)
        return found

    def memory_bytes(self) -> int:
        """Return the resident memory of the server's processes."""
        return sum(process.memory_info().rss for process in self.processes())


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process so far, those that ended included.

    The kernel's own clock of the process counts nanoseconds, where ``/proc/PID/stat`` has steps of
    ten milliseconds, which is many answers. Its number is what ``clock_getcpuclockid`` returns.

    Raises:
        OSError: there is no such process.
    """
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


@dataclass(slots=True)
class Connection:
    """A kept connection that sends prepared requests and reads answers, with little CPU."""

    target: Target
    _socket: socket.socket | None = field(default=None, init=False)

    def send(
        self, method: str, path: str, body: Any = None, *, minor: int = 36
    ) -> tuple[int, bytes]:
        """Return status and body of one request."""
        return self.send_bytes(encode(self.target, method, path, body, minor=minor))

    def send_bytes(self, request: bytes) -> tuple[int, bytes]:
        """Send an encoded request; once more when the server had closed the idle connection."""
        for attempt in range(2):
            if self._socket is None:
                self._socket = socket.create_connection(
                    (ADDRESS, self.target.port), timeout=REQUEST_SECONDS
                )
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self._socket.sendall(request)
                return self._answer(self._socket)
            except (ConnectionError, BrokenPipeError):
                self.close()
                if attempt:
                    raise
        raise AssertionError

    def _answer(self, link: socket.socket) -> tuple[int, bytes]:
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            part = link.recv(65536)
            if not part:
                raise ConnectionError
            received += part
        head = bytes(received[:end]).lower()
        length = 0
        if (place := head.find(b"content-length:")) >= 0:
            length = int(head[place + 15 :].split(b"\r\n", 1)[0])
        body = received[end + 4 :]
        while len(body) < length:
            part = link.recv(1 << 20)
            if not part:
                raise ConnectionError
            body += part
        if b"transfer-encoding: chunked" in head:
            raise AssertionError(head)
        return int(head[9:12]), bytes(body)

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def encode(target: Target, method: str, path: str, body: Any = None, *, minor: int = 36) -> bytes:
    """Return the bytes of a request."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {target.prefix}{path} HTTP/1.1",
        f"Host: {ADDRESS}:{target.port}",
        "X-Auth-Token: admin",
        "Accept: application/json",
        f"OpenStack-API-Version: placement 1.{minor}",
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join((*lines, "", "")).encode() + content


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a load cost.

    Attributes:
        seconds: Per request, as the client saw it.
        wall_seconds: Of the whole load.
        cpu_seconds: Of the server and its database sessions.
        statuses: How often each status came.
        bodies: The last answer of each client.
    """

    seconds: tuple[float, ...]
    wall_seconds: float
    cpu_seconds: float
    statuses: dict[int, int]
    bodies: tuple[bytes, ...]

    @property
    def done(self) -> int:
        """Requests that succeeded."""
        return sum(count for status, count in self.statuses.items() if status < 300)  # noqa: PLR2004 - HTTP

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per request that succeeded."""
        return self.cpu_seconds * 1000 / max(1, self.done)

    @property
    def per_second(self) -> float:
        """Requests that succeeded per second."""
        return self.done / self.wall_seconds


def run_load(target: Target, per_client: Sequence[Sequence[bytes]]) -> Load:
    """Send each client's requests one after another, all clients at once."""
    results: list[tuple[list[float], list[int], bytes]] = []

    def client(requests: Sequence[bytes]) -> None:
        link = Connection(target)
        seconds, statuses, body = [], [], b""
        for request in requests:
            before = time.perf_counter()
            status, body = link.send_bytes(request)
            seconds.append(time.perf_counter() - before)
            statuses.append(status)
        link.close()
        results.append((seconds, statuses, body))

    threads = [threading.Thread(target=client, args=(requests,)) for requests in per_client]
    cpu_before, before = target.cpu(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - before
    cpu_after = target.cpu()
    counted: dict[int, int] = {}
    for _, statuses, _ in results:
        for status in statuses:
            counted[status] = counted.get(status, 0) + 1
    return Load(
        seconds=tuple(each for seconds, _, _ in results for each in seconds),
        wall_seconds=wall,
        cpu_seconds=sum(spent - cpu_before.get(pid, 0.0) for pid, spent in cpu_after.items()),
        statuses=counted,
        bodies=tuple(body for _, _, body in results),
    )


def repeated_load(target: Target, per_client: Sequence[Sequence[Sequence[bytes]]]) -> Load:
    """Run several loads one after another; of the CPU the median counts for each."""
    return merged([run_load(target, requests) for requests in per_client])


def merged(loads: Sequence[Load]) -> Load:
    """Return equal loads as one, with the median of their CPU for each of them."""
    statuses: dict[int, int] = {}
    for load in loads:
        for status, count in load.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    return Load(
        seconds=tuple(one for load in loads for one in load.seconds),
        wall_seconds=sum(load.wall_seconds for load in loads),
        cpu_seconds=median(load.cpu_seconds for load in loads) * len(loads),
        statuses=statuses,
        bodies=loads[-1].bodies,
    )


def reads_after_writes(
    links: Sequence[Connection], read: bytes, writes: Sequence[bytes], *, first: int = 0
) -> Load:
    """Send a write and then a read, again and again; what is returned is about the reads.

    Args:
        links: Connections to one server; the first one writes, all read in turn. They are of
            several worker processes, so about half of the reads come to one that did not write.
        read: The request to be measured, once per write.
        writes: Requests, each of which changes something.
        first: Number of the connection that reads first.

    Raises:
        RuntimeError: a write was refused.
    """
    target = links[0].target
    processes = list(target.cpu())
    seconds: list[float] = []
    statuses: dict[int, int] = {}
    spent, body, begun = 0.0, b"", time.perf_counter()
    for number, write in enumerate(writes):
        status, answer = links[0].send_bytes(write)
        if status >= 300:  # noqa: PLR2004 - HTTP
            raise RuntimeError(answer[:300])
        cpu_before, before = _cpu_when_idle(processes), time.perf_counter()
        status, body = links[(first + number) % len(links)].send_bytes(read)
        seconds.append(time.perf_counter() - before)
        spent += _cpu_when_idle(processes) - cpu_before
        statuses[status] = statuses.get(status, 0) + 1
    return Load(
        seconds=tuple(seconds),
        wall_seconds=time.perf_counter() - begun,
        cpu_seconds=spent,
        statuses=statuses,
        bodies=(body,),
    )


def _cpu_when_idle(processes: Sequence[int]) -> float:
    """Return the CPU seconds of some processes once these stay the same.

    Without sleeping: a processor that fell asleep, with other work's data in its caches, would make
    a small answer cost half as much again.
    """
    known, since = -1.0, 0.0
    while True:
        spent, now = sum(map(cpu_seconds, processes)), time.perf_counter()
        if spent != known:
            known, since = spent, now
        elif now - since > IDLE_SECONDS:
            return spent


def reference_conninfo() -> str:
    """Return the address of the reference's database, beside ours."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    return parts._replace(path=f"/{REFERENCE_DATABASE}").geturl().replace(":///", "://@/")


def make_reference_database() -> None:
    """Make the reference's database anew on the server of ours."""
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as link:
        name = sql.Identifier(REFERENCE_DATABASE)
        link.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
        link.execute(sql.SQL("CREATE DATABASE {}").format(name))


@contextmanager
def served_reference(peer: Peer) -> Iterator[Target]:
    """Serve the reference from its database until the end of the block."""
    with ExitStack() as held:
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="reference-")))
        conninfo = reference_conninfo()
        port = choose_port(0)
        child = start_reference(
            peer,
            directory,
            port=port,
            database_url=conninfo.replace("postgresql://", "postgresql+psycopg2://", 1),
            environ={"PATH": os.environ["PATH"]},
            workers=WORKERS,
            threads=THREADS,
        )
        held.callback(stop_children, [child], STOP)
        target = Target(name="reference", port=port, prefix="", child=child, conninfo=conninfo)
        _wait(target)
        yield target


@contextmanager
def served_headroom() -> Iterator[Target]:
    """Serve Headroom from our database until the end of the block."""
    with ExitStack() as held:
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="headroom-")))
        port = choose_port(0)
        checkout = this_checkout()
        settings = {
            "HEADROOM_AUTH": "noauth",
            "HEADROOM_LISTEN_ADDRESS": ADDRESS,
            "HEADROOM_LOG_LEVEL": "WARNING",
            "GRANIAN_PORT": str(port),
            "GRANIAN_WORKERS": str(WORKERS),
            "GRANIAN_BLOCKING_THREADS": str(THREADS),
            "PROMETHEUS_MULTIPROC_DIR": str(directory),
        }
        child = start_child(
            "headroom",
            serve_command(checkout, "web", []),
            log=directory / "web.log",
            env=serve_environment({**os.environ, **settings}),
            cwd=checkout.root,
        )
        held.callback(stop_children, [child], STOP)
        target = Target(
            name="headroom",
            port=port,
            prefix="/placement",
            child=child,
            conninfo=os.environ["DATABASE_URL"],
        )
        _wait(target)
        yield target


def _wait(target: Target) -> None:
    def answers() -> bool:
        link = Connection(target)
        try:
            return link.send("GET", "/")[0] == 200  # noqa: PLR2004 - HTTP
        except OSError:
            return False
        finally:
            link.close()

    if not wait_until(answers, READY_SECONDS):
        text = target.child.log.read_text(errors="replace")[-2000:]
        message = f"{target.name} does not answer:\n{text}"
        raise RuntimeError(message)


def warm(target: Target, paths: Iterable[str]) -> None:
    """Let every worker open its connections and fill its caches."""

    def one() -> None:
        link = Connection(target)
        for path in paths:
            link.send("GET", path)
        link.close()

    threads = [threading.Thread(target=one) for _ in range(WORKERS * THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
