"""Reading many rows without the garbage collector looking through them again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
