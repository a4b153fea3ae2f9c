"""Many agents in one process: heartbeats and held polls as agents send them, with little CPU.

``python -m benchmarks.agents_fleet`` reads a :class:`Fleet` as JSON from its input, sends until the
time is over and writes what it saw as JSON. An agent waits a random part of an interval before it
begins, as hosts start at all times. Each heartbeat is a connection of its own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import secrets
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from headroom_host_agent.provision.signing.keys import key_id

from journal.collector import collect_rarely

ADDRESS = "127.0.0.1"
EMPTY = hashlib.sha256(b"").hexdigest()
POLL_SECONDS = 25
LINGER_SECONDS = 10
OK = range(200, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Who sends where, and for how long.

    Attributes:
        host_ids: One for each agent; its key is made of it.
        warm_seconds: Before anything is counted.
    """

    host_ids: tuple[str, ...]
    web_port: int
    poll_port: int
    heartbeat_seconds: float
    warm_seconds: float
    seconds: float


@dataclass(slots=True, kw_only=True)
class Seen:
    """What agents saw while it was counted; all times in seconds.

    Attributes:
        arrived: Id of a reservation -> when its agent had it.
    """

    heartbeats: list[float] = field(default_factory=list)
    polls: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    arrived: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0


def private_key(host_id: str) -> Ed25519PrivateKey:
    """Return the key of an agent of the benchmark: anybody can make it."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(host_id.encode()).digest())


class _Agent:
    def __init__(self, fleet: Fleet, host_id: str, seen: Seen, counts: Counter[str]) -> None:
        self._fleet, self._host_id, self._seen, self._counts = fleet, host_id, seen, counts
        self._key = private_key(host_id)
        self._kid = key_id(self._key.public_key().public_bytes_raw())
        self._run_id = str(uuid.uuid4())
        self._links: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.is_counted = False

    async def beat_on(self) -> None:
        interval_seconds = self._fleet.heartbeat_seconds
        path = f"/hosts/v1/{self._host_id}/heartbeat"
        body = json.dumps({
            "run_id": self._run_id, "boot_id": "b", "uptime_s": 1, "resynced": True,
        }).encode()  # fmt: skip
        await asyncio.sleep(random.random() * interval_seconds)  # noqa: S311
        while True:
            started = time.perf_counter()
            await self._send(self._fleet.web_port, "POST", path, "", body)
            if self.is_counted:
                self._seen.heartbeats.append(time.perf_counter() - started)
            await asyncio.sleep(interval_seconds * random.uniform(0.9, 1.0))  # noqa: S311

    async def poll_on(self) -> None:
        path, last = f"/hosts/v1/{self._host_id}/reservations", 0
        await asyncio.sleep(random.random() * self._fleet.heartbeat_seconds)  # noqa: S311
        while True:
            query = f"from={last}&limit=200&wait={POLL_SECONDS}"
            status, content = await self._send(self._fleet.poll_port, "GET", path, query, b"")
            if self.is_counted:
                self._seen.polls += 1
            if status not in OK:
                await asyncio.sleep(2)
                continue
            now = time.time()
            document = json.loads(content)
            for one in document["reservations"]:
                self._seen.arrived[one["id"]] = now
            last = document["last_id"]

    async def _send(
        self, port: int, method: str, path: str, query: str, body: bytes
    ) -> tuple[int, bytes]:
        head = self._head(method, path, query, body)
        try:
            reader, writer = await asyncio.open_connection(ADDRESS, port)
            try:
                writer.write(head + body)
                status, content = await _answer(reader)
            finally:
                writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            self._counts[type(error).__name__] += 1
            return 0, b""
        if self.is_counted:
            self._counts[f"{method} {status}"] += 1
        return status, content

    def _head(self, method: str, path: str, query: str, body: bytes) -> bytes:
        digest = hashlib.sha256(body).hexdigest() if body else EMPTY
        stamp, nonce = str(int(time.time())), secrets.token_hex(16)
        canonical = "&".join(sorted(query.split("&"))) if query else ""
        signed = "\n".join((
            "headroom/host-request/v1", method, path, canonical, digest, stamp, nonce,
            self._host_id, self._kid, "1",
        ))  # fmt: skip
        signature = base64.b64encode(self._key.sign(signed.encode())).decode()
        target = f"{path}?{query}" if query else path
        return (
            f"{method} {target} HTTP/1.1\r\nHost: {ADDRESS}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\nX-Host-Id: {self._host_id}\r\n"
            f"X-Host-Key: {self._kid}\r\nX-Host-Timestamp: {stamp}\r\nX-Host-Nonce: {nonce}\r\n"
            f"X-Host-Epoch: 1\r\nX-Host-Signature: {signature}\r\n\r\n"
        ).encode()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    place = head.find(b"content-length:")
    length = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
    return int(head[9:12]), await reader.readexactly(length)


async def send(fleet: Fleet) -> Seen:
    """Send until the time is over."""
    seen, counts = Seen(), Counter[str]()
    agents = [_Agent(fleet, host_id, seen, counts) for host_id in fleet.host_ids]
    tasks = [asyncio.create_task(work()) for one in agents for work in (one.beat_on, one.poll_on)]
    collect_rarely()  # what agents measure is no pause of their own
    await asyncio.sleep(fleet.warm_seconds)
    counts.clear()
    cpu = time.process_time()
    for one in agents:
        one.is_counted = True
    print("counting", flush=True)  # noqa: T201 - to who started this
    await asyncio.sleep(fleet.seconds)
    for one in agents:
        one.is_counted = False
    seen.cpu_seconds = time.process_time() - cpu
    seen.statuses = dict(counts)
    print("counted", flush=True)  # noqa: T201 - likewise
    await asyncio.sleep(LINGER_SECONDS)  # what is under way
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return seen


def fleet_of(document: Mapping[str, Any]) -> Fleet:
    """Return the fleet that JSON says."""
    return Fleet(**{**document, "host_ids": tuple(document["host_ids"])})


if __name__ == "__main__":
    found = asyncio.run(send(fleet_of(json.loads(sys.stdin.readline()))))
    print(json.dumps(asdict(found)), flush=True)  # noqa: T201 - the result
