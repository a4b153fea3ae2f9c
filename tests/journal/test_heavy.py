"""Long computations: apart, with a deadline, few at once; their errors and answers come back."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from config.launcher.processes import is_alive
from journal import heavy
from journal.errors import InvalidInput
from journal.heavy import (
    ComputationTooLong,
    Length,
    TooManyComputations,
    computed_apart,
    heavy_question,
    most_at_once,
)
from journal.outages import as_unavailable

PATIENCE_SECONDS = 30.0
PRIORITY = {name: getattr(heavy, name) for name in ("NICENESS", "QUICK_SECONDS")}


@pytest.fixture(autouse=True)
def _yielding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute at the priority that other tests spare their computations."""
    for name, value in PRIORITY.items():
        monkeypatch.setattr(heavy, name, value)


def limited(settings: Any, **limits: float) -> None:
    heavy = settings.HEADROOM.heavy.model_copy(update=limits)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"heavy": heavy})


def test_answer_comes_back_whole() -> None:
    answer = os.urandom(3_000_000)
    assert computed_apart(lambda: answer + b"!") == answer + b"!"


def test_error_comes_back_with_its_facts() -> None:
    def refuse() -> bytes:
        raise InvalidInput("at: must not be in the past", field="at")

    with pytest.raises(InvalidInput) as refused:
        computed_apart(refuse)
    assert (refused.value.code, refused.value.facts) == ("invalid_input", {"field": "at"})


def test_what_never_ends_is_ended(settings: Any, tmp_path: Path) -> None:
    limited(settings, deadline_seconds=0.5)

    def for_ever() -> bytes:
        (tmp_path / "pid").write_text(str(os.getpid()))
        while True:
            pass

    with pytest.raises(ComputationTooLong) as late:
        computed_apart(for_ever)
    told = as_unavailable(late.value)
    assert told is not None
    assert int(told.headers["Retry-After"]) >= 1
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_child_that_dies_is_no_answer() -> None:
    def die() -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    with pytest.raises(ComputationTooLong, match="died"):
        computed_apart(die)


def test_child_has_no_file_of_its_parent_and_the_lowest_priority(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w"):
        numbers = computed_apart(
            lambda: ",".join(
                one.name for one in Path("/proc/self/fd").iterdir() if int(one.name) > 2
            ).encode()
        )
    assert len(numbers.split(b",")) <= 2  # the pipe, and the listing itself
    assert computed_apart(lambda: os.nice(0)) == 19


def test_long_computation_gets_idle_cores_only() -> None:
    def until_idle() -> bool:
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
        while os.sched_getscheduler(0) != os.SCHED_IDLE:
            pass
        return True

    assert computed_apart(until_idle)


def test_no_more_than_allowed_are_answered_at_once(settings: Any) -> None:
    limited(settings, most_at_once=2)
    begun, ends = [Event(), Event()], Event()

    def answer(number: int) -> None:
        with heavy_question():
            begun[number].set()
            ends.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(answer, number) for number in range(2)]
        assert all(event.wait(PATIENCE_SECONDS) for event in begun)
        with pytest.raises(TooManyComputations) as refused, heavy_question():
            pass
        assert int(refused.value.headers["Retry-After"]) >= 1
        with heavy_question(Length.SHORT):  # which have places of their own
            pass
        ends.set()
        assert all(answer.result(PATIENCE_SECONDS) is None for answer in answers)
    with heavy_question():
        pass


def test_processes_share_the_places_and_a_killed_one_gives_its_own_back(settings: Any) -> None:
    limited(settings, most_at_once=1)
    reading, writing = os.pipe()
    other = os.fork()
    if other == 0:
        with heavy_question():
            os.write(writing, b"!")
            signal.pause()
    assert os.read(reading, 1) == b"!"
    with pytest.raises(TooManyComputations), heavy_question():
        pass
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    with heavy_question():
        pass
    os.close(reading)
    os.close(writing)


def test_half_of_the_cores_is_for_questions_by_default(settings: Any) -> None:
    limited(settings, most_at_once=0)
    assert most_at_once() == max(1, len(os.sched_getaffinity(0)) // 2)
