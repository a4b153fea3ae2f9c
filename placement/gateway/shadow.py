"""Answering some searches of another Placement from copies as well (spec placement, 8.5).

The client has its answer; what is compared waits in the background, and what is too much is left
out. Copies follow with a delay, so that a search right after a write may differ for that alone.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from typing import Any, ClassVar, Final, NamedTuple

import orjson
import structlog
from django.db import connection
from django.http import HttpResponse

from core.conf import headroom
from core.prepared import run
from journal.errors import HeadroomError
from placement.domain.microversion import negotiated_minor
from placement.domain.querystring import (
    AMOUNT_CAP,
    capped_number,
    grouped_values,
    parsed_pairs,
)
from placement.domain.shadow import ORDER, candidate_difference
from placement.gateway.views import ForwardView
from placement.metrics import SHADOW_COMPARISONS
from placement.models import ShadowDifference
from placement.selectors.candidates import shadow_answer

log = structlog.get_logger(__name__)

OK: Final = 200
MOST_WAITING: Final = 20
MOST_KEPT: Final = 1000
PATTERN: Final = "/allocation_candidates"
FORGET = """
DELETE FROM placement_shadow_difference
 WHERE id <= (SELECT id FROM placement_shadow_difference ORDER BY id DESC OFFSET %s LIMIT 1)
"""


class Seen(NamedTuple):
    """A search, and how the other Placement answered it."""

    query: str
    minor: int
    status: int
    body: bytes
    request_id: str


class ShadowedView(ForwardView):
    """Searches that the other Placement answers, of which some are compared."""

    pattern: ClassVar[str] = PATTERN
    hands_on: ClassVar[bool] = False

    def forward(self, **items: Any) -> HttpResponse:  # Any: parts of the path
        """Return the other side's answer."""
        response = super().forward(**items)
        is_readable = response.status_code == OK and "Content-Encoding" not in response.headers
        if self.http_request.method == "GET" and is_readable and _is_chosen():
            meta = self.http_request.META
            minor = negotiated_minor(meta.get("HTTP_OPENSTACK_API_VERSION"))
            query = str(meta.get("QUERY_STRING", ""))
            _comparisons.add(
                Seen(query, minor, response.status_code, response.content, self.request_id)
            )
        return response


def _is_chosen() -> bool:
    return bool(random.uniform(0, 100) < headroom().gateway.shadow_percent)  # noqa: S311 - a sample


def compare(seen: Seen) -> str:
    """Compare one answer with ours and keep what differs; returns how it ended."""
    values = grouped_values(parsed_pairs(seen.query))
    limit = capped_number(values["limit"][0], limit=AMOUNT_CAP) if "limit" in values else None
    try:
        ours = orjson.loads(shadow_answer(seen.query, seen.minor))
        difference = candidate_difference(ours, orjson.loads(seen.body), limit=limit)
    except HeadroomError as error:
        _keep(seen, error.message, {})
        return "error"
    if difference is None:
        return "equal"
    _keep(seen, difference.reason, {"ours": difference.ours, "theirs": difference.theirs})
    return ORDER if difference.reason == ORDER else "different"


def _keep(seen: Seen, reason: str, sample: dict[str, Any]) -> None:
    ShadowDifference.objects.create(
        request_id=seen.request_id,
        query=seen.query,
        minor=seen.minor,
        reason=reason[:255],
        sample=sample,
    )
    run(FORGET, [MOST_KEPT])


class Comparisons:
    """Compares one after the other in a thread that lives while there is something to do."""

    def __init__(self) -> None:
        self._waiting: deque[Seen] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, seen: Seen) -> None:
        """Have an answer compared, unless too many wait."""
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                SHADOW_COMPARISONS.labels(pattern=PATTERN, result="left_out").inc()
                return
            self._waiting.append(seen)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    if not self._waiting:
                        self._thread = None
                        return
                    seen = self._waiting.popleft()
                SHADOW_COMPARISONS.labels(pattern=PATTERN, result=_compared(seen)).inc()
        finally:
            connection.close()


def _compared(seen: Seen) -> str:
    try:
        return compare(seen)
    except Exception:
        log.warning("gateway_shadow_failed", exc_info=True)
        return "error"


_comparisons: Final = Comparisons()
