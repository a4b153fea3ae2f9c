"""What an engine works with, and what it counts (spec hosts, B.8, B.15)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from headroom_host_agent.provision.provisioners import Provisioner
from headroom_host_agent.provision.sources import Source
from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.provision.units import Units
from headroom_host_agent.provision.wire import Reservation
from headroom_host_agent.resources.manager import Manager

JOB_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What runs on the host: units, and how many workloads of each type."""

    units: Units
    workloads: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What an engine works with.

    Attributes:
        data_dir: Of the agent; ``kept.json`` in it holds what provisioners must not forget.
        sign: Document of a result -> the message's body.
        now: Time of the server; None when unknown: nothing ends then.
        on_usage: Told what runs after each job that went well.
        cleanup: Called when all known work was handed out, and on request.
        job_seconds: After which a job is told to end and has failed.
        may_begin: Whether a reservation may be made now; one that may not stays stored, and is
            handed out again by ``take_up``.
        may_remove: Whether what has ended may be removed now.
        alive: Called by the loop at least every ten seconds, also during a job.
        on_job: Told type, seconds and whether it went well of each job.
    """

    host_id: str
    source: Source
    store: SqliteStore
    provisioners: Mapping[str, Provisioner]
    manager: Manager
    data_dir: Path
    sign: Callable[[Mapping[str, object]], bytes]
    now: Callable[[], datetime | None]
    on_usage: Callable[[Usage], None] = lambda _: None
    cleanup: Callable[[], None] = lambda: None
    job_seconds: float = JOB_SECONDS
    may_begin: Callable[[Reservation], bool] = lambda _: True
    may_remove: Callable[[], bool] = lambda: True
    alive: Callable[[], None] = lambda: None
    on_job: Callable[[str, float, bool], None] = lambda *_: None
    monotonic: Callable[[], float] = time.monotonic
