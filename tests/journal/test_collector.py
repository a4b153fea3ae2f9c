"""What the garbage collector is kept from."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from journal.collector import (
    MANY_ROWS,
    RARELY,
    collect_rarely,
    paused_collector,
    rare_collections,
    spare_what_is_loaded,
    spare_what_was_read,
)


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    assert gc.isenabled()
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.enable()
    gc.unfreeze()


def test_it_is_off_inside_and_on_again_afterwards() -> None:
    with paused_collector():
        assert not gc.isenabled()
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="x"), paused_collector():
        raise ValueError("x")
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    with paused_collector():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_whoever_overlaps_it_is_on_in_the_end() -> None:
    first, second = paused_collector(), paused_collector()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert gc.isenabled()


class Ring:
    """Refers to itself, so that only the collector finds that nothing else does."""

    def __init__(self) -> None:
        self.itself = self


def test_what_is_loaded_is_looked_at_no_more_and_what_comes_later_is() -> None:
    loaded = Ring()
    spare_what_is_loaded()
    assert not any(one is loaded for one in gc.get_objects())

    gone = weakref.ref(Ring())
    gc.collect()
    assert gone() is None


def test_what_is_held_for_long_is_not_looked_at_again_and_again() -> None:
    full: list[int] = []

    def count(phase: str, facts: dict[str, int]) -> None:
        if phase == "start" and facts["generation"] == 2:
            full.append(1)

    collect_rarely()
    gc.callbacks.append(count)
    try:
        held = [[number] for number in range(1_000_000)]
    finally:
        gc.callbacks.remove(count)

    assert (len(held), full) == (1_000_000, [])


def test_after_work_that_holds_many_things_the_collector_is_as_before() -> None:
    usual = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold() == RARELY
    assert gc.get_threshold() == usual


def test_what_is_kept_of_many_rows_is_not_looked_at_again() -> None:
    gc.unfreeze()
    spare_what_was_read(MANY_ROWS - 1)
    assert gc.get_freeze_count() == 0
    spare_what_was_read(MANY_ROWS)
    assert gc.get_freeze_count() > 0
