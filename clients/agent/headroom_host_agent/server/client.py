"""Signed requests to Headroom, by a clock that the server corrects (spec hosts, D.4 to D.9)."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from headroom_host_agent import VERSION
from headroom_host_agent.provision.signing.keys import key_id, sign
from headroom_host_agent.provision.signing.v2 import (
    SignedRequest,
    canonical_query,
    enrolment_bytes,
    request_bytes,
    rotation_bytes,
)
from headroom_host_agent.server.identity import Identity
from headroom_host_agent.server.trust import trusted_keys

TIMEOUT_SECONDS = 30.0
_MOST_ANSWER_BYTES = 4 * 1024**2
_SUCCESS = range(200, 300)
_SAMPLES = 8
_LONGEST_RETRY_SECONDS = 300.0


class ServerError(Exception):
    """The server was not reached, or its answer is none.

    Attributes:
        retry_after_seconds: When the server wants to be asked again, None when it does not say.
    """

    retry_after_seconds: float | None = None


class RefusedError(Exception):
    """The server refuses; ``code`` is its word for why.

    Attributes:
        retry_after_seconds: As of ``ServerError``.
        document: The whole answer.
    """

    retry_after_seconds: float | None = None
    document: Mapping[str, object] = MappingProxyType({})

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, object]) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.details = status, code, details
        self.is_clock_corrected = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked.

    Attributes:
        query: Pairs, not encoded.
        held_seconds: How long the server may keep the answer back; such a request can be cut.
    """

    method: str
    path: str
    body: bytes = b""
    query: tuple[tuple[str, str], ...] = ()
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where Headroom is; ``ca`` is a file of certificates in place of the system's."""

    url: str
    ca: Path | None = None


