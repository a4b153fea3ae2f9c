"""An engine with a store in a folder, and provisioners that make files there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headroom_host_agent.provision.data import Field
from headroom_host_agent.provision.engine import Engine
from headroom_host_agent.provision.options import EngineOptions
from headroom_host_agent.provision.provisioners import Accounting, HostContext, ProvisionError
from headroom_host_agent.provision.signing.v2 import canonical_json
from headroom_host_agent.provision.sources import LAST, Emit, Job, Source
from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.provision.stored import Artifact
from headroom_host_agent.provision.units import Units
from headroom_host_agent.provision.wire import NEVER_NS, Reservation

from tests.agent.resources.hosts import manager

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GIB = 1024**3


def reservation(identity: str, kind: str = "file", **facts: Any) -> Reservation:
    # Any: fields of the dataclass
    known: dict[str, Any] = {
        "node_id": "host",
        "user_id": "user",
        "created": NOW - timedelta(minutes=1),
        "duration_ns": NEVER_NS,
        "data": b"{}",
    }
    return Reservation(id=identity, type=kind, **(known | facts))


@dataclass
class Files:
    """Makes a file of each reservation; ``before`` runs in the middle of it."""

    folder: Path
    order: int = 100
    persistent: bool = False
    parallel: bool = False
    data_schema: Mapping[str, Field] | None = None
    before: Callable[[HostContext, Reservation], object] = lambda _, __: None
    fails_to_remove: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    def units(self, reservation: Reservation) -> Units:
        return Units(
            cru=reservation.resources.get("cpu", 0), mru=reservation.resources.get("memory", 0)
        )

    def check(self, context: HostContext, reservation: Reservation) -> None:
        pass

    def provision(self, context: HostContext, reservation: Reservation) -> Mapping[str, object]:
        self.calls.append(f"make {context.identity}")
        context.intend("file", context.identity)
        (self.folder / context.identity).write_bytes(reservation.data)
        self.before(context, reservation)
        return {"file": context.identity}

    def verify(self, context: HostContext, reservation: Reservation) -> bool:
        return (self.folder / context.identity).exists()

    def decommission(self, context: HostContext, reservation: Reservation) -> None:
        self.calls.append(f"remove {context.identity}")
        if context.identity in self.fails_to_remove:
            raise ProvisionError("in_use", f"{context.identity} is in use")
        (self.folder / context.identity).unlink(missing_ok=True)

    def artifacts(self, context: HostContext) -> Iterable[tuple[str, str]]:
        return [("file", path.name) for path in self.folder.iterdir()]

    def in_use(self, artifact: Artifact) -> bool:
        return artifact.name in self.fails_to_remove

    def remove(self, artifact: Artifact) -> None:
        (self.folder / artifact.name).unlink(missing_ok=True)


class Once:
    """Emits jobs and closes."""

    def __init__(self, *jobs: Reservation | Job) -> None:
        self.jobs = jobs

    def run(self, stop: threading.Event, emit: Emit) -> None:
        for job in self.jobs:
            emit(job if isinstance(job, Job) else Job(reservation=job))


class Workshop:
    """One host's engine; ``says`` what waits to be told."""

    def __init__(self, folder: Path, **options: Any) -> None:  # Any: fields of the options
        self.files = Files(folder / "files", **options.pop("files", {}))
        self.files.folder.mkdir(exist_ok=True)
        self.store = SqliteStore(folder / "agent.sqlite")
        self.now: datetime | None = NOW
        self.root = folder
        self.options: dict[str, Any] = options
        self.engine = self.engine_for(Once())

    def engine_for(self, source: Source) -> Engine:
        known: dict[str, Any] = {
            "host_id": "host",
            "provisioners": {"file": self.files, "accounting": Accounting()},
            "manager": manager(self.root),
            "data_dir": self.root,
            "sign": canonical_json,
            "now": lambda: self.now,
        }
        return Engine(EngineOptions(source=source, store=self.store, **(known | self.options)))

    def run(self, *jobs: Reservation | Job) -> None:
        """Run an engine over jobs, all known work handed out."""
        self.engine_for(Once(*jobs, LAST)).run(threading.Event())

    def says(self) -> list[tuple[str, str, str]]:
        """Take and return (key, state, error) of each message in the order of delivery."""
        said = []
        while (message := self.store.next_message()) is not None:
            document = json.loads(message.body)
            said.append((message.key, document["state"], document["error"]))
            self.store.told(message)
        return said

    def made(self) -> list[str]:
        """Return the names of files that are there."""
        return sorted(path.name for path in self.files.folder.iterdir())
