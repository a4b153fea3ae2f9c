"""``bench cutover``: a cloud moves to Headroom and back while it is written to.

A real openstack-placement is filled, and Headroom stands before it: web processes, a process that
follows, and the commands of an operator. The same writers send the same writes three times: while
nothing moves, while the cloud is copied and switched, and while it is rolled back. After each turn
both databases are compared by SQL alone, and with what the writers were told.

``bench cutover --parts``: hosts change sides one by one instead, and return, under the same load.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measures import Measure, measure
from benchmarks.placement_equality import held_by_consumer, what_differs
from benchmarks.placement_servers import (
    TOKEN,
    Target,
    make_reference_database,
    served_headroom,
    served_reference,
    warm,
)
from benchmarks.placement_worlds import OWN_TABLES, World, fill_reference
from config.launcher.demo import ADDRESS
from config.launcher.peers import ensure_peer
from config.launcher.places import this_checkout
from config.launcher.processes import start_child, stop_children
from config.launcher.production import serve_environment
from tests.e2e.write_load import WriteLoad, cell_of, make_cloud, root_of

MOST_HELD_MS = 1000.0
WARM_ROUNDS = 6
REFUSED = 409
READING = frozenset({"plan", "copy", "verify"})
PATIENCE_SECONDS = 600.0
CUTOVER_TABLES = (
    "placement_cutover",
    "placement_forwarded_write",
    "placement_copy_due",
    "placement_mirrored_write",
    "placement_write_fence",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much there is and how much is written.

    Attributes:
        hosts: Each is a root with one cell: two providers.
        consumers: Each holds something of both providers of a host.
        writers: Threads.
        rate: Writes a second of each.
        seconds: How long each part lasts beyond the commands in it.
        alone: Hosts that change sides by a command of their own.
        together: Hosts that do by one command.
    """

    hosts: int
    consumers: int
    writers: int
    rate: float
    seconds: float
    alone: int
    together: int


QUICK = Scale(hosts=50, consumers=500, writers=4, rate=1.0, seconds=3.0, alone=1, together=3)
FULL = Scale(hosts=500, consumers=10_000, writers=10, rate=5.0, seconds=60.0, alone=10, together=10)


@dataclass(slots=True)
class Part:
    """What writers met during one part."""

    name: str
    seconds: float = 0.0
    writes: int = 0
    conflicts: int = 0
    failed: int = 0
    slowest_ms: float = 0.0

    @property
    def rate(self) -> float:
        """Writes a second."""
        return self.writes / self.seconds

    @property
    def conflicts_per_1000(self) -> float:
        """How many of a thousand writes were 409."""
        return 1000 * self.conflicts / max(1, self.writes)


