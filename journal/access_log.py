"""One line in the log for each request of an API: who asked what, and what was decided.

Pages of the admin, probes and scrapes leave none. The line of a Placement request has more keys and
is written by its view; both have those of :func:`line_of`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from journal.actors import Actor
from journal.errors import HeadroomError

log = structlog.get_logger(__name__)

EVENT: Final = "api_request"
#: What a path begins with, and the API it belongs to.
APIS: Final = (
    ("/commitments/", "liquid"),
    ("/scheduler/", "scheduler"),
    ("/api/v1/", "operator"),
    ("/failover/v1/", "operator"),
)
#: Characters of a path, of a reason, and of a method that a line shows at most.
MOST_PATH: Final = 2000
MOST_REASON: Final = 300
MOST_METHOD: Final = 20
ANSWERED, ACCEPTED, REJECTED = "answered", "accepted", "rejected"
FORBIDDEN, FAILED = "forbidden", "failed"
_FACTS: Final = "headroom.access"
_FIRST_REFUSAL, _FIRST_FAILURE = 400, 500


@dataclass(slots=True)
class AccessFacts:
    """What a view learnt of its request.

    Attributes:
        actor: Name of who asks; empty while nobody knows.
        project_id: Project the request is about, or else that of the token.
        decision: What was decided, if the status does not say it.
        reason: Code of the refusal or error, or the words of a rejection.
    """

    actor: str = ""
    project_id: str = ""
    decision: str = ""
    reason: str = ""


def facts_of(request: HttpRequest) -> AccessFacts:
    """Return what is known of a request so far; what is set there gets into the line."""
    facts: AccessFacts | None = request.META.get(_FACTS)
    return request.META.setdefault(_FACTS, AccessFacts()) if facts is None else facts


def note_actor(request: HttpRequest, actor: Actor) -> None:
    """Remember who asks."""
    facts = facts_of(request)
    facts.actor = actor.name
    facts.project_id = facts.project_id or actor.project_id


def note_decision(request: HttpRequest, *, is_accepted: bool, reason: str = "") -> None:
    """Remember what was decided, which a status of 200 does not say."""
    facts = facts_of(request)
    facts.decision = ACCEPTED if is_accepted else REJECTED
    facts.reason = reason


def note_error(request: HttpRequest, error: Exception) -> None:
    """Remember the code of what a view answers as an error."""
    if isinstance(error, HeadroomError):
        facts_of(request).reason = error.code


def line_of(
    request: HttpRequest, *, status: int, seconds: float, project_id: str = ""
) -> dict[str, object]:
    """Return the keys of a request's line.

    Args:
        status: Of the answer.
        project_id: Project that the path names.
    """
    facts = facts_of(request)
    return {
        "method": str(request.method)[:MOST_METHOD],
        "path": request.path[:MOST_PATH],
        "status": status,
        "duration_ms": round(seconds * 1000, 3),
        "actor": facts.actor,
        "project_id": (project_id or facts.project_id)[:MOST_PATH],
        "decision": facts.decision or _decision_of(status),
        "reason": facts.reason[:MOST_REASON],
    }


def _decision_of(status: int) -> str:
    if status < _FIRST_REFUSAL:
        return ANSWERED
    if status in {401, 403}:
        return FORBIDDEN
    return FAILED if status >= _FIRST_FAILURE else REJECTED


class AccessLogMiddleware:
    """Write the line of every request of an API, once it is answered."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Serve the request and write its line."""
        api = next((name for prefix, name in APIS if request.path.startswith(prefix)), "")
        if not api or not settings.HEADROOM.log_requests:
            return self.get_response(request)
        started = time.perf_counter()
        response = self.get_response(request)
        match = request.resolver_match
        line = line_of(
            request,
            status=response.status_code,
            seconds=time.perf_counter() - started,
            project_id=str(match.kwargs.get("project_id", "")) if match else "",
        )
        log.info(EVENT, api=api, **line)
        return response
