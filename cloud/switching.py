"""Headroom's database switches over to its standby while Nova boots: no boot may fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cloud.api import Api
from cloud.layout import Layout
from cloud.postgres import OwnPostgres, either, own_postgres, standby_of
from cloud.processes import Processes
from cloud.said import said_since

Json = Any  # bodies keep the APIs' own shapes
FLAVOR: Final = "g_c2_m8"
SERVERS: Final = 32
_THREADS: Final = 4
_FIRST: Final = 6
"""Servers that run before the database goes away."""
_TRIED_AGAIN: Final = "Retriable status code 503"
"""What keystoneauth says in Nova's logs."""


@dataclass(slots=True)
class Databases:
    """Headroom's database and its standby, which change places."""

    primary: OwnPostgres
    standby: OwnPostgres

    @property
    def url(self) -> str:
        """The address that leads to whichever is the primary."""
        return either(self.primary, self.standby)

    def take_over(self) -> None:
        """Promote the standby, whose primary is gone."""
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary


@contextmanager
def databases(directory: Path, environ: Mapping[str, str]) -> Iterator[Databases]:
    """Run a database with a standby; ``directory`` gets their logs."""
    directory.mkdir(parents=True, exist_ok=True)
    with (
        own_postgres(directory, environ, is_durable=True) as primary,
        standby_of(primary, directory) as standby,
    ):
        yield Databases(primary, standby)


@dataclass(slots=True, kw_only=True)
class Switching:
    """A cloud that boots meanwhile.

    Attributes:
        servers: What was booted, as Nova described it last.
    """

    layout: Layout
    processes: Processes
    api: Api
    databases: Databases
    flavor: str
    image: str
    servers: list[Json] = field(default_factory=list)

    def boot_while(self, name: str, end: Callable[[], None]) -> str:
        """Boot servers one after another, and end the primary among them.

        Raises:
            CallError: One of them does not become ACTIVE.
        """
        before = self.tried_again()
        with ThreadPoolExecutor(_THREADS) as pool:
            boots = [pool.submit(self._boot, f"{name}-{number:02}") for number in range(SERVERS)]
            self.processes.wait("servers", lambda: sum(one.done() for one in boots) >= _FIRST)
            end()
            away_at = time.monotonic()
            self.processes.wait(
                "Nova to meet a database that is away", lambda: self.tried_again() > before
            )
            self.databases.take_over()
            seconds = time.monotonic() - away_at
            self.servers += [one.result() for one in boots]
        again = self.tried_again() - before
        return (
            f"{len(boots)} boots ACTIVE, the database away for {seconds:.1f} s, "
            f"{again} of Nova's calls sent again"
        )

    def tried_again(self) -> int:
        """Return how many calls of Nova were answered 503 and sent again."""
        logs = (*self.layout.logs.glob("nova-*.log"), *self.layout.logs.glob("compute-*.log"))
        return sum(_TRIED_AGAIN in line for log in logs for line in said_since(log))

    def _boot(self, name: str) -> Json:
        wanted = {"name": name, "flavorRef": self.flavor, "imageRef": self.image}
        return self.api.wait(self.api.boot(wanted), "ACTIVE")


def _planned(switching: Switching) -> str:
    return switching.boot_while("planned", switching.databases.primary.stop)


def _killed(switching: Switching) -> str:
    """Have the former primary follow; then kill the present one."""
    pair = switching.databases
    pair.standby.follow(pair.primary)
    pair.primary.commit_on_standbys()
    return switching.boot_while("killed", pair.primary.kill)


SWITCH_STEPS: Final[Mapping[str, Callable[[Switching], str]]] = {
    "boots, the database switches over": _planned,
    "boots, its primary is killed": _killed,
}
