"""What a process keeps of rows is what its fingerprint stands for."""

import pytest
from django.db import connection

from core.process_cache import ProcessCache

pytestmark = pytest.mark.django_db


def set_mark(mark: str) -> None:
    """Let the fingerprint be another one, as a commit of somebody else does."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('headroom.test_mark', %s, false)", [mark])


def test_rows_that_changed_while_they_were_read_are_not_kept() -> None:
    """A reader with an older snapshot found the new rows under the old fingerprint."""
    loads: list[str] = []

    def load() -> str:
        if not loads:
            set_mark("new")
        loads.append("read before" if not loads else "read after")
        return loads[-1]

    cache = ProcessCache(
        "SELECT true, current_setting('headroom.test_mark')", load, reader="pipelines"
    )
    set_mark("old")
    assert cache.current() == "read before"
    set_mark("old")
    assert cache.current() == "read after"
    set_mark("new")
    assert cache.current() == "read after"
    assert cache.current() == "read after"
    assert loads == ["read before", "read after", "read after"]
