"""Writes that a caller may send again: the same ``Idempotency-Key`` is carried out once.

The key is claimed before the work begins, in a statement of its own, so of two at the same time one
is told to wait. What was answered is kept for 24 hours. A refusal or an error wrote nothing and
keeps nothing: the key is free again. Who dies on the way leaves the claim until it runs out; then
the same request is carried out by the next who sends it.

Source: draft-ietf-httpapi-idempotency-key-header, sections 2.6 and 2.7.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from typing import Any, Final
from uuid import uuid4

import orjson
import structlog
from django.conf import settings
from django.db import DatabaseError
from django.http import HttpResponse
from rest_framework.request import Request

from core.api import ProblemView
from journal.actors import Actor
from journal.errors import HeadroomError, InvalidInput
from journal.statements import execute, fetch_rows

log = structlog.get_logger(__name__)

HEADER: Final = "Idempotency-Key"
REPLAYED_HEADER: Final = "Idempotent-Replayed"
LONGEST_KEY: Final = 255
#: Beyond the computations of a request, until it counts as dead.
CLAIM_MARGIN_SECONDS: Final = 60
COMPUTATIONS: Final = 3
_FIRST_REFUSAL: Final = 400

_CLAIM: Final = """
INSERT INTO journal_keptanswer AS kept (key_digest, request_digest, claim, claimed_until)
VALUES (%(key)s, %(request)s, %(claim)s,
        statement_timestamp() + make_interval(secs => %(claim_seconds)s))
    ON CONFLICT (key_digest) DO UPDATE
   SET request_digest = excluded.request_digest, claim = excluded.claim,
       claimed_until = excluded.claimed_until, created_at = excluded.created_at,
       status = NULL, content_type = '', content = ''
 WHERE kept.created_at < statement_timestamp() - interval '24 hours'
    OR (kept.status IS NULL AND kept.claimed_until < statement_timestamp()
        AND kept.request_digest = excluded.request_digest)
RETURNING claim
"""
_READ: Final = """
SELECT request_digest, status, content_type, content FROM journal_keptanswer
 WHERE key_digest = %(key)s
"""
_KEEP: Final = """
UPDATE journal_keptanswer
   SET status = %(status)s, content_type = %(content_type)s, content = %(content)s
 WHERE key_digest = %(key)s AND claim = %(claim)s
"""
_RELEASE: Final = """
DELETE FROM journal_keptanswer
 WHERE key_digest = %(key)s AND claim = %(claim)s AND status IS NULL
"""


class KeyInProgress(HeadroomError):  # noqa: N818 - a state of the request
    """A request with this key is being worked on."""

    code = "idempotency_key_in_progress"
    status = 409


class KeyReused(HeadroomError):  # noqa: N818 - names the caller's mistake
    """The key was sent with another request before."""

    code = "idempotency_key_reused"
    status = 422


class IdempotentView(ProblemView):
    """``POST`` of something that is carried out once for a caller and key."""

    http_method_names = ["post"]
    _body: bytes | None = None

    def body(self) -> bytes:
        """Return the body, which is read once."""
        if self._body is None:
            self._body = super().body()
        return self._body

    def post(self, request: Request, **_: str) -> HttpResponse:
        """Carry a request out, or return what was answered to it before.

        Raises:
            InvalidInput: the key cannot be one.
            KeyInProgress: another one with it is under way.
            KeyReused: it came with another request.
        """
        key = key_of(request.headers.get(HEADER))
        if key is None:
            return self.write(request)
        values: dict[str, Any] = {  # Any: parameters of statements
            "key": _digest(*_caller(self.actor), key),
            "request": _digest(str(request.method), request.get_full_path(), self.body()),
            "claim": uuid4(),
            "claim_seconds": _claim_seconds(),
        }
        if not fetch_rows(_CLAIM, values):
            return _kept_answer(values, key)
        try:
            answer = self.write(request)
        except BaseException:
            _release(values)
            raise
        if answer.status_code >= _FIRST_REFUSAL:
            _release(values)
        else:
            kept = {
                "status": answer.status_code,
                "content_type": answer.headers["Content-Type"],
                "content": answer.content,
            }
            execute(_KEEP, {**values, **kept})
        return answer

    @abstractmethod
    def write(self, request: Request) -> HttpResponse:
        """Carry a request out."""


def key_of(header: str | None) -> str | None:
    """Return the key of a header, with or without the quotes of the draft; None without one.

    Raises:
        InvalidInput: it is empty, too long, or not of visible ASCII characters.
    """
    if header is None:
        return None
    key = header.strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 0 < len(key) <= LONGEST_KEY or any(not "!" <= letter <= "~" for letter in key):
        raise InvalidInput(
            f"{HEADER}: must be 1 to {LONGEST_KEY} visible ASCII characters", field=HEADER
        )
    return key


def _kept_answer(values: dict[str, Any], key: str) -> HttpResponse:
    found = fetch_rows(_READ, values)
    if not found:  # released between the two statements
        raise KeyInProgress(f"a request with {HEADER} {key} has just failed: send it again")
    ((request_digest, status, content_type, content),) = found
    if request_digest != values["request"]:
        raise KeyReused(f"{HEADER} {key} came with another path or body before: take a new one")
    if status is None:
        raise KeyInProgress(f"a request with {HEADER} {key} is under way: ask again in a moment")
    answer = HttpResponse(bytes(content), status=status, content_type=content_type)
    answer[REPLAYED_HEADER] = "true"
    return answer


def _release(values: dict[str, Any]) -> None:
    """Free a key after a refusal; without a database it is free when its claim runs out."""
    try:
        execute(_RELEASE, values)
    except DatabaseError as error:
        log.warning("idempotency_key_not_released", error=str(error))


def _claim_seconds() -> float:
    deadline: float = settings.HEADROOM.heavy.deadline_seconds
    return COMPUTATIONS * deadline + CLAIM_MARGIN_SECONDS


def _caller(actor: Actor) -> tuple[str, ...]:
    return (actor.name, actor.user_id, actor.project_id, actor.domain_id, actor.system_scope)


def _digest(*parts: str | bytes) -> str:
    digests = [
        hashlib.sha256(part.encode() if isinstance(part, str) else part).hexdigest()
        for part in parts
    ]
    return hashlib.sha256(orjson.dumps(digests)).hexdigest()
