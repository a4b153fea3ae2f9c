"""What fails ``/livez``, and what does not."""

from __future__ import annotations

import os

import pytest

from config.server.board import Board, Row
from config.server.probes import Liveness

NOW, LIMIT = 1000.0, 120.0


def row(*, running: int = 8, moved_at: float = NOW, ticked_at: float = NOW) -> Row:
    return Row(pid=7, running=running, threads=8, moved_at=moved_at, ticked_at=ticked_at)


@pytest.mark.parametrize(
    ("shown", "trouble"),
    [
        pytest.param(row(running=0, moved_at=NOW - 9999), "", id="idle for long"),
        pytest.param(row(running=7, moved_at=NOW - 9999), "", id="one thread idle"),
        pytest.param(row(), "", id="busy and finishing"),
        pytest.param(row(moved_at=NOW - LIMIT), "", id="busy for as long as allowed"),
        pytest.param(row(moved_at=NOW - LIMIT - 1), "no thread has finished", id="stuck"),
        pytest.param(row(running=0, ticked_at=NOW - LIMIT - 1), "stands still", id="stopped"),
        pytest.param(row(moved_at=0, ticked_at=0), "", id="does not serve yet"),
    ],
)
def test_busy_alone_is_not_stuck(shown: Row, trouble: str) -> None:
    assert trouble in shown.trouble(NOW, LIMIT)
    assert bool(trouble) == bool(shown.trouble(NOW, LIMIT))


def test_every_worker_tells_of_every_other() -> None:
    board = Board()
    board.write(board.claim(), row())
    board.write(board.claim(), row(moved_at=NOW - LIMIT - 1))
    liveness = Liveness(board, supervisor=os.getppid(), stuck_seconds=LIMIT)
    assert len(liveness.troubles(NOW)) == 1


def test_worker_whose_supervisor_has_gone_says_so() -> None:
    """A supervisor forks a worker and ends; the worker is another's child from then on."""
    told, tell = os.pipe()
    supervisor = os.fork()
    if not supervisor:
        mine, lifeline = os.pipe()
        parent = os.getpid()
        if not os.fork():
            os.close(lifeline)
            liveness = Liveness(Board(), supervisor=parent, stuck_seconds=LIMIT)
            before = liveness.troubles(NOW)
            os.write(tell, b"ready|")
            os.read(mine, 1)  # until the supervisor has gone
            while os.getppid() == parent:
                os.sched_yield()
            os.write(tell, "|".join([*before, *liveness.troubles(NOW)]).encode())
            os._exit(0)
        os.read(told, 6)  # the worker has looked while we were there
        os._exit(0)
    os.waitpid(supervisor, 0)
    os.close(tell)
    assert os.read(told, 100) == b"the supervisor is gone"
    os.close(told)
