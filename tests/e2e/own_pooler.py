"""PgBouncer in transaction mode before the test database, with few sessions that it deals round."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from django.db import connection

from config.launcher.places import this_checkout
from config.launcher.processes import start_child, stop_children, wait_until
from config.launcher.services import postgres_spec

PORT = 6432
SESSIONS = 3
PATIENCE_SECONDS = 30.0
#: Each transaction gets the session that was idle longest, so that what a client believes to have
#: done to its session is met by others.
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
admin_users = pooler
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPooler:
    """A pooler of one test."""

    directory: Path
    name: str

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
def own_pooler(log: Path) -> Iterator[OwnPooler]:
    """Run a pooler before the test database."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "PgBouncer is not installed (Debian: pgbouncer)"
    spec = postgres_spec(this_checkout(), "test", os.environ)
    with tempfile.TemporaryDirectory(prefix="own-pooler-", dir=spec.home.parent) as home:
        directory = Path(home)
        pooler = OwnPooler(directory=directory, name=str(connection.settings_dict["NAME"]))
        settings = directory / "pgbouncer.ini"
        settings.write_text(
            SETTINGS.format(
                name=pooler.name,
                server=_server(),
                port=PORT,
                directory=directory,
                sessions=SESSIONS,
            )
        )
        directory.chmod(0o711)
        if spec.account is not None:  # it refuses to run as root
            owner = f"{spec.account.uid}:{spec.account.gid}"
            subprocess.run(["chown", "-R", owner, home], check=True)  # noqa: S603, S607 - ours
        child = start_child(
            "pgbouncer",
            [program, str(settings)],
            log=log,
            env={"PATH": os.environ["PATH"]},
            cwd=directory,
            account=spec.account,
        )
        try:
            assert wait_until(pooler.answers, PATIENCE_SECONDS), log.read_text(errors="replace")
            yield pooler
        finally:
            stop_children([child], ((2, PATIENCE_SECONDS),))


def _server() -> str:
    """Return where the test database is, as PgBouncer spells it."""
    database = connection.settings_dict
    parts = {
        "host": database["HOST"] or database["OPTIONS"].get("host", ""),
        "port": str(database["PORT"] or 5432),
        "dbname": database["NAME"],
        "user": database["USER"],
        "password": database["PASSWORD"],
    }
    return " ".join(f"{name}='{text}'" for name, text in parts.items() if text)
