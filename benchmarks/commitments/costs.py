"""What a piece of work costs."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.change_bench import database_cpu_seconds

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one piece of work.

    Attributes:
        seconds: By the clock.
        cpu_seconds: CPU of this process.
        database_cpu_seconds: CPU of its database backend; 0 where it cannot be read.
    """

    seconds: float
    cpu_seconds: float
    database_cpu_seconds: float


def cost_of(work: Callable[[], _Answer]) -> tuple[Cost, _Answer]:
    """Do some work and return what it cost and answered."""
    database_before, cpu_before = database_cpu_seconds(), time.process_time()
    before = time.perf_counter()
    answer = work()
    seconds = time.perf_counter() - before
    cost = Cost(
        seconds=seconds,
        cpu_seconds=time.process_time() - cpu_before,
        database_cpu_seconds=database_cpu_seconds() - database_before,
    )
    return cost, answer


def peak_gib() -> float:
    """Return the most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
