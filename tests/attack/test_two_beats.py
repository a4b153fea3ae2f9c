"""Two beats at once, the acting one hung and killed: each run is sent once, by one of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from config.launcher.processes import wait_until
from journal.models import Lease
from tests.e2e.own_redis import OwnRedis, own_redis
from tests.e2e.processes import PATIENCE_SECONDS, Process

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

#: An entry that is sent every two seconds, and not besides when another beat begins to act.
OFTEN = "failover.replan_due"
LEAST_GAP_SECONDS = 1.8


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OwnRedis]:
    with own_redis(tmp_path, os.environ) as server:
        yield server


@pytest.fixture
def beats(transactional_db: None, tmp_path: Path, broker: OwnRedis) -> Iterator[list[Process]]:
    del transactional_db
    processes = []
    for name in ("first", "second"):
        place = tmp_path / name
        place.mkdir()
        overrides = {"REDIS_URL": broker.url}
        processes.append(Process(role="beat", directory=place, overrides=overrides))
    for process in processes:
        process.start()
    yield processes
    for process in processes:
        process.end()


def acting() -> tuple[int, int]:
    """Return the epoch of beat's lease and the process that has it; zeros for none."""
    lease = Lease.objects.filter(name="beat").first()
    return (0, 0) if lease is None else (lease.epoch, int(lease.holder.split(":")[1]))


def sent(broker: OwnRedis) -> list[datetime]:
    """Return when each run expires, which is when it was sent and a constant."""
    return [
        datetime.fromisoformat(message["expires"])
        for message in broker.messages("soon")
        if message["task"] == OFTEN
    ]


def test_each_run_is_sent_once_whoever_acts(beats: list[Process], broker: OwnRedis) -> None:
    assert wait_until(lambda: len(sent(broker)) >= 2, PATIENCE_SECONDS), beats[0].log()
    epoch, pid = acting()
    assert epoch == 1

    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: acting()[0] == 2, PATIENCE_SECONDS)
    before = len(sent(broker))
    os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: len(sent(broker)) >= before + 3, PATIENCE_SECONDS)
    assert acting()[0] == 2  # the one that was hung has noticed

    (other,) = [beat for beat in beats if beat.child and beat.child.process.pid != pid]
    other.kill()
    assert wait_until(lambda: acting()[0] == 3, PATIENCE_SECONDS)
    before = len(sent(broker))
    assert wait_until(lambda: len(sent(broker)) >= before + 2, PATIENCE_SECONDS)

    gaps = [(late - early).total_seconds() for early, late in pairwise(sent(broker))]
    assert min(gaps) > LEAST_GAP_SECONDS, gaps
