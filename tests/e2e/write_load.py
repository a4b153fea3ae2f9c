"""Writes of allocations over several servers at once, and what they must have left behind."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from placement.domain.capacity import InventoryAmounts
from placement.domain.transfer import ConsumerRecord, Contents, ProviderRecord
from tests.e2e.placement_peers import MOUNT, TOKEN, PlacementServer, Reply, Request

PROJECT, USER = "bench-project", "bench-user"
REFUSED = 409


def make_cloud(hosts: int, consumers: int) -> Contents:
    """Return hosts with a NUMA cell each, and consumers that hold something of both."""
    providers: dict[str, ProviderRecord] = {}
    for number in range(hosts):
        root, cell = str(UUID(int=(1 << 100) + number * 2)), cell_of(number)
        providers[root] = ProviderRecord(
            uuid=root,
            name=f"host-{number}",
            inventories={"DISK_GB": InventoryAmounts(total=2_000_000)},
            aggregates=frozenset({str(UUID(int=(1 << 90) + number % 3))}),
        )
        providers[cell] = ProviderRecord(
            uuid=cell,
            name=f"host-{number}-cell",
            parent=root,
            inventories={"VCPU": InventoryAmounts(total=64_000, allocation_ratio=4.0)},
            traits=frozenset({"HW_NUMA_ROOT"}),
        )
    held = {str(UUID(int=(1 << 101) + number)): number % hosts for number in range(consumers)}
    return Contents(
        providers=providers,
        consumers={
            uuid: ConsumerRecord(
                uuid=uuid,
                project=PROJECT,
                user=USER,
                allocations={cell_of(host): {"VCPU": 1}, root_of(host): {"DISK_GB": 10}},
            )
            for uuid, host in held.items()
        },
    )


def root_of(host: int) -> str:
    return str(UUID(int=(1 << 100) + host * 2))


def cell_of(host: int) -> str:
    return str(UUID(int=(1 << 100) + host * 2 + 1))


@dataclass(slots=True)
class Writer:
    """Writes of one thread, each to a consumer of its own.

    Attributes:
        held: Consumer -> its generation and the host it is on, after every answer so far.
    """

    number: int
    hosts: int
    ports: Sequence[int]
    token: str
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    unexpected: list[tuple[Request, Reply]] = field(default_factory=list)
    slowest_seconds: float = 0.0
    made: int = 0

    def step(self, chance: random.Random) -> None:
        """Send one write, and believe its answer."""
        kind = chance.random()
        known = list(self.held)
        if not known or kind < 0.4:
            self._create(chance)
        elif kind < 0.7:
            self._move(chance.choice(known), chance)
        elif kind < 0.85:
            self._migrate(chance.choice(known), chance)
        else:
            consumer = chance.choice(known)
            if self._is_done("DELETE", f"/allocations/{consumer}", None):
                del self.held[consumer]

    def _create(self, chance: random.Random) -> None:
        consumer, host = self._new(), chance.randrange(self.hosts)
        if self._is_done("PUT", f"/allocations/{consumer}", claim(host, None)):
            self.held[consumer] = 1, host

    def _move(self, consumer: str, chance: random.Random) -> None:
        generation, _ = self.held[consumer]
        host = chance.randrange(self.hosts)
        if self._is_done("PUT", f"/allocations/{consumer}", claim(host, generation)):
            self.held[consumer] = generation + 1, host

    def _migrate(self, consumer: str, chance: random.Random) -> None:
        """Give what a consumer holds to another one, as Nova does when it migrates."""
        generation, host = self.held[consumer]
        other = self._new()
        body = {consumer: claim(None, generation), other: claim(host, None)}
        if self._is_done("POST", "/allocations", body):
            del self.held[consumer]
            self.held[other] = 1, host
        del chance

    def _new(self) -> str:
        self.made += 1
        return str(UUID(int=(1 << 102) + (self.number << 40) + self.made))

    def _is_done(self, method: str, path: str, body: Any) -> bool:
        port = self.ports[self.made % len(self.ports)]
        server = PlacementServer(port=port, prefix=MOUNT, token=self.token)
        request = Request(method=method, path=path, minor=36, body=body)
        began_at = time.monotonic()
        reply = server.send(request)
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began_at)
        server.close()
        self.statuses[reply.status] += 1
        if reply.status >= 300 and reply.status != REFUSED:
            self.unexpected.append((request, reply))
        return reply.status < 300


def claim(host: int | None, generation: int | None) -> dict[str, Any]:
    held = {} if host is None else {cell_of(host): ("VCPU", 1), root_of(host): ("DISK_GB", 10)}
    return {
        "allocations": {
            uuid: {"resources": {name: amount}} for uuid, (name, amount) in held.items()
        },
        "project_id": PROJECT,
        "user_id": USER,
        "consumer_generation": generation,
    }


@dataclass(slots=True)
class WriteLoad:
    """Several writers, until they are stopped.

    Attributes:
        rate: Writes a second of each writer; 0 for as fast as answers come.
        first: Number of the first writer; those of another load write other consumers.
    """

    ports: Sequence[int]
    hosts: int
    writers: int = 4
    rate: float = 0.0
    token: str = TOKEN
    first: int = 1
    _writers: list[Writer] = field(default_factory=list, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _went_on: threading.Condition = field(default_factory=threading.Condition, init=False)
    failures: list[BaseException] = field(default_factory=list, init=False)

    def __enter__(self) -> WriteLoad:
        self._writers = [
            Writer(number, self.hosts, self.ports, self.token)
            for number in range(self.first, self.first + self.writers)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(writer,)) for writer in self._writers
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Begin no more writes, and wait for those under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, writer: Writer) -> None:
        chance = random.Random(writer.number - self.first)  # noqa: S311 - a load that can be had again
        try:
            while not self._stop.is_set():
                began_at = time.monotonic()
                writer.step(chance)
                with self._went_on:
                    self._went_on.notify_all()
                if self.rate:
                    self._stop.wait(max(0.0, 1 / self.rate - (time.monotonic() - began_at)))
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.failures.append(error)
            with self._went_on:
                self._went_on.notify_all()

    def go_on(self, writes: int, patience_seconds: float = 60.0) -> None:
        """Wait until this many more writes were answered."""
        wanted = self.count + writes
        with self._went_on:
            assert self._went_on.wait_for(
                lambda: self.count >= wanted or self.failures, patience_seconds
            )
        assert not self.failures, self.failures

    @property
    def count(self) -> int:
        return sum(writer.statuses.total() for writer in self._writers)

    @property
    def statuses(self) -> Counter[int]:
        return sum((writer.statuses for writer in self._writers), Counter())

    @property
    def unexpected(self) -> list[tuple[Request, Reply]]:
        return [pair for writer in self._writers for pair in writer.unexpected]

    def forget_slowest(self) -> float:
        """Return how long the slowest write took since this was asked last."""
        slowest = max(writer.slowest_seconds for writer in self._writers)
        for writer in self._writers:
            writer.slowest_seconds = 0.0
        return slowest

    @property
    def held(self) -> dict[str, tuple[int, int]]:
        return {uuid: found for writer in self._writers for uuid, found in writer.held.items()}


def expected_consumers(cloud: Contents, load: WriteLoad) -> dict[str, ConsumerRecord]:
    """Return what consumers must hold in the end, generations included."""
    written = {
        uuid: ConsumerRecord(
            uuid=uuid,
            project=PROJECT,
            user=USER,
            generation=generation,
            allocations={cell_of(host): {"VCPU": 1}, root_of(host): {"DISK_GB": 10}},
        )
        for uuid, (generation, host) in load.held.items()
    }
    return {**cloud.consumers, **written}
