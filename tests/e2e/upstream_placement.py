"""A real openstack-placement with a PostgreSQL database of its own beside the test's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from benchmarks.placement_worlds import World, fill_reference
from config.launcher.demo import ADDRESS, choose_port
from config.launcher.peers import ensure_peer, start_reference
from config.launcher.places import this_checkout
from config.launcher.processes import Child, stop_children, wait_until
from placement.domain.transfer import Contents
from tests.e2e.placement_peers import MOUNT, PlacementServer, Request
from tests.e2e.processes import PATIENCE_SECONDS, database_url


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamPlacement:
    """It runs below the same path as ours.

    Attributes:
        database: Its address, as psycopg spells it.
    """

    port: int
    database: str
    directory: Path
    workers: int = 1
    children: list[Child] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}{MOUNT}"

    def fill(self, contents: Contents) -> None:
        """Replace all that it holds."""
        fill_reference(self.database, World(shape="", contents=contents, query="", hosts=()))

    def settings(self, **more: str) -> dict[str, str]:
        """Return the settings of a Headroom before it."""
        return {
            "HEADROOM_GATEWAY__UPSTREAM_URL": self.url,
            "HEADROOM_GATEWAY__TOKEN": "admin",
            **{f"HEADROOM_GATEWAY__{name.upper()}": text for name, text in more.items()},
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        child = start_reference(
            ensure_peer(this_checkout()),
            self.directory,
            port=self.port,
            database_url=self.database.replace("postgresql://", "postgresql+psycopg2://", 1),
            environ={"PATH": os.environ["PATH"]},
            workers=self.workers,
            threads=4,
            mount=MOUNT,
        )
        self.children.append(child)
        server = PlacementServer(port=self.port, prefix=MOUNT)

        def answers() -> bool:
            try:
                return server.send(Request(method="GET", path="/", minor=0)).status == 200
            except OSError:
                server.close()
                return False

        try:
            assert wait_until(answers, PATIENCE_SECONDS), child.log.read_text()[-2000:]
        finally:
            server.close()

    def kill(self) -> None:
        """Kill all of its processes at once; :meth:`start` starts it again."""
        child = self.children.pop()
        os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()


@contextmanager
def running_upstream(directory: Path, *, workers: int = 1) -> Iterator[UpstreamPlacement]:
    """Start it, and end it and its database afterwards."""
    ours = database_url()
    parts = urlsplit(ours)
    name = f"{parts.path.removeprefix('/')}_upstream"
    database = parts._replace(path=f"/{name}").geturl()
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(ours, autocommit=True) as link:
        link.execute(drop)
        link.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    running = UpstreamPlacement(
        port=choose_port(0), database=database, directory=directory, workers=workers
    )
    try:
        running.start()
        yield running
    finally:
        stop_children(running.children, ((15, 10.0),))
        with psycopg.connect(ours, autocommit=True) as link:
            link.execute(drop)
