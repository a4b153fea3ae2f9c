"""A server of the agent's wire in this process, and an agent that speaks to it."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from headroom_host_agent.process.agent import Agent, Parts
from headroom_host_agent.process.settings import AgentSettings
from headroom_host_agent.provision.documents import document_of
from headroom_host_agent.provision.provisioners import Accounting, Provisioner
from headroom_host_agent.provision.signing.keys import key_id, sign, verify
from headroom_host_agent.provision.signing.v2 import (
    reservation_bytes,
    result_bytes,
    seal,
    unseal,
)
from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.provision.wire import Reservation
from headroom_host_agent.server.client import Address, Client
from headroom_host_agent.server.identity import Enrolled, Identity, new_identity, save_identity

from tests.agent.provision.workshop import Files, reservation
from tests.agent.resources.hosts import manager

SEED = bytes(range(32))
KEY = Ed25519PrivateKey.from_private_bytes(SEED).public_key().public_bytes_raw()
HOST = "4b6c8a4e-5a4f-4a53-9d0e-0f5b3c1d2e3f"
PATIENCE_SECONDS = 30.0
Answer = tuple[int, Mapping[str, object]]


def until(is_so: Callable[[], object], what: str = "it") -> None:
    """Wait for something that other threads bring about."""
    waiting = threading.Event()
    for _ in range(int(PATIENCE_SECONDS * 100)):
        if is_so():
            return
        waiting.wait(0.01)
    raise AssertionError(f"{what} never comes")


class Headroom:
    """Keeps one host's reservations, hands them out, takes what is told.

    Attributes:
        told: (what, document) in the order in which it came.
        kept: Path -> what was reported last.
        answers: Path -> an answer in place of the usual one.
        timeline: Of its history.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Reservation] = {}
        self.gone: dict[str, Reservation] = {}
        self.seq, self.epoch, self.timeline = 0, 1, "a"
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.beats: list[dict[str, Any]] = []
        self.polls: list[int] = []
        self.answers: dict[str, Answer] = {}
        self.kept: dict[str, dict[str, Any]] = {}
        self.agent_key, self.heartbeat_seconds, self.lease_seconds = b"", 0.1, 30.0
        self.forges = False
        self.commands: list[dict[str, str]] = []
        self.wanted_version: object = ""
        self.readiness = {"is_ready": True, "reason": "Ready", "message": ""}
        self.lock = threading.Condition()

    def assign(self, identity: str, kind: str = "file", **facts: Any) -> None:
        """Ask the agent for something, also again with other facts."""
        with self.lock:
            self.seq += 1
            row = reservation(identity, kind, seq=self.seq, fence_epoch=self.epoch)
            self.rows[identity] = replace(row, node_id=HOST, **facts)
            self.lock.notify_all()

    def fence(self) -> None:
        with self.lock:
            self.epoch += 1
            self.lock.notify_all()

    def said(self, identity: str) -> list[tuple[str, int]]:
        """Return (state, attempt) of all that was told of a reservation."""
        return [
            (one["state"], one["attempt"])
            for _, one in self.told
            if one["reservation_id"] == identity
        ]

    def sealed(self, row: Reservation) -> dict[str, object]:
        document = document_of(replace(row, fence_epoch=self.epoch))
        signature = sign(bytes(32) if self.forges else SEED, reservation_bytes(document))
        return seal(document, kid=key_id(KEY), signature=signature)

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Answer:
        if path in self.answers:
            return self.answers[path]
        if path == "/heartbeat":
            self.beats.append(body)
            return 200, self.keys()
        if path in ("/resources", "/stats", "/instances"):
            return self.reported(method, path, body)
        if path == "/reservations":
            return self.page(query)
        if path.startswith("/reservations/") and method == "GET":
            return self.one(path.removeprefix("/reservations/"))
        return self.result(path, body)

    def reported(self, method: str, path: str, body: Any) -> Answer:
        if method == "PATCH":
            return 409, {"error": {"code": "digest_mismatch", "message": ""}}
        self.kept[path] = body
        return 204, {}

    def keys(self) -> dict[str, object]:
        key = {"kid": key_id(KEY), "key": base64.b64encode(KEY).decode()}
        return {
            "heartbeat_s": self.heartbeat_seconds,
            "lease_ttl_s": self.lease_seconds,
            "server_time": datetime.now(UTC).isoformat(),
            "timeline": self.timeline,
            "wanted_version": self.wanted_version,
            "readiness": self.readiness,
            "commands": self.commands,
            "server_public_keys": [key],
        }

    def page(self, query: Mapping[str, str]) -> Answer:
        after, limit, wait = (int(query[name]) for name in ("from", "limit", "wait"))
        self.polls.append(after)
        epoch = self.epoch
        if after > self.seq:
            return 400, {"error": {"code": "bad_cursor", "message": ""}}
        until_time = time.monotonic() + min(wait, 20)
        while not (rows := self.after(after)) and epoch == self.epoch and after <= self.seq:
            left = until_time - time.monotonic()
            if left <= 0 or not self.lock.wait(left):
                break
        caught_up = len(rows) <= limit
        return 200, {
            "reservations": [self.sealed(row) for row in rows[:limit]],
            "last_id": self.seq if caught_up else rows[limit - 1].seq,
            "caught_up": caught_up,
            "fence_epoch": self.epoch,
            "timeline": self.timeline,
            "deployed": [row.id for row in rows[:limit] if self.is_deployed(row)],
        }

    def is_deployed(self, row: Reservation) -> bool:
        """Return whether the last that was told of an attempt is that it was made."""
        said = [state for state, attempt in self.said(row.id) if attempt == row.attempt]
        return not row.to_delete and said[-1:] == ["ok"]

    def after(self, number: int) -> list[Reservation]:
        rows = [row for row in self.rows.values() if row.seq > number]
        return sorted(rows, key=lambda row: row.seq)

    def one(self, identity: str) -> Answer:
        if identity in self.gone:
            error = {"code": "reservation_deleted", "message": ""}
            row = replace(self.gone[identity], to_delete=True)
            return 410, {"error": error, "tombstone": self.sealed(row)}
        if identity in self.rows:
            return 200, self.sealed(self.rows[identity])
        return 404, {"error": {"code": "no_such_reservation", "message": ""}}

    def result(self, path: str, body: Any) -> Answer:
        sealed = unseal(body)
        signed = result_bytes(sealed.document)
        assert verify(self.agent_key, sealed.signature, signed)
        self.told.append((path.rsplit("/", 1)[1], dict(sealed.document)))
        return 201, {}


