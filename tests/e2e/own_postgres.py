"""A PostgreSQL server of one test, to be stopped, started and changed under our processes."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg

from config.launcher import servers
from config.launcher.places import this_checkout
from config.launcher.processes import Child, start_child, stop_children, wait_until
from config.launcher.servers import ServerSpec
from config.launcher.services import create_database, postgres_spec

DATABASE = "headroom"
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

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.url, autocommit=True)

    def log(self) -> str:
        return self.spec.log.read_text(errors="replace")[-4000:]


@contextmanager
def own_postgres(directory: Path, environ: Mapping[str, str]) -> Iterator[OwnPostgres]:
    """Run a server with an empty database; ``directory`` gets its log."""
    checkout = this_checkout()
    usual = postgres_spec(checkout, "test", environ)
    with tempfile.TemporaryDirectory(prefix="own-pg-", dir=usual.home.parent) as home:
        sockets = Path(home) / "s"
        places = {"home": Path(home), "sockets": sockets, "log": directory / "postgres.log"}
        spec = replace(usual, **places)  # type: ignore[arg-type]  # all are paths
        Path(home).chmod(0o711)
        sockets.mkdir()
        if spec.account is not None:
            subprocess.run(["chown", f"{spec.account.uid}", home, str(sockets)], check=True)  # noqa: S603, S607 - ours
        spec.log.touch()
        servers.prepare(spec)
        server = OwnPostgres(spec=spec)
        server.start()
        try:
            create_database(checkout, server.url, DATABASE)
            yield server
        finally:
            server.stop()
