"""Starting the real web server and the real worker on the test database, and killing them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode
from uuid import uuid4

from django.conf import settings
from django.db import connection
from kombu import Queue

from config.celery_app import app
from config.launcher.demo import ADDRESS, answers_healthz, choose_port
from config.launcher.places import this_checkout
from config.launcher.processes import Child, start_child, stop_children, wait_until
from config.launcher.production import serve_command, serve_environment
from journal.clock import database_now
from journal.models import Lease

ADMIN = "e2e-admin-token-0123456789"
VIEWER = "e2e-viewer-token-0123456789"
MEMBER = "e2e-member-token-0123456789"
TOKENS = [
    {"token": ADMIN, "name": "limes", "roles": ["cloud_resource_admin"]},
    {"token": VIEWER, "name": "viewer", "roles": ["cloud_resource_viewer"]},
    {"token": MEMBER, "name": "member", "roles": ["member"]},
]
OPEN = {"HEADROOM_AUTH": "noauth", "HEADROOM_DEBUG": "true"}
#: A web server of one process, where it does not matter which of several answers.
ALONE = {"GRANIAN_WORKERS": "1"}
PATIENCE_SECONDS = 60.0
REQUEST_SECONDS = 30.0
PING_SECONDS = 1.0


def database_url() -> str:
    """Return the address of the test database, as ``DATABASE_URL`` spells it."""
    database = connection.settings_dict
    account = quote(database["USER"], safe="")
    if database["PASSWORD"]:
        account += ":" + quote(database["PASSWORD"], safe="")
    port = f":{database['PORT']}" if database["PORT"] else ""
    host = {"host": database["HOST"]} if database["HOST"] else {}
    query = urlencode({**host, **plain_options(database["OPTIONS"])})
    return f"postgresql://{account}@{port}/{quote(database['NAME'], safe='')}?{query}"


def plain_options(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: text for name, text in options.items() if isinstance(text, str)}


def process_environment(directory: Path, **overrides: str) -> dict[str, str]:
    """Return the environment of a production process on the test database."""
    metrics = directory / "prometheus"
    metrics.mkdir(exist_ok=True)
    inherited = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("HEADROOM_", "GRANIAN_"))
    }
    return serve_environment(
        {
            **inherited,
            "DATABASE_URL": database_url(),
            "REDIS_URL": settings.REDIS_URL,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "HEADROOM_SECRET_KEY": "e2e" * 20,
            "HEADROOM_AUTH": "token",
            "HEADROOM_LEASE_SECONDS": "2",
            "HEADROOM_TOKENS": json.dumps(TOKENS),
            "HEADROOM_METRICS_TOKEN": ADMIN,
            "HEADROOM_METRICS__KEEP_SECONDS": "0",
            "HEADROOM_METRICS__WORKER_PORT": "0",  # workers run beside each other here
            "HEADROOM_METRICS__BEAT_PORT": "0",
            "PROMETHEUS_MULTIPROC_DIR": str(metrics),
            **overrides,
        }
    )


def manage(directory: Path, *arguments: str, **overrides: str) -> str:
    """Run ``manage.py`` with the environment of a production process; return what it printed."""
    checkout = this_checkout()
    made = subprocess.run(  # noqa: S603 - ours
        [str(checkout.python), "manage.py", *arguments],
        cwd=checkout.root,
        env=process_environment(directory, **overrides),
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True, kw_only=True)
class Process:
    """A process group of ours: started, killed, started again."""

    role: str
    directory: Path
    arguments: list[str] = field(default_factory=list)
    overrides: dict[str, str] = field(default_factory=dict)
    child: Child | None = None

    def start(self) -> None:
        checkout = this_checkout()
        self.child = start_child(
            self.role,
            serve_command(checkout, self.role, self.arguments),
            log=self.directory / f"{self.role}.log",
            env=process_environment(
                self.directory,
                **{"HEADROOM_PROCESS": "web" if self.role == "web" else "worker", **self.overrides},
            ),
            cwd=checkout.root,
            death_signal=signal.SIGKILL,
        )

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def kill(self) -> None:
        """Kill the whole process group at once; nothing in it gets to clean up."""
        assert self.child is not None
        os.killpg(self.child.process.pid, signal.SIGKILL)
        self.child.process.wait()

    def stop(self) -> int:
        """Ask it to end, and return its exit status."""
        assert self.child is not None
        stop_children([self.child], ((signal.SIGTERM, PATIENCE_SECONDS),))
        return self.child.process.wait()

    def end(self) -> None:
        """Kill what is left of it."""
        if self.child is not None and self.child.process.poll() is None:
            self.kill()

    def log(self) -> str:
        return (self.directory / f"{self.role}.log").read_text(errors="replace")[-4000:]


@dataclass(slots=True, kw_only=True)
class WebServer(Process):
    """The web server of ``./run serve``."""

    port: int = 0
    role: str = "web"

    def start(self) -> None:
        self.port = self.port or choose_port(0)
        self.overrides = {**self.overrides, "GRANIAN_PORT": str(self.port)}
        Process.start(self)
        assert wait_until(lambda: answers_healthz(self.port), PATIENCE_SECONDS), self.log()

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = ADMIN,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request on a connection of its own.

        Raises:
            OSError: the server is gone; ``http.client.HTTPException`` likewise.
        """
        fields = {"Content-Type": "application/json", **(headers or {})}
        if token is not None:
            fields["X-Auth-Token"] = token
        link = http.client.HTTPConnection(ADDRESS, self.port, timeout=REQUEST_SECONDS)
        try:
            content = None if body is None else json.dumps(body).encode()
            link.request(method, path, body=content, headers=fields)
            response = link.getresponse()
            names = {name.lower(): text for name, text in response.getheaders()}
            return Answer(status=response.status, headers=names, body=response.read())
        finally:
            link.close()


