"""PostgreSQL servers of one run, with their standbys: to be stopped, killed and promoted.

The exercise of switch-overs uses them, tests and benchmarks as well.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg

from config.launcher import servers
from config.launcher.places import this_checkout
from config.launcher.processes import (
    Child,
    processes_in,
    start_child,
    stop_children,
    stop_processes_in,
    wait_until,
)
from config.launcher.servers import ServerSpec
from config.launcher.services import create_database, postgres_spec
from config.launcher.terminal import LauncherError

DATABASE: Final = "headroom"
PATIENCE_SECONDS: Final = 60.0
_KILL: Final = ((signal.SIGKILL, 10.0),)


@dataclass(slots=True, kw_only=True)
class OwnPostgres:
    """A server whose data are gone with the run.

    Attributes:
        options: Options of the server that each start gives.
    """

    spec: ServerSpec
    options: dict[str, str] = field(default_factory=dict)
    child: Child | None = None

    @property
    def url(self) -> str:
        """The address of its database, as ``DATABASE_URL`` spells it."""
        return servers.url(self.spec, DATABASE)

    def start(self, **options: str) -> None:
        """Start it with these options of the server.

        Raises:
            LauncherError: it does not answer.
        """
        line = servers.command(self.spec)
        for name, text in {**self.options, **options}.items():
            line += ["-c", f"{name}={text}"]
        self.child = start_child(
            "postgres",
            line,
            log=self.spec.log,
            env=servers.server_environment(),
            cwd=self.spec.data,
            account=self.spec.account,
        )
        if not wait_until(lambda: servers.answers(self.spec), PATIENCE_SECONDS):
            raise LauncherError(f"PostgreSQL does not answer:\n{self.log()}")

    def stop(self) -> None:
        """Stop it at once; sessions are ended (SIGINT is PostgreSQL's fast shutdown)."""
        if self.child is not None:
            stop_children([self.child], servers.stop_signals(self.spec))
            self.child = None

    def kill(self) -> None:
        """Kill all its processes at once, as when its machine loses power."""
        for pid in processes_in(self.spec.data):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        stop_processes_in(self.spec.data, _KILL)
        if self.child is not None:
            self.child.process.wait()
            self.child = None

    @contextmanager
    def stopped(self, **options: str) -> Iterator[None]:
        """Stop it for a while; start it again with these options."""
        self.stop()
        try:
            yield
        finally:
            self.start(**options)

    @property
    def standby_signal(self) -> Path:
        """The file that makes it a standby, which takes no writes, at its next start."""
        return self.spec.data / "standby.signal"

    def copy_to(self, home: Path) -> OwnPostgres:
        """Copy the running server, as a base backup does, to be started as another one."""
        copy = OwnPostgres(spec=place_for_server(self.spec, home), options=dict(self.options))
        with self.connect() as link:
            link.execute("SELECT pg_backup_start('copy', true)")
            copy_files(self.spec.data, copy.spec.data)
            label = link.execute("SELECT labelfile FROM pg_backup_stop(false)").fetchone()
        copy_files(self.spec.data / "pg_wal", copy.spec.data / "pg_wal")
        own_label = copy.spec.data / "backup_label"
        own_label.write_text(str((label or ("",))[0]))
        if copy.spec.account is not None:
            os.chown(own_label, copy.spec.account.uid, copy.spec.account.gid)
        (copy.spec.data / "postmaster.pid").unlink()
        return copy

    def follow(self, primary: OwnPostgres) -> None:
        """Start it as a standby that streams from another server."""
        with (self.spec.data / "postgresql.auto.conf").open("a") as settings:
            host = primary.spec.sockets
            settings.write(f"primary_conninfo = 'host={host} user={servers.SUPERUSER}'\n")
        self.standby_signal.touch()
        self.start()

    def commit_on_standbys(self) -> None:
        """Answer a commit when a standby has it on its disk as well.

        Raises:
            LauncherError: no standby streams from it.
        """
        with self.connect() as link:
            link.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            link.execute("SELECT pg_reload_conf()")
            streaming = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            if not wait_until(lambda: bool(link.execute(streaming).fetchall()), PATIENCE_SECONDS):
                raise LauncherError(f"no standby streams:\n{self.log()}")

    def has_all_of(self, primary: OwnPostgres) -> bool:
        """Return whether this standby has replayed what was committed on the primary until now.

        Servers of tests commit asynchronously: a commit is in the WAL buffers before it is written.
        """
        with primary.connect() as there, self.connect() as here:
            written = there.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            row = here.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", written).fetchone()
        return bool(row and row[0])

    def lose_primary(self) -> None:
        """Let this standby receive nothing any more, as with a broken link.

        Raises:
            LauncherError: it goes on.
        """
        with self.connect() as link:
            link.execute("ALTER SYSTEM SET primary_conninfo = ''")
            link.execute("SELECT pg_reload_conf()")
            receivers = "SELECT count(*) FROM pg_stat_wal_receiver"
            if not wait_until(lambda: link.execute(receivers).fetchone() == (0,), PATIENCE_SECONDS):
                raise LauncherError(f"it receives still:\n{self.log()}")

    def promote(self) -> None:
        """Make this standby the primary, and wait until it is.

        Raises:
            LauncherError: it is not.
        """
        with self.connect() as link:
            if link.execute("SELECT pg_promote()").fetchone() != (True,):
                raise LauncherError(f"it was not promoted:\n{self.log()}")

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """Return a connection to its database."""
        return psycopg.connect(self.url, autocommit=True)

    def log(self) -> str:
        """Return the end of its log."""
        return self.spec.log.read_text(errors="replace")[-4000:]


def either(*several: OwnPostgres, attributes: str = "primary") -> str:
    """Return the address of whichever server is the primary."""
    hosts = quote(",".join(str(server.spec.sockets) for server in several), safe="/,")
    return f"{several[0].url.partition('?')[0]}?host={hosts}&target_session_attrs={attributes}"


def place_for_server(like: ServerSpec, home: Path) -> ServerSpec:
    """Describe a server in a directory of its own, and make what it needs there."""
    spec = replace(like, home=home, sockets=home / "s")
    home.chmod(0o711)
    spec.sockets.mkdir()
    if spec.account is not None:
        for made in (home, spec.sockets):
            shutil.chown(made, spec.account.uid)
    spec.log.touch()
    return spec


def copy_files(source: Path, target: Path) -> None:
    """Copy a directory with owners and modes; what is there already is replaced."""
    subprocess.run(["cp", "-aT", str(source), str(target)], check=True)  # noqa: S603, S607 - ours


@contextmanager
def standby_of(primary: OwnPostgres, directory: Path) -> Iterator[OwnPostgres]:
    """Run a standby that streams from a server; ``directory`` gets its log."""
    parent = primary.spec.home.parent
    with tempfile.TemporaryDirectory(prefix="own-pg-", dir=parent) as home:
        standby = primary.copy_to(Path(home))
        standby.spec = replace(standby.spec, log=directory / "standby.log")
        standby.spec.log.touch()
        standby.follow(primary)
        try:
            yield standby
        finally:
            standby.stop()


@contextmanager
def own_postgres(
    directory: Path,
    environ: Mapping[str, str],
    data: Path | None = None,
    *,
    is_durable: bool = False,
) -> Iterator[OwnPostgres]:
    """Run a server with an empty database; ``directory`` gets its log.

    Args:
        directory: A directory of this run.
        environ: Says which PostgreSQL it is, as for every test.
        data: Files of a server that is stopped, to begin with a copy of them.
        is_durable: Whether a commit is on disk before it is answered.
    """
    checkout = this_checkout()
    usual = replace(postgres_spec(checkout, "test", environ), durable=is_durable)
    with tempfile.TemporaryDirectory(prefix="own-pg-", dir=usual.home.parent) as home:
        spec = place_for_server(replace(usual, log=directory / "postgres.log"), Path(home))
        if data is not None:
            copy_files(data, spec.data)
        servers.prepare(spec)
        server = OwnPostgres(spec=spec)
        server.start()
        try:
            if data is None:
                create_database(checkout, server.url, DATABASE)
            yield server
        finally:
            server.stop()
