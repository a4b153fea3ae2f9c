"""What management commands show: tables, and progress bars on standard error for who watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.core.management.base import OutputWrapper
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

Advance = Callable[[int], None]
"""Called with how much was done since the last call."""


OUTPUT_COLUMNS = 200


def printing_to(output: OutputWrapper) -> Console:
    """Return what prints tables of a command; wide ones where no terminal says how wide it is."""
    is_watched = output.isatty()
    return Console(
        file=output,  # type: ignore[arg-type]  # OutputWrapper writes like a text file
        force_terminal=is_watched,
        width=None if is_watched else OUTPUT_COLUMNS,
        highlight=False,
        markup=False,
    )


def unwatched(_: int) -> None:
    """Take how much was done, for nobody."""


def progress_bars() -> Progress:
    """Return bars that are gone when they are closed; they show nothing but on a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


@contextmanager
def progress_bar(title: str, total: int | None = None, *, done: int = 0) -> Iterator[Advance]:
    """Show one bar.

    Args:
        title: What is being done.
        total: How much there is to do; None if nobody knows.
        done: How much of it was done before.

    Yields:
        What is to be called with how much was done.
    """
    with progress_bars() as bars:
        task = bars.add_task(title, total=total, completed=done)
        yield lambda count: bars.advance(task, count)


@contextmanager
def reading_bars() -> Iterator[Callable[[str, int | None, int], None]]:
    """Show a bar for each step; called with its name, its size if known, and how much was done."""
    with progress_bars() as bars:
        tasks: dict[str, TaskID] = {}

        def seen(step: str, total: int | None, done: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(f"reading {step}", total=total)
            bars.advance(tasks[step], done)

        yield seen


class StepBar:
    """The bar of the step under way; it moves to and fro until the step says how much there is."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._shown = bars.add_task("writing", total=None, start=False)

    def begin(self, name: str) -> None:
        """Show the next step in place of the last."""
        self._bars.remove_task(self._shown)
        self._shown = self._bars.add_task(name, total=None)

    def size(self, total: int) -> None:
        """Say how much there is to do."""
        self._bars.update(self._shown, total=total)

    def grow(self, count: int) -> None:
        """Say how much more was done."""
        self._bars.advance(self._shown, count)
