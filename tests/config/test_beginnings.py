"""What is begun while an application is loaded for forks waits for them (ADR 41)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from config.server import beginnings
from config.server.beginnings import begin_all, in_each_process, put_off_beginnings


@pytest.fixture(autouse=True)
def _nothing_waits() -> Iterator[None]:
    yield
    beginnings._waiting = None


def test_a_process_that_is_not_forked_begins_at_once() -> None:
    begun: list[str] = []
    in_each_process(lambda: begun.append("threads"))
    assert begun == ["threads"]
    begin_all()
    assert begun == ["threads"]


def test_a_forked_process_begins_what_waited_once_and_in_order() -> None:
    begun: list[str] = []
    put_off_beginnings()
    in_each_process(lambda: begun.append("first"))
    in_each_process(lambda: begun.append("second"))
    assert begun == []
    begin_all()
    begin_all()
    in_each_process(lambda: begun.append("later"))
    assert begun == ["first", "second", "later"]
