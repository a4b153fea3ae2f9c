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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from headroom_host_agent.provision.signing.keys import sign
from headroom_host_agent.provision.signing.v2 import SignedRequest, enrolment_bytes, request_bytes
from headroom_host_agent.server.identity import Identity

TIMEOUT_SECONDS = 30.0
_MOST_ANSWER_BYTES = 4 * 1024**2
_SUCCESS = range(200, 300)
_SAMPLES = 8


class ServerError(Exception):
    """The server was not reached, or its answer is none."""


class RefusedError(Exception):
    """The server refuses; ``code`` is its word for why."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, object]) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.details = status, code, details
        self.is_clock_corrected = False


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
            "agent_version": agent_version(),
        }
        answer = self._send("POST", "/hosts/v1/enrol", json.dumps(body).encode(), {})
        try:
            return replace(
                identity,
                host_id=str(answer["host_id"]),
                kid=str(answer["kid"]),
                fence_epoch=int(str(answer["fence_epoch"])),
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
        return self.signed(identity, "POST", path, json.dumps(facts).encode())

    def put_resources(self, identity: Identity, report: Mapping[str, object]) -> None:
        """Report what the host has.

        Raises:
            RefusedError: The report or its sender is not taken.
            ServerError: There is no answer.
        """
        now = self.now()
        stamped = dict(report) | ({"generated_at": now.isoformat()} if now else {})
        path = f"/hosts/v1/{identity.host_id}/resources"
        self.signed(identity, "PUT", path, json.dumps(stamped).encode())

    def signed(
        self, identity: Identity, method: str, path: str, body: bytes = b""
    ) -> Mapping[str, object]:
        """Send a signed request; once more when only the clock was wrong.

        Raises:
            RefusedError: It is refused.
            ServerError: There is no answer.
        """
        try:
            return self._send(method, path, body, self._headers(identity, method, path, body))
        except RefusedError as error:
            if not error.is_clock_corrected:
                raise
        return self._send(method, path, body, self._headers(identity, method, path, body))

    def _headers(self, identity: Identity, method: str, path: str, body: bytes) -> dict[str, str]:
        with self._lock:
            timestamp = int(self._wall() + (self._offset_seconds or 0.0))
        request = SignedRequest(
            method=method,
            path=path,
            body=body,
            timestamp=timestamp,
            nonce=secrets.token_hex(16),
            host_id=identity.host_id,
            kid=identity.kid,
            fence_epoch=identity.fence_epoch,
        )
        signature = sign(identity.seed_bytes, request_bytes(request))
        return {
            "X-Host-Id": identity.host_id,
            "X-Host-Key": identity.kid,
            "X-Host-Timestamp": str(timestamp),
            "X-Host-Nonce": request.nonce,
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

    def _send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Mapping[str, object]:
        connection = self._connection()
        sent = self._wall()
        below = urlsplit(self._address.url).path.rstrip("/")
        try:
            connection.request(
                method,
                below + path,
                body=body,
                headers={"Content-Type": "application/json", **headers},
            )
            answer = connection.getresponse()
            content = answer.read(_MOST_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self._address.url}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        document = _object(content) if content else {}
        received = self._wall()
        if answer.status not in _SUCCESS:
            refusal = _refusal(answer.status, document)
            if isinstance(refusal, RefusedError) and refusal.code == "clock_skew":
                told = refusal.details.get("server_time")
                refusal.is_clock_corrected = self._learn(
                    told, sent=sent, received=received, afresh=True
                )
            raise refusal
        if "server_time" in document:
            self._learn(document["server_time"], sent=sent, received=received)
        return document

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._address.url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            try:
                trusted = ssl.create_default_context(
                    cafile=str(self._address.ca) if self._address.ca else None
                )
            except OSError as error:
                raise ServerError(f"{self._address.ca}: {error.strerror or error}") from None
            return http.client.HTTPSConnection(
                host, parts.port, timeout=TIMEOUT_SECONDS, context=trusted
            )
        return http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_SECONDS)


def agent_version() -> str:
    """Return the installed version, empty when it runs from a checkout."""
    try:
        return version("headroom-host-agent")
    except PackageNotFoundError:
        return ""


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
