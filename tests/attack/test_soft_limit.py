"""A task at its soft time limit while its statement waits: the database is rid of it, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection, transaction

from config.celery_app import app
from config.launcher.processes import wait_until
from journal.models import Heartbeat
from tests.e2e.processes import PATIENCE_SECONDS, Worker, someone_waits_for_a_lock

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

#: Less than the deadlines of a worker's statements and locks, which would end it as well.
ENDED_SECONDS = 20.0


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    process = Worker(directory=tmp_path)
    process.start()
    yield process
    process.forget()


def test_soft_time_limit_ends_the_statement_and_the_worker_goes_on(worker: Worker) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE journal_heartbeat IN ACCESS EXCLUSIVE MODE")
        app.send_task("journal.beat", queue=worker.name, soft_time_limit=3, time_limit=60)
        assert wait_until(someone_waits_for_a_lock, PATIENCE_SECONDS), worker.log()
        assert wait_until(lambda: not someone_waits_for_a_lock(), ENDED_SECONDS), worker.log()
    assert not Heartbeat.objects.exists()
    worker.send("journal.beat")
    assert wait_until(Heartbeat.objects.exists, PATIENCE_SECONDS), worker.log()
    assert "SoftTimeLimitExceeded" in worker.log()