def others_in_database() -> tuple[int, int]:
    """Return how many other sessions our database has, and how many advisory locks they hold."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT
              (SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()
                 AND backend_type = 'client backend'),
              (SELECT count(*) FROM pg_locks
               WHERE locktype = 'advisory' AND pid <> pg_backend_pid()
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
            """
        )
        sessions, locks = cursor.fetchone() or (0, 0)
    return int(sessions), int(locks)


def wait_until_database_is_ours() -> None:
    """Wait until the sessions and the leases of the killed process have ended."""
    assert wait_until(lambda: others_in_database() == (0, 0), PATIENCE_SECONDS)
    assert wait_until(lambda: not someone_holds_a_lease(), PATIENCE_SECONDS)


def someone_holds_a_lease() -> bool:
    """Return whether the term of any lease goes on."""
    return Lease.objects.filter(expires_at__gt=database_now()).exists()


def someone_waits_for_a_lock() -> bool:
    """Return whether another session of our database waits for a lock that is held."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # else a transaction sees the same again
        cursor.execute(
            """
            SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'
            """
        )
        return bool((cursor.fetchone() or (0,))[0])


@dataclass(slots=True, kw_only=True)
class Worker(Process):
    """A Celery worker with a queue of its own; started means that it takes tasks.

    A worker that is asked to end before its signal handlers are there dies by the signal, and what
    a test waits for next may have been done by the worker before it.
    """

    processes: int = 1
    role: str = "worker"
    name: str = field(default_factory=lambda: f"e2e-{uuid4()}")
    queue: str = ""  # of its own if empty

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.start_unasked()
        assert wait_until(self.answers, PATIENCE_SECONDS), self.log()

    def start_unasked(self) -> None:
        """Start it."""
        self.arguments = [
            *("--hostname", f"{self.name}@test", "--queues", self.queue or self.name),
            *("--concurrency", str(self.processes), "--without-mingle", "--without-gossip"),
        ]
        Process.start(self)

    def answers(self) -> bool:
        """Return whether it takes tasks now."""
        answered = app.control.ping(destination=[f"{self.name}@test"], timeout=PING_SECONDS)
        return bool(answered)

    def send(self, task: str, *arguments: object) -> None:
        """Send a task to it."""
        app.send_task(task, args=list(arguments), queue=self.queue or self.name)

    def forget(self) -> None:
        """Kill it if it still runs, and drop its queue."""
        if self.child is not None and self.child.process.poll() is None:
            self.kill()
        if self.queue:
            return
        with app.connection() as link:
            Queue(self.name)(link.default_channel).delete()
