"""Two Placement servers under load: starting them, talking to them, counting their CPU."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
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
#: User ``admin`` of a project, as the reference reads it, which authenticates nobody.
TOKEN = "admin:benchmark-project"  # noqa: S105 - for servers on this machine
STOP = ((signal.SIGTERM, 10.0),)
CPUCLOCK_SCHED = 2


@dataclass(slots=True)
class Target:
    """A running server: where it listens, its processes, its database.

    Attributes:
        others: Processes of its own beside it, such as a pooler.
    """

    name: str
    port: int
    prefix: str
    child: Child
    conninfo: str
    others: tuple[Child, ...] = ()

    def processes(self) -> list[psutil.Process]:
        """Return the server's processes, and the others that work for it."""
        root = psutil.Process(self.child.process.pid)
        others = [psutil.Process(child.process.pid) for child in self.others]
        return [root, *root.children(recursive=True), *others]

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
        """Return the memory of the server's processes; pages that some share are divided."""
        return sum(process.memory_full_info().pss for process in self.processes())


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
        f"X-Auth-Token: {TOKEN}",
        "Accept: application/json",
        f"OpenStack-API-Version: placement 1.{minor}",
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join((*lines, "", "")).encode() + content


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
def served_headroom(variables: Mapping[str, str] | None = None, /, **more: str) -> Iterator[Target]:
    """Serve Headroom from our database until the end of the block.

    Args:
        variables: Of the server's environment, that win over the usual ones.
        more: Further settings, by name without their prefix.
    """
    with ExitStack() as held:
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="headroom-")))
        port = choose_port(0)
        checkout = this_checkout()
        settings = {
            "HEADROOM_PROCESS": "web",
            "HEADROOM_AUTH": "token",
            "HEADROOM_TOKENS": json.dumps([{"token": TOKEN, "name": "admin", "roles": ["admin"]}]),
            "HEADROOM_LISTEN_ADDRESS": ADDRESS,
            "HEADROOM_LOG_LEVEL": "WARNING",
            "GRANIAN_PORT": str(port),
            "GRANIAN_WORKERS": str(WORKERS),
            "GRANIAN_BLOCKING_THREADS": str(THREADS),
            "PROMETHEUS_MULTIPROC_DIR": str(directory),
            **{f"HEADROOM_{name}": value for name, value in more.items()},
            **(variables or {}),
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
