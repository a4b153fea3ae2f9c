"""A Redis server of one test, to be stopped and woken under our processes."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from config.launcher.binaries import find_redis
from config.launcher.places import this_checkout
from config.launcher.processes import Child, start_child, stop_children, wait_until
from config.launcher.servers import server_environment

PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRedis:
    """A server whose data are gone with the test."""

    socket: Path
    child: Child

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Let it take connections and answer nothing for a while."""
        os.kill(self.child.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.child.process.pid, signal.SIGCONT)

    def messages(self, queue: str) -> list[dict[str, Any]]:
        """Return the headers of the task messages that wait in a queue, the oldest first."""
        waiting = redis.Redis.from_url(self.url).lrange(queue, 0, -1)
        return [json.loads(message)["headers"] for message in reversed(waiting)]


@contextmanager
def own_redis(directory: Path, environ: Mapping[str, str]) -> Iterator[OwnRedis]:
    """Run a server; ``directory`` gets its log."""
    with tempfile.TemporaryDirectory(prefix="own-redis-") as home:
        socket = Path(home) / "redis.sock"
        program = find_redis(this_checkout(), environ)
        line = [str(program), "--port", "0", "--unixsocket", str(socket), "--save", ""]
        child = start_child(
            "redis",
            line,
            log=directory / "redis.log",
            env=server_environment(),
            cwd=Path(home),
            death_signal=signal.SIGKILL,
        )
        try:
            assert wait_until(socket.exists, PATIENCE_SECONDS)
            yield OwnRedis(socket=socket, child=child)
        finally:
            stop_children([child], ())
