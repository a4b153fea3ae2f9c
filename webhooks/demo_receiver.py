"""The receiver of ``./run demo``: checks signatures, answers 204, and now and then fails.

``python -m webhooks.demo_receiver --port PORT --secrets FILE`` listens on this machine alone and
says a line for each delivery. It needs no Django and no database: what it knows of a delivery is
what stands on the wire (docs/webhooks.md).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Final

from webhooks.domain.message import secrets_of

ADDRESS: Final = "127.0.0.1"
TOLERANCE_SECONDS: Final = 300.0
LONGEST_BODY: Final = 1 << 20
FAILS_EVERY: Final = 17
"""Of so many messages one is refused the first time, as a receiver would that restarts."""


class Deliveries:
    """What comes in, judged; may be asked by several threads."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._refused: set[str] = set()
        self._lock = Lock()

    def judge(self, headers: Mapping[str, str], body: bytes, *, now: float) -> HTTPStatus:
        """Return the answer to a delivery.

        Args:
            headers: As received; names in lower case.
            now: Seconds since 1970.
        """
        if not is_genuine(headers, body, self._keys, now=now):
            return HTTPStatus.UNAUTHORIZED
        message = headers["webhook-id"]
        with self._lock:
            if message in self._refused:
                self._refused.remove(message)
            elif is_unlucky(message):
                self._refused.add(message)
                return HTTPStatus.SERVICE_UNAVAILABLE
        return HTTPStatus.NO_CONTENT


def is_genuine(
    headers: Mapping[str, str], body: bytes, keys: Sequence[bytes], *, now: float
) -> bool:
    """Return whether a delivery was signed by one of the keys, and lately.

    Source: Standard Webhooks, "Verifying webhook authenticity".
    """
    message, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    is_number = stamp.isascii() and stamp.isdecimal() and len(stamp) <= len(str(1 << 63))
    if not message or not is_number or abs(now - int(stamp)) > TOLERANCE_SECONDS:
        return False
    signed = b".".join((message.encode(), stamp.encode(), body))
    wanted = [
        b"v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()) for key in keys
    ]
    told = [one.encode() for one in headers.get("webhook-signature", "").split(" ")]
    return any(hmac.compare_digest(one, other) for one in told for other in wanted)


def is_unlucky(message: str) -> bool:
    """Return whether a message is refused the first time; the same ones whoever asks."""
    return int.from_bytes(hashlib.sha256(message.encode()).digest()[:4]) % FAILS_EVERY == 0


def receiver(
    deliveries: Deliveries, *, port: int, say: Callable[[str], None]
) -> ThreadingHTTPServer:
    """Return a server that listens, and answers once it is told to serve.

    Raises:
        OSError: the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self) -> None:
            """Answer a delivery."""
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or not 0 < int(length) <= LONGEST_BODY:
                status = HTTPStatus.BAD_REQUEST
                self.close_connection = True
            else:
                body = self.rfile.read(int(length))
                headers = {name.lower(): text for name, text in self.headers.items()}
                status = deliveries.judge(headers, body, now=time.time())
            say(f"{status.value} {status.phrase}: {self.headers.get('webhook-id', 'no id')!r}")
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing more."""

    return ThreadingHTTPServer((ADDRESS, port), Handler)


def main(arguments: Sequence[str] | None = None) -> None:
    """Receive until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="where to listen")
    parser.add_argument("--secrets", type=Path, required=True, help="file with a secret a line")
    asked = parser.parse_args(arguments)
    keys = secrets_of(asked.secrets.read_text(encoding="utf-8"))

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    with receiver(Deliveries(keys), port=asked.port, say=say) as server:
        say(f"receives at http://{ADDRESS}:{asked.port}/")
        server.serve_forever()


if __name__ == "__main__":
    main()
