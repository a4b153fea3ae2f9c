"""Memory: the cyclic collector kept from looking at the same objects, and room given back."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Of fewer rows that stay, a full collection costs less than what it takes to spare them.
MANY_ROWS: Final = 10_000
#: Objects until the young are looked at, then how often until the next generation is.
RARELY: Final = (10_000, 20, 100)

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the cyclic garbage collector while rows are read into columns.

    Rows are tuples of numbers and texts: they form no cycles and go as soon as nothing refers to
    them, yet a collection looks at each of them. Threads may overlap: the collector is on again
    once the first that found it on is done.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def spare_what_is_loaded() -> None:
    """Let the collector never look again at what this process has loaded until now.

    Modules, models and settings stay as long as a server does. A full collection looks at some
    hundred thousand of them, which takes a tenth of a second in which no request goes on.
    """
    gc.collect()
    gc.freeze()


def spare_what_was_read(rows: int) -> None:
    """Let the collector never look again at what a process keeps of many rows it has read.

    What came after the start of a web process would be looked at every few requests: a fifth of a
    second each time, for the reservations of 100,000 hosts.
    """
    if rows >= MANY_ROWS:
        spare_what_is_loaded()


def collect_rarely() -> None:
    """Have the collector bear with a process that holds many things for some seconds.

    Polls that are held, the rows of a zone that is planned and the table of hosts outlive the young
    generations, so that by the usual bounds all of them were looked at every few seconds: tenths of
    a second in which nobody is answered, a quarter of the CPU of an import, every fourth change
    request at 100,000 hosts three times as long. A full collection comes with 20 million new
    objects instead.
    """
    spare_what_is_loaded()
    gc.set_threshold(*RARELY)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect as rarely until the end of the block, in a process that lives on for other work."""
    usual = gc.get_threshold()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def give_memory_back() -> None:
    """Give the operating system what nothing uses any more, after very much was in memory for once.

    The allocator would keep it for whatever comes, each thread for itself.
    """
    if _TRIM is not None:
        _TRIM(0)