@contextmanager
def served(headroom: Headroom) -> Iterator[str]:
    """Serve one and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            parts = urlsplit(self.path)
            size = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(size)
            path = parts.path.removeprefix(f"/hosts/v1/{HOST}")
            epoch = int(self.headers["X-Host-Epoch"])
            with headroom.lock:
                if epoch != headroom.epoch:
                    details = {"fence_epoch": headroom.epoch}
                    error = {"code": "stale_epoch", "message": "", "details": details}
                    status, document = 409, {"error": error}
                else:
                    status, document = headroom.answer(  # type: ignore[assignment]  # any document
                        self.command,
                        path,
                        dict(parse_qsl(parts.query)),
                        json.loads(content or b"null"),
                    )
            body = json.dumps(document).encode()
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(0 if status == 204 else len(body)))
            self.end_headers()
            if status != 204:
                with suppress(OSError):  # the agent cut it
                    self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_PATCH = answer  # noqa: N815  # the library's names

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


class Run:
    """An agent on a folder, in threads of this process."""

    def __init__(self, root: Path, url: str, headroom: Headroom, **settings: Any) -> None:
        self.folder = root / "var/lib/headroom"
        self.folder.mkdir(parents=True, exist_ok=True)
        (root / "files").mkdir(exist_ok=True)
        self.files = Files(root / "files")
        identity = replace(new_identity(), host_id=HOST, kid="k", fence_epoch=headroom.epoch)
        keys = {key_id(KEY): base64.b64encode(KEY).decode()}
        identity = replace(identity, kid=key_id(identity.public_key), server_keys=keys)
        self.identity: Identity = identity
        self.root, self.url, self.settings = root, url, settings
        headroom.agent_key = identity.public_key
        save_identity(self.folder, identity)
        self.agent = self.make()
        self.errors: list[Exception] = []

    def make(self, **parts: Any) -> Agent:
        store = SqliteStore(self.folder / "agent.sqlite")
        client = Client(Address(url=self.url))

        def before_epoch() -> None:
            store.begin_resync(ends_epoch=True)
            client.cut()

        provisioners: dict[str, Provisioner] = {"file": self.files, "accounting": Accounting()}
        known: dict[str, Any] = {
            "settings": AgentSettings(poll_interval_seconds=1, **self.settings),
            "folder": self.folder,
            "manager": manager(self.root),
            "client": client,
            "enrolled": Enrolled(self.folder, self.identity, before_epoch=before_epoch),
            "store": store,
            "provisioners": provisioners,
            "boot_id": "b",
        }
        return Agent(Parts(**(known | parts)))

    @contextmanager
    def running(self, *beside: Callable[[threading.Event], None]) -> Iterator[Agent]:
        def run() -> None:
            try:
                self.agent.run(*beside)
            except Exception as error:  # noqa: BLE001 - looked at by tests
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield self.agent
        finally:
            self.agent.stop.set()
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
