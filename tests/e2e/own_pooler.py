"""PgBouncer in transaction mode before a database, with few sessions that it deals round."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from django.db import connection

from cloud.postgres import DATABASE, OwnPostgres
from config.launcher.places import this_checkout
from config.launcher.processes import Child, start_child, stop_children, wait_until
from config.launcher.servers import SUPERUSER
from config.launcher.services import postgres_spec

PORT = 6432
SESSIONS = 3
PATIENCE_SECONDS = 30.0
#: Each transaction gets the session that was idle longest, so that what a client believes to have
#: done to its session is met by others. The two times are those of the manual: who waits when the
#: server goes away is told so soon, and the one that takes over is tried at once.
SETTINGS = """
[databases]
{name} = {server}

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {directory}
auth_type = any
pool_mode = transaction
server_round_robin = 1
min_pool_size = {sessions}
default_pool_size = {sessions}
max_client_conn = 500
server_login_retry = 1
query_wait_timeout = 5
admin_users = pooler
"""


@dataclass(slots=True, kw_only=True)
class OwnPooler:
    """A pooler of one test.

    Attributes:
        name: Of the database.
        sessions: How many the database gets of it.
    """

    directory: Path
    name: str
    sessions: int
    child: Child | None = None

    @property
    def settings(self) -> Path:
        return self.directory / "pgbouncer.ini"

    def write_settings(self, server: str) -> None:
        """Say where the database is, as PgBouncer spells it."""
        self.settings.write_text(
            SETTINGS.format(
                name=self.name,
                server=server,
                port=PORT,
                directory=self.directory,
                sessions=self.sessions,
            )
        )

    def lead_to(self, server: OwnPostgres) -> None:
        """Lead to another server from now on, as operators do at a switch-over."""
        assert self.child is not None
        self.write_settings(server_of(server))
        self.child.process.send_signal(signal.SIGHUP)

    @property
    def url(self) -> str:
        """The address of the test database behind it, as ``DATABASE_URL`` spells it."""
        return f"postgresql://headroom@:{PORT}/{self.name}?host={self.directory}"

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.url, autocommit=True, prepare_threshold=None)

    def answers(self) -> bool:
        """Return whether it takes connections, and has sessions for them."""
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(str(self.directory / f".s.PGSQL.{PORT}"))
            with self.connect() as there:
                return there.execute("SELECT 1").fetchone() == (1,)
        except (OSError, psycopg.Error):
            return False


@contextmanager
def own_pooler(
    log: Path, server: OwnPostgres | None = None, *, sessions: int = SESSIONS
) -> Iterator[OwnPooler]:
    """Run a pooler before a server, or else before the database of this process."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "PgBouncer is not installed (Debian: pgbouncer)"
    spec = postgres_spec(this_checkout(), "test", os.environ)
    with tempfile.TemporaryDirectory(prefix="own-pooler-", dir=spec.home.parent) as home:
        directory = Path(home)
        name = DATABASE if server is not None else str(connection.settings_dict["NAME"])
        pooler = OwnPooler(directory=directory, name=name, sessions=sessions)
        pooler.write_settings(_of_this_process() if server is None else server_of(server))
        directory.chmod(0o711)
        if spec.account is not None:  # it refuses to run as root
            owner = f"{spec.account.uid}:{spec.account.gid}"
            subprocess.run(["chown", "-R", owner, home], check=True)  # noqa: S603, S607 - ours
        pooler.child = start_child(
            "pgbouncer",
            [program, str(pooler.settings)],
            log=log,
            env={"PATH": os.environ["PATH"]},
            cwd=directory,
            account=spec.account,
        )
        try:
            assert wait_until(pooler.answers, PATIENCE_SECONDS), log.read_text(errors="replace")
            yield pooler
        finally:
            stop_children([pooler.child], ((signal.SIGINT, PATIENCE_SECONDS),))


def server_of(server: OwnPostgres) -> str:
    """Return where a server's database is, as PgBouncer spells it."""
    return f"host='{server.spec.sockets}' dbname='{DATABASE}' user='{SUPERUSER}'"


def _of_this_process() -> str:
    """Return where the database of this process is, as PgBouncer spells it."""
    database = connection.settings_dict
    parts = {
        "host": database["HOST"] or database["OPTIONS"].get("host", ""),
        "port": str(database["PORT"] or 5432),
        "dbname": database["NAME"],
        "user": database["USER"],
        "password": database["PASSWORD"],
    }
    return " ".join(f"{name}='{text}'" for name, text in parts.items() if text)