class Client:
    """Asks one server; safe to use from threads, a connection for each request.

    Its time is the host's plus what the server said the difference is, so that a host whose clock
    is wrong is refused once and not again. The host's clock is never set.
    """

    def __init__(self, address: Address, *, wall: Callable[[], float] = time.time) -> None:
        self._address, self._wall = address, wall
        self._offset_seconds: float | None = None
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)  # round trip, offset
        self._lock = threading.Lock()
        self._trusted: tuple[float, ssl.SSLContext] | None = None  # made at, by the file's time
        self._held: http.client.HTTPConnection | None = None
        self._is_closing = False

    def close(self) -> None:
        """Cut the request that the server holds, and let no other be held."""
        with self._lock:
            self._is_closing = True
        self.cut()

    def cut(self) -> None:
        """Cut the request that the server holds: its answer is not wanted any more."""
        with self._lock:
            held = self._held.sock if self._held is not None else None
        if held is not None:
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    def offset_seconds(self) -> float | None:
        """Return what the host's clock lacks, None until the server said its time."""
        with self._lock:
            return self._offset_seconds

    def now(self) -> datetime | None:
        """Return the server's time, None until it said one."""
        with self._lock:
            if self._offset_seconds is None:
                return None
            return datetime.fromtimestamp(self._wall() + self._offset_seconds, UTC)

    def enrol(self, identity: Identity, *, token: str, name: str) -> Identity:
        """Return the identity as the server knows it from now on.

        Raises:
            RefusedError: The token, the name or the key is not taken.
            ServerError: There is no answer; the same may be asked again.
        """
        digest = hashlib.sha256(token.encode()).hexdigest()
        proof = sign(identity.seed_bytes, enrolment_bytes(digest, name))
        body = {
            "token": token,
            "name": name,
            "public_key": base64.b64encode(identity.public_key).decode(),
            "proof": base64.b64encode(proof).decode(),
            "agent_version": VERSION,
        }
        request = Request(method="POST", path="/hosts/v1/enrol", body=json.dumps(body).encode())
        answer = self._send(request, {})
        try:
            return replace(
                identity,
                host_id=str(answer["host_id"]),
                kid=str(answer["kid"]),
                fence_epoch=int(str(answer["fence_epoch"])),
                server_keys=trusted_keys({}, answer.get("server_public_keys")),
            )
        except (KeyError, ValueError):
            raise ServerError("the answer to the enrolment lacks a field") from None

    def beat(self, identity: Identity, facts: Mapping[str, object]) -> Mapping[str, object]:
        """Send a heartbeat; return what the server says to it.

        Raises:
            RefusedError: The heartbeat or its sender is not taken.
            ServerError: There is no answer.
        """
        path = f"/hosts/v1/{identity.host_id}/heartbeat"
        body = json.dumps(facts).encode()
        return self.signed(identity, Request(method="POST", path=path, body=body))

    def put_resources(self, identity: Identity, report: Mapping[str, object]) -> None:
        """Report what the host has.

        Raises:
            RefusedError: The report or its sender is not taken.
            ServerError: There is no answer.
        """
        try:
            self._put_resources(identity, report)
        except RefusedError as error:
            if not error.is_clock_corrected:
                raise
            self._put_resources(identity, report)  # with the time that we know now

    def put_key(self, identity: Identity, following: Identity) -> str:
        """Go on with the key of ``following``, which the present one vouches for; return its name.

        Raises:
            RefusedError: The key or its sender is not taken.
            ServerError: There is no answer; the same may be asked again.
        """
        proof = rotation_bytes(identity.host_id, key_id(following.public_key))
        document = {
            "public_key": base64.b64encode(following.public_key).decode(),
            "proof": base64.b64encode(sign(following.seed_bytes, proof)).decode(),
        }
        path = f"/hosts/v1/{identity.host_id}/keys"
        body = json.dumps(document).encode()
        answer = self.signed(identity, Request(method="POST", path=path, body=body))
        return str(answer.get("kid", ""))

    def signed(self, identity: Identity, request: Request) -> Mapping[str, object]:
        """Send a signed request; once more when only the clock was wrong.

        Raises:
            RefusedError: It is refused.
            ServerError: There is no answer.
        """
        try:
            return self._send(request, self._headers(identity, request))
        except RefusedError as error:
            if not error.is_clock_corrected:
                raise
        return self._send(request, self._headers(identity, request))

    def _put_resources(self, identity: Identity, report: Mapping[str, object]) -> None:
        now = self.now()
        stamped = dict(report) | ({"generated_at": now.isoformat()} if now else {})
        path = f"/hosts/v1/{identity.host_id}/resources"
        request = Request(method="PUT", path=path, body=json.dumps(stamped).encode())
        self._send(request, self._headers(identity, request))

    def _headers(self, identity: Identity, request: Request) -> dict[str, str]:
        with self._lock:
            timestamp = int(self._wall() + (self._offset_seconds or 0.0))
        signed = SignedRequest(
            method=request.method,
            path=request.path,
            query=request.query,
            body=request.body,
            timestamp=timestamp,
            nonce=secrets.token_hex(16),
            host_id=identity.host_id,
            kid=identity.kid,
            fence_epoch=identity.fence_epoch,
        )
        signature = sign(identity.seed_bytes, request_bytes(signed))
        return {
            "X-Host-Id": identity.host_id,
            "X-Host-Key": identity.kid,
            "X-Host-Timestamp": str(timestamp),
            "X-Host-Nonce": signed.nonce,
            "X-Host-Epoch": str(identity.fence_epoch),
            "X-Host-Signature": base64.b64encode(signature).decode(),
        }

    def _learn(
        self, server_time: object, *, sent: float, received: float, afresh: bool = False
    ) -> bool:
        """Learn what our clock lacks; of the last answers the quickest one tells it best."""
        try:
            told = datetime.fromisoformat(str(server_time))
        except ValueError:
            return False
        if told.tzinfo is None:
            return False
        with self._lock:
            if afresh:
                self._samples.clear()
            self._samples.append((received - sent, told.timestamp() - (sent + received) / 2))
            self._offset_seconds = min(self._samples)[1]
        return True

    def _send(self, request: Request, headers: Mapping[str, str]) -> Mapping[str, object]:
        connection = self._connection(request.held_seconds)
        sent = self._wall()
        try:
            self._open(connection, request)
            target = urlsplit(self._address.url).path.rstrip("/") + request.path
            if request.query:
                target += f"?{canonical_query(request.query)}"
            connection.request(
                request.method,
                target,
                body=request.body,
                headers={"Content-Type": "application/json", **headers},
            )
            answer = connection.getresponse()
            content = answer.read(_MOST_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self._address.url}: {error or type(error).__name__}") from None
        finally:
            with self._lock:
                self._held = None if self._held is connection else self._held
            connection.close()
        document = _object(content) if content else {}
        received = self._wall()
        if answer.status not in _SUCCESS:
            refusal = _refusal(answer.status, document)
            if isinstance(refusal, RefusedError):
                refusal.document = document
            refusal.retry_after_seconds = _retry_after(answer.getheader("Retry-After"))
            if isinstance(refusal, RefusedError) and refusal.code == "clock_skew":
                told = refusal.details.get("server_time")
                refusal.is_clock_corrected = self._learn(
                    told, sent=sent, received=received, afresh=True
                )
            raise refusal
        if "server_time" in document and not request.held_seconds:
            self._learn(document["server_time"], sent=sent, received=received)
        return document

    def _open(self, connection: http.client.HTTPConnection, request: Request) -> None:
        """Connect; a request that may be held is remembered, so that it can be cut.

        Raises:
            OSError: There is no connection, or none is wanted any more.
        """
        connection.connect()
        if not request.held_seconds:
            return
        with self._lock:
            if self._is_closing:
                raise OSError("the agent stops")
            self._held = connection

    def _connection(self, held_seconds: float) -> http.client.HTTPConnection:
        parts = urlsplit(self._address.url)
        host, timeout = parts.hostname or "", TIMEOUT_SECONDS + held_seconds
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                host, parts.port, timeout=timeout, context=self._context()
            )
        return http.client.HTTPConnection(host, parts.port, timeout=timeout)

    def _context(self) -> ssl.SSLContext:
        """Return whom we trust; read anew when the file changed, for reading it is much work.

        Raises:
            ServerError: The file cannot be read.
        """
        ca = self._address.ca
        try:
            changed = ca.stat().st_mtime if ca else 0.0
            with self._lock:
                if self._trusted is None or self._trusted[0] != changed:
                    context = ssl.create_default_context(cafile=str(ca) if ca else None)
                    self._trusted = (changed, context)
                return self._trusted[1]
        except OSError as error:
            raise ServerError(f"{ca}: {error.strerror or error}") from None


def host_name() -> str:
    """Return what the host calls itself, in full."""
    return socket.getfqdn()


def _object(content: bytes) -> Mapping[str, object]:
    try:
        document = json.loads(content)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _refusal(status: int, document: Mapping[str, object]) -> RefusedError | ServerError:
    error = document.get("error")
    if not isinstance(error, dict):
        return ServerError(f"the server answers {status}")
    if status >= 500:  # noqa: PLR2004
        return ServerError(f"the server answers {status}: {error.get('message', '')}")
    details = error.get("details")
    return RefusedError(
        status,
        str(error.get("code", "")),
        str(error.get("message", "")),
        details if isinstance(details, dict) else {},
    )


def _retry_after(told: str | None) -> float | None:
    """Return the seconds of a header; dates are not used by our server."""
    if told is None or not told.isascii() or not told.isdigit():
        return None
    return min(float(told), _LONGEST_RETRY_SECONDS)
