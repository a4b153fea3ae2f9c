"""A primary and its standby, to which a test switches over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.own_pooler import OwnPooler, own_pooler
from tests.e2e.own_postgres import OwnPostgres, either, own_postgres, standby_of
from tests.e2e.switch_load import seed

#: A pooler gives a session to each transaction; all that run at once have one.
SESSIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """A primary, filled for a load, and its standby.

    Attributes:
        pooler: None where the processes know both servers.
    """

    primary: OwnPostgres
    standby: OwnPostgres
    pooler: OwnPooler | None

    @property
    def url(self) -> str:
        """The address of the database for the processes."""
        return self.pooler.url if self.pooler else either(self.primary, self.standby)

    def promote(self) -> None:
        """Make the standby the primary, and lead there."""
        self.standby.promote()
        if self.pooler is not None:
            self.pooler.lead_to(self.standby)


@contextmanager
def switched(directory: Path, migrated: Path, *, is_pooled: bool) -> Iterator[Servers]:
    """Run them until the end of the block."""
    with ExitStack() as held:
        primary = held.enter_context(own_postgres(directory, os.environ, migrated, is_durable=True))
        standby = held.enter_context(standby_of(primary, directory))
        seed(directory, primary)
        pooler = None
        if is_pooled:
            log = directory / "pgbouncer.log"
            pooler = held.enter_context(own_pooler(log, primary, sessions=SESSIONS))
        yield Servers(primary=primary, standby=standby, pooler=pooler)
