"""What tests of several writers at once leave behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from config.celery_app import app
from journal import nudges


@pytest.fixture(autouse=True)
def _no_task_waits_for_workers_of_others() -> Iterator[None]:
    """Take back what the writers asked workers for, once the thread that asks is done."""
    yield
    nudges._sender._pool.submit(int).result()
    app.control.purge()
