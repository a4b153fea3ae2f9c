"""Beat is told to end while it waits for an answer of the broker."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from config.launcher.processes import wait_until
from journal.clock import database_now
from journal.models import BeatEntry, Lease
from tests.e2e.own_redis import own_redis
from tests.e2e.processes import PATIENCE_SECONDS, Process

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

#: From the row that says that an entry is sent to the wait for the broker.
SEND_SECONDS = 0.3


def test_beat_ends_in_order_while_the_broker_hangs(tmp_path: Path) -> None:
    with own_redis(tmp_path, os.environ) as broker:
        beat = Process(role="beat", directory=tmp_path, overrides={"REDIS_URL": broker.url})
        beat.start()
        try:
            assert wait_until(lambda: bool(broker.messages("soon")), PATIENCE_SECONDS), beat.log()
            with broker.hung():
                sending = BeatEntry.objects.filter(last_run_at__gt=database_now())
                assert wait_until(sending.exists, PATIENCE_SECONDS), beat.log()
                threading.Event().wait(SEND_SECONDS)
                assert beat.stop() == 0, beat.log()
        finally:
            beat.end()
        assert "Traceback" not in beat.log()
        assert Lease.objects.get(name="beat").expires_at <= database_now()
