"""A PostgreSQL server of one test, to be stopped, started and changed under our processes.

Migrating takes longer than most of these tests: it is done once in a session, and each server
begins with a copy of those files.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest

from config.launcher import servers
from config.launcher.places import this_checkout
from config.launcher.processes import Child, start_child, stop_children, wait_until
from config.launcher.servers import ServerSpec
from config.launcher.services import create_database, postgres_spec
from tests.e2e.processes import manage

DATABASE = "headroom"
REGION = Path(__file__).parents[1] / "data" / "mini-cloud-region.json"
PATIENCE_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class OwnPostgres:
    """A server whose data are gone with the test."""

    spec: ServerSpec
    options: dict[str, str] = field(default_factory=dict)
    child: Child | None = None

    @property
    def url(self) -> str:
        return servers.url(self.spec, DATABASE)

    def start(self, **options: str) -> None:
        """Start it with these options of the server."""
        line = servers.command(self.spec)
        for name, text in options.items():
            line += ["-c", f"{name}={text}"]
        self.child = start_child(
            "postgres",
            line,
            log=self.spec.log,
            env=servers.server_environment(),
            cwd=self.spec.data,
            account=self.spec.account,
        )
        assert wait_until(lambda: servers.answers(self.spec), PATIENCE_SECONDS), self.log()

    def stop(self) -> None:
        """Stop it at once; sessions are ended (SIGINT is PostgreSQL's fast shutdown)."""
        if self.child is not None:
            stop_children([self.child], servers.stop_signals(self.spec))
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
        copy = OwnPostgres(spec=place_for_server(self.spec, home))
        with self.connect() as link:
            link.execute("SELECT pg_backup_start('copy', true)")
            _copy_files(self.spec.data, copy.spec.data)
            label = link.execute("SELECT labelfile FROM pg_backup_stop(false)").fetchone()
        _copy_files(self.spec.data / "pg_wal", copy.spec.data / "pg_wal")
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

    def has_all_of(self, primary: OwnPostgres) -> bool:
        """Return whether this standby has replayed what was committed on the primary until now.

        Servers of tests commit asynchronously: a commit is in the WAL buffers before it is written.
        """
        with primary.connect() as there, self.connect() as here:
            written = there.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            row = here.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", written).fetchone()
        return bool(row and row[0])

    def lose_primary(self) -> None:
        """Let this standby receive nothing any more, as with a broken link."""
        with self.connect() as link:
            link.execute("ALTER SYSTEM SET primary_conninfo = ''")
            link.execute("SELECT pg_reload_conf()")
            receivers = "SELECT count(*) FROM pg_stat_wal_receiver"
            assert wait_until(
                lambda: link.execute(receivers).fetchone() == (0,), PATIENCE_SECONDS
            ), self.log()

    def promote(self) -> None:
        """Make this standby the primary, and wait until it is."""
        with self.connect() as link:
            assert link.execute("SELECT pg_promote()").fetchone() == (True,), self.log()

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.url, autocommit=True)

    def log(self) -> str:
        return self.spec.log.read_text(errors="replace")[-4000:]


def place_for_server(like: ServerSpec, home: Path) -> ServerSpec:
    """Describe a server in a directory of its own, and make what it needs there."""
    spec = replace(like, home=home, sockets=home / "s")
    home.chmod(0o711)
    spec.sockets.mkdir()
    if spec.account is not None:
        subprocess.run(  # noqa: S603 - ours
            ["chown", f"{spec.account.uid}", str(home), str(spec.sockets)],  # noqa: S607 - ours
            check=True,
        )
    spec.log.touch()
    return spec


def _copy_files(source: Path, target: Path) -> None:
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
    directory: Path, environ: Mapping[str, str], data: Path | None = None
) -> Iterator[OwnPostgres]:
    """Run a server with an empty database; ``directory`` gets its log.

    Args:
        directory: A directory of this test.
        environ: Says which PostgreSQL it is, as for every test.
        data: Files of a server that is stopped, to begin with a copy of them.
    """
    checkout = this_checkout()
    usual = postgres_spec(checkout, "test", environ)
    with tempfile.TemporaryDirectory(prefix="own-pg-", dir=usual.home.parent) as home:
        spec = place_for_server(replace(usual, log=directory / "postgres.log"), Path(home))
        if data is not None:
            _copy_files(data, spec.data)
        servers.prepare(spec)
        server = OwnPostgres(spec=spec)
        server.start()
        try:
            if data is None:
                create_database(checkout, server.url, DATABASE)
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of a server whose database is migrated and empty."""
    directory = tmp_path_factory.mktemp("migrated")
    with own_postgres(directory, os.environ) as server:
        manage(directory, "migrate", "--verbosity", "0", DATABASE_URL=server.url)
        server.stop()
        yield server.spec.data


@pytest.fixture(scope="session")
def with_region(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Path]:
    """The files of a server whose database has a region."""
    directory = tmp_path_factory.mktemp("with_region")
    with own_postgres(directory, os.environ, migrated) as server:
        manage(directory, "import_region", str(REGION), DATABASE_URL=server.url)
        server.stop()
        yield server.spec.data
