"""``./run serve worker`` takes all queues, each with processes of its own, and ends as a whole."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from config.celery_app import app
from config.launcher.places import this_checkout
from config.launcher.processes import start_child, stop_children, wait_until
from config.queues import QUEUES
from journal.models import Heartbeat
from tests.e2e.processes import PATIENCE_SECONDS, process_environment

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


def test_a_worker_of_each_queue_takes_its_tasks_and_all_end_together(tmp_path: Path) -> None:
    checkout = this_checkout()
    worker = start_child(
        "workers",
        [str(checkout.python), "run", "serve", "worker", "--without-mingle", "--without-gossip"],
        log=tmp_path / "workers.log",
        env=process_environment(tmp_path),
        cwd=checkout.root,
        death_signal=signal.SIGKILL,
    )
    try:
        for queue in QUEUES:
            app.send_task("journal.beat_queue", [queue], queue=queue, expires=120)
        assert wait_until(
            lambda: Heartbeat.objects.filter(name__startswith="queue:").count() == len(QUEUES),
            PATIENCE_SECONDS,
        ), worker.log.read_text()[-4000:]
    finally:
        stop_children([worker], ((signal.SIGTERM, PATIENCE_SECONDS),))
    assert worker.process.wait() == os.EX_OK, worker.log.read_text()[-4000:]
