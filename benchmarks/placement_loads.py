"""Loads on a Placement server: what they cost, in CPU of the server and in time of the client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from benchmarks.placement_servers import Connection, Target, cpu_seconds

#: A server that uses no CPU for so long is done; it goes on a little after its answer.
IDLE_SECONDS = 0.0002


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a load cost.

    Attributes:
        seconds: Per request, as the client saw it.
        wall_seconds: From the first request to the last answer.
        cpu_seconds: Of the server and its database sessions.
        statuses: How often each status came.
        bodies: The last answer of each client.
    """

    seconds: tuple[float, ...]
    wall_seconds: float
    cpu_seconds: float
    statuses: dict[int, int]
    bodies: tuple[bytes, ...]

    @property
    def done(self) -> int:
        """Requests that succeeded."""
        return sum(count for status, count in self.statuses.items() if status < 300)  # noqa: PLR2004 - HTTP

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per request that succeeded."""
        return self.cpu_seconds * 1000 / max(1, self.done)

    @property
    def per_second(self) -> float:
        """Requests that succeeded per second."""
        return self.done / self.wall_seconds


def run_load(target: Target, per_client: Sequence[Sequence[bytes]]) -> Load:
    """Send each client's requests one after another, all clients at once."""
    results: list[tuple[list[float], list[int], bytes]] = []

    def client(requests: Sequence[bytes]) -> None:
        link = Connection(target)
        seconds, statuses, body = [], [], b""
        for request in requests:
            before = time.perf_counter()
            status, body = link.send_bytes(request)
            seconds.append(time.perf_counter() - before)
            statuses.append(status)
        link.close()
        results.append((seconds, statuses, body))

    threads = [threading.Thread(target=client, args=(requests,)) for requests in per_client]
    cpu_before, before = target.cpu(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - before
    cpu_after = target.cpu()
    counted: dict[int, int] = {}
    for _, statuses, _ in results:
        for status in statuses:
            counted[status] = counted.get(status, 0) + 1
    return Load(
        seconds=tuple(each for seconds, _, _ in results for each in seconds),
        wall_seconds=wall,
        cpu_seconds=sum(spent - cpu_before.get(pid, 0.0) for pid, spent in cpu_after.items()),
        statuses=counted,
        bodies=tuple(body for _, _, body in results),
    )


Round = Callable[[int], Load]


def interleaved(rounds: int, *each: Round) -> list[Load]:
    """Run several kinds of load in turn, round by round; return one load for each kind.

    The kinds share whatever else the machine does meanwhile, so that their costs can be compared.

    Args:
        rounds: How often; of the CPU the median counts.
        each: Runs a load, given the number of the round.
    """
    found: list[list[Load]] = [[] for _ in each]
    for number in range(rounds):
        for loads, run in zip(found, each, strict=True):
            loads.append(run(number))
    return [merged(loads) for loads in found]


def merged(loads: Sequence[Load]) -> Load:
    """Return equal loads as one, with the median of their CPU and duration for each of them."""
    statuses: dict[int, int] = {}
    for load in loads:
        for status, count in load.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    return Load(
        seconds=tuple(one for load in loads for one in load.seconds),
        wall_seconds=median(load.wall_seconds for load in loads) * len(loads),
        cpu_seconds=median(load.cpu_seconds for load in loads) * len(loads),
        statuses=statuses,
        bodies=loads[-1].bodies,
    )


def reads_after_writes(
    links: Sequence[Connection], read: bytes, writes: Sequence[bytes], *, first: int = 0
) -> Load:
    """Send a write and then a read, again and again; what is returned is about the reads.

    Args:
        links: Connections to one server; the first one writes, all read in turn. They are of
            several worker processes, so about half of the reads come to one that did not write.
        read: The request to be measured, once per write.
        writes: Requests, each of which changes something.
        first: Number of the connection that reads first.

    Raises:
        RuntimeError: a write was refused.
    """
    target = links[0].target
    processes = [_Clock(pid) for pid in target.cpu()]
    seconds: list[float] = []
    statuses: dict[int, int] = {}
    spent, body, begun = 0.0, b"", time.perf_counter()
    for number, write in enumerate(writes):
        status, answer = links[0].send_bytes(write)
        if status >= 300:  # noqa: PLR2004 - HTTP
            raise RuntimeError(answer[:300])
        cpu_before, before = _cpu_when_idle(processes), time.perf_counter()
        status, body = links[(first + number) % len(links)].send_bytes(read)
        seconds.append(time.perf_counter() - before)
        spent += _cpu_when_idle(processes) - cpu_before
        statuses[status] = statuses.get(status, 0) + 1
    return Load(
        seconds=tuple(seconds),
        wall_seconds=time.perf_counter() - begun,
        cpu_seconds=spent,
        statuses=statuses,
        bodies=(body,),
    )


@dataclass(slots=True)
class _Clock:
    """CPU seconds of a process; of one that ended, such as an idle database session, the last."""

    pid: int
    known: float = 0.0

    def seconds(self) -> float:
        with suppress(OSError):
            self.known = cpu_seconds(self.pid)
        return self.known


def _cpu_when_idle(processes: Sequence[_Clock]) -> float:
    """Return the CPU seconds of some processes once these stay the same.

    Without sleeping: a processor that fell asleep, with other work's data in its caches, would make
    a small answer cost half as much again.
    """
    known, since = -1.0, 0.0
    while True:
        spent, now = sum(each.seconds() for each in processes), time.perf_counter()
        if spent != known:
            known, since = spent, now
        elif now - since > IDLE_SECONDS:
            return spent