@dataclass(slots=True)
class Move:
    """A cloud, the servers before it, and what its writers were told."""

    scale: Scale
    reference: Target
    gateway: Target
    environ: dict[str, str]
    held: dict[str, tuple[int, int]]
    loads: int = 0

    @contextmanager
    def writing(self, part: Part) -> Iterator[WriteLoad]:
        """Let writers write during the block."""
        load = WriteLoad(
            [self.gateway.port],
            self.scale.hosts,
            writers=self.scale.writers,
            rate=self.scale.rate,
            token=TOKEN,
            first=1 + self.loads * self.scale.writers,
        )
        self.loads += 1
        began_at = time.monotonic()
        with load:
            yield load
            part.seconds = time.monotonic() - began_at
        if load.failures:
            raise RuntimeError(load.failures[0])
        part.writes = load.count
        part.conflicts = load.statuses[REFUSED]
        part.failed = len(load.unexpected)
        part.slowest_ms = load.forget_slowest() * 1000
        self.held |= load.held

    def step(self, name: str, *arguments: str) -> dict[str, Any]:  # Any: JSON
        """Run a step of the command as an operator does, reading the other side's database.

        Raises:
            RuntimeError: it failed.
        """
        checkout = this_checkout()
        command = [str(checkout.python), "manage.py", "placement_cutover", name, "--json"]
        command += ["--from-database", self.reference.conninfo] if name in READING else []
        command += arguments
        began_at = time.monotonic()
        done = subprocess.run(  # noqa: S603 - ours
            command,
            cwd=checkout.root,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        took = time.monotonic() - began_at
        print(f"{name}: {took:.1f} s", file=sys.stderr)  # noqa: T201 - of a command
        return {**json.loads(done.stdout.strip().splitlines()[-1]), "took": took}

    def differences(self) -> list[str]:
        """Return what differs between both databases, or from what the writers were told."""
        found = what_differs(self.reference.conninfo, self.gateway.conninfo)
        there = held_by_consumer(self.reference.conninfo)
        told = {
            uuid: (generation, frozenset({cell_of(host), root_of(host)}))
            for uuid, (generation, host) in self.held.items()
        }
        ended = {uuid: told.get(uuid) for uuid in told.keys() | there.keys()}
        found += [
            f"consumer {uuid}: told {wanted}, held {there.get(uuid)}"
            for uuid, wanted in sorted(ended.items())
            if wanted != there.get(uuid)
        ]
        return found


def run(*, is_quick: bool) -> list[Measure]:
    """Move a cloud and bring it back, both under load."""
    scale = QUICK if is_quick else FULL
    with _prepared(scale) as move:
        alone = Part("without a move")
        with move.writing(alone):
            time.sleep(scale.seconds)

        there = Part("while it moves")
        with move.writing(there) as load, _following(move):
            move.step("plan")
            copied = move.step("copy")
            verified = move.step("verify")
            load.forget_slowest()
            switched = move.step("switch")
            held_write_ms = load.forget_slowest() * 1000
            time.sleep(scale.seconds)
        move.step("verify")
        after_switch = move.differences()

        back = Part("while it returns")
        with move.writing(back) as load, _following(move):
            time.sleep(scale.seconds / 2)
            load.forget_slowest()
            returned = move.step("rollback")
            held_back_ms = load.forget_slowest() * 1000
            time.sleep(scale.seconds / 2)
        move.step("verify")
        after_return = move.differences()

    size = f"{2 * scale.hosts} providers, {2 * scale.consumers} allocations"
    rows = [measure(f"writes a second {alone.name}", size, alone.rate, "/s")]
    rows += [*_writes(there, alone, size), *_writes(back, alone, size)]
    rows += [
        measure("copying", size, copied["seconds"], "s"),
        measure("verifying", size, verified["took"], "s"),
        measure("writes held by switch", size, switched["held_ms"], "ms", at_most=MOST_HELD_MS),
        measure("tries of switch", size, switched["attempts"], ""),
        measure(
            "slowest write during switch", size, held_write_ms, "ms", baseline=alone.slowest_ms
        ),
        measure("writes held by rollback", size, returned["held_ms"], "ms", at_most=MOST_HELD_MS),
        measure("tries of rollback", size, returned["attempts"], ""),
        measure(
            "slowest write during rollback", size, held_back_ms, "ms", baseline=alone.slowest_ms
        ),
        measure("rows that differ after switch", size, len(after_switch), "", at_most=0),
        measure("rows that differ after rollback", size, len(after_return), "", at_most=0),
    ]
    for line in (*after_switch[:5], *after_return[:5]):
        print(line)  # noqa: T201 - of a command
    return rows


def run_parts(*, is_quick: bool) -> list[Measure]:
    """Let hosts change sides one by one, and return, both under load."""
    scale = QUICK if is_quick else FULL
    named = [("--host", f"host-{number}") for number in range(scale.alone + scale.together)]
    one_by_one = named[: scale.alone]
    together = [word for host in named[scale.alone :] for word in host]
    with _prepared(scale) as move:
        alone = Part("without a move")
        with move.writing(alone):
            time.sleep(scale.seconds)

        there = Part("while hosts become ours")
        with move.writing(there) as load, _following(move):
            move.step("copy")
            load.forget_slowest()
            turned = [move.step("switch", *host) for host in one_by_one]
            turned.append(move.step("switch", *together))
            slowest_there_ms = load.forget_slowest() * 1000
            time.sleep(scale.seconds)
        move.step("verify")
        after_switch = move.differences()

        back = Part("while they return")
        with move.writing(back) as load, _following(move):
            time.sleep(scale.seconds / 2)
            load.forget_slowest()
            returned = [move.step("rollback", *host) for host in one_by_one]
            returned.append(move.step("rollback"))
            slowest_back_ms = load.forget_slowest() * 1000
            time.sleep(scale.seconds / 2)
        move.step("verify")
        after_return = move.differences()

    size = f"{2 * scale.hosts} providers, {2 * scale.consumers} allocations"
    rows = [measure(f"writes a second {alone.name}", size, alone.rate, "/s")]
    for part, turns, slowest_ms in (
        (there, turned, slowest_there_ms),
        (back, returned, slowest_back_ms),
    ):
        rows += [
            *_writes(part, alone, size),
            measure(f"hosts that turned {part.name}", size, _sum(turns, "turned"), ""),
            measure(f"tries {part.name}", size, _sum(turns, "attempts"), ""),
            measure(
                f"writes held at the longest {part.name}",
                size,
                max(one["held_ms"] for one in turns),
                "ms",
                at_most=MOST_HELD_MS,
            ),
            measure(
                f"slowest write {part.name}", size, slowest_ms, "ms", baseline=alone.slowest_ms
            ),
        ]
    rows += [
        measure(
            "rows that differ with hosts on both sides", size, len(after_switch), "", at_most=0
        ),
        measure("rows that differ after all returned", size, len(after_return), "", at_most=0),
    ]
    for line in (*after_switch[:5], *after_return[:5]):
        print(line)  # noqa: T201 - of a command
    return rows


def _sum(turns: list[dict[str, Any]], name: str) -> int:  # Any: JSON
    return sum(int(one[name]) for one in turns)


@contextmanager
def _prepared(scale: Scale) -> Iterator[Move]:
    _forget_all()
    cloud = make_cloud(scale.hosts, scale.consumers)
    hosts = {root_of(host): host for host in range(scale.hosts)}
    make_reference_database()
    with ExitStack() as held:
        reference = held.enter_context(served_reference(ensure_peer(this_checkout())))
        fill_reference(reference.conninfo, World(shape="", contents=cloud, query="", hosts=()))
        settings = {
            "GATEWAY__UPSTREAM_URL": f"http://{ADDRESS}:{reference.port}",
            "GATEWAY__TOKEN": TOKEN,
            "PLACEMENT__HOST_PROVIDERS": "false",
        }
        gateway = held.enter_context(served_headroom(**settings))
        for _ in range(WARM_ROUNDS):
            warm(gateway, ["/resource_providers?name=host-1", "/traits"])
        named = {f"HEADROOM_{name}": text for name, text in settings.items()}
        yield Move(
            scale=scale,
            reference=reference,
            gateway=gateway,
            environ=serve_environment({**os.environ, **named}),
            held={
                uuid: (record.generation, host)
                for uuid, record in cloud.consumers.items()
                for host in (hosts[min(record.allocations)],)
            },
        )
    _forget_all()


@contextmanager
def _following(move: Move) -> Iterator[None]:
    """Do what a worker does, in a process of its own."""
    checkout = this_checkout()
    with tempfile.TemporaryDirectory(prefix="follow-") as directory:
        child = start_child(
            "follow",
            [str(checkout.python), "manage.py", "placement_cutover", "follow"],
            log=Path(directory) / "follow.log",
            env=move.environ,
            cwd=checkout.root,
        )
        try:
            yield
        finally:
            stop_children([child], ((signal.SIGINT, 30.0), (signal.SIGKILL, 10.0)))


def _forget_all() -> None:
    from django.db import connection  # noqa: PLC0415 - with the settings of the benchmark

    with connection.cursor() as cursor:
        tables = ", ".join((*OWN_TABLES, *CUTOVER_TABLES))
        cursor.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE")


def _writes(part: Part, alone: Part, size: str) -> list[Measure]:
    """Return how writes fared during a part, beside the same load while nothing moves."""
    return [
        measure(f"writes a second {part.name}", size, part.rate, "/s", baseline=alone.rate),
        measure(f"writes {part.name}", size, part.writes, ""),
        measure(f"failed writes {part.name}", size, part.failed, "", at_most=0),
        measure(
            f"409 in 1,000 writes {part.name}",
            size,
            part.conflicts_per_1000,
            "",
            baseline=alone.conflicts_per_1000,
        ),
    ]
