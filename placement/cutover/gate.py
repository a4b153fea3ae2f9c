"""Which side serves a request while a cloud moves (docs/gateway.md).

A write that is handed on is announced by a row before it goes out, and the phase is read again
after that: a switch that did not see the row is seen by this look. A write of ours holds a shared
lock until its transaction ends, in which it is kept for the other side as well; whoever changes the
truth takes that lock alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from django.db import Error, transaction
from django.http import HttpRequest, HttpResponse

from core.conf import headroom
from core.copying import number_array
from core.prepared import drop_dead_connection, fetch_prepared, run
from journal.bodies import unparsed_body_of
from journal.models import CURRENT_XID_SQL
from placement.api.errors import as_placement_error
from placement.api.rendering import MOUNT
from placement.api.urls import UNKNOWN, View
from placement.cutover.state import current_phase, hold_truth
from placement.domain.errors import ServiceUnavailable
from placement.domain.microversion import negotiated_minor
from placement.domain.touched import READS, Touched, touched_by
from placement.gateway.again import request_again
from placement.gateway.views import ForwardView, target_of
from placement.models import Phase

log = structlog.get_logger(__name__)

#: How often a held write looks whether it may go on, seconds.
LOOK_SECONDS: Final = 0.015
#: How long a write looks at the most: two turns of a switch, which waits longer between them.
MOST_LOOKS_SECONDS: Final = 3.0
#: What a write may take beyond the time of the other side's client.
GRACE_SECONDS: Final = 5.0
LOCAL: Final = frozenset({Phase.SWITCHED, Phase.RETURNING})
#: Answers after which nobody knows whether the write was done.
UNCERTAIN: Final = frozenset({502, 504})
FAILED: Final = 400

ANNOUNCE: Final = """
INSERT INTO placement_forwarded_write (providers, generations, consumers, has_names, ends_at)
VALUES (%s::uuid[], %s::uuid[], %s::uuid[], %s::boolean,
        clock_timestamp() + %s::float8 * interval '1 second')
RETURNING id
"""
DONE: Final = """
UPDATE placement_forwarded_write
   SET is_done = true, providers = providers || %s::uuid[]
 WHERE id = %s::bigint RETURNING id
"""
WITHDRAW: Final = "DELETE FROM placement_forwarded_write WHERE id = %s::bigint RETURNING id"
KEEP: Final = f"""
INSERT INTO placement_mirrored_write
    (method, target, minor, body, roots, consumers, providers_after, consumers_after)
SELECT %s, %s, %s, %s, r.roots, c.uuids,
       (SELECT coalesce(jsonb_object_agg(p.uuid, p.generation), '{{}}')
          FROM placement_provider p WHERE p.root_id = ANY (r.roots)),
       (SELECT coalesce(jsonb_object_agg(k.uuid, k.generation), '{{}}')
          FROM placement_consumer k WHERE k.uuid = ANY (c.uuids))
  FROM (SELECT ARRAY(SELECT root_id FROM placement_change WHERE xid = {CURRENT_XID_SQL}
                      UNION
                     SELECT root_id FROM placement_provider WHERE uuid = ANY (%s::uuid[])
                   ) AS roots) r,
       (SELECT %s::uuid[] AS uuids) c
"""  # noqa: S608 - a constant


@dataclass(slots=True)
class Asked:
    """A write that may have to be served more than once, with its body."""

    request: HttpRequest
    body: bytes
    touched: Touched

    def again(self) -> HttpRequest:
        """Return the request as it came."""
        return request_again(self.request, self.body)


class GateView(ForwardView):
    """A path whose requests the other Placement answers, or we do, as the phase says.

    Attributes:
        local: Serves it here.
        read_there: Serves reads while the other side is the truth, if not this view.
    """

    local: View = UNKNOWN
    read_there: View | None = None

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Serve a request where the truth is."""
        self.http_request = request
        try:
            if request.method in READS:
                return self._read(request, kwargs)
            return self._write(request, kwargs)
        except Exception as error:  # noqa: BLE001 - every error has an answer of its own
            return self.refusal(as_placement_error(error, request_id=self.request_id))

    def _read(self, request: HttpRequest, items: Mapping[str, str]) -> HttpResponse:
        if current_phase() in LOCAL:
            return self.local(request, **items)
        if self.read_there is not None:
            return self.read_there(request, **items)
        return super().dispatch(request, **items)

    def _write(self, request: HttpRequest, items: Mapping[str, str]) -> HttpResponse:
        phase = current_phase()
        if phase is Phase.OFF:
            return super().dispatch(request, **items)
        body = unparsed_body_of(request, limit_mib=headroom().placement.max_body_mib)
        path = request.path_info[len(MOUNT) :] or "/"
        asked = Asked(request=request, body=body, touched=touched_by(path, body))
        gives_up_at = time.monotonic() + MOST_LOOKS_SECONDS
        while True:
            response = self._tried(phase, asked, items)
            if response is not None:
                return response
            if time.monotonic() > gives_up_at:
                raise ServiceUnavailable("Writes are held.", headers={"Retry-After": "1"})
            time.sleep(LOOK_SECONDS)
            phase = current_phase()

    def _tried(self, phase: Phase, asked: Asked, items: Mapping[str, str]) -> HttpResponse | None:
        """Return the answer to a write, or nothing if it may not begin now."""
        if phase is Phase.OFF:
            return super().dispatch(asked.again(), **items)
        if phase is Phase.COPYING:
            return self._handed_on(asked, items)
        if phase is Phase.SWITCHED:
            return mirrored(asked, lambda request: self.local(request, **items))
        return None

    def _handed_on(self, asked: Asked, items: Mapping[str, str]) -> HttpResponse | None:
        number = announce(asked.touched)
        if current_phase() is not Phase.COPYING:
            fetch_prepared(WITHDRAW, [number])
            return None
        response = super().dispatch(asked.again(), **items)
        if response.status_code not in UNCERTAIN:
            note_done(number, response)
        return response


def announce(touched: Touched) -> int:
    """Say that a write goes out, and what it touches; return its number."""
    values = [
        number_array(sorted(touched.providers)),
        number_array(sorted(touched.generations)),
        number_array(sorted(touched.consumers)),
        touched.has_names,
        headroom().gateway.timeout_seconds + GRACE_SECONDS,
    ]
    return int(fetch_prepared(ANNOUNCE, values)[0][0])


def note_done(number: int, response: HttpResponse) -> None:
    """Say that a write has ended; what was created is known now.

    Without the database it is taken for ended when its time is over.
    """
    location = response.headers.get("Location", "")
    made = touched_by(location.partition(MOUNT)[2], b"").providers if location else ()
    try:
        fetch_prepared(DONE, [number_array(sorted(made)), number])
    except Error as error:
        log.warning("cutover_write_not_noted", error=str(error))


def mirrored(asked: Asked, serve: Callable[[HttpRequest], HttpResponse]) -> HttpResponse | None:
    """Serve a write here and keep it for the other side, in one transaction.

    Returns:
        The answer; nothing if we are not the truth any more.
    """
    request = asked.again()
    drop_dead_connection()
    with transaction.atomic():
        if hold_truth() is not Phase.SWITCHED:
            return None
        response = serve(request)
        if response.status_code >= FAILED:
            transaction.set_rollback(True)
        else:
            keep(asked)
    return response


def keep(asked: Asked) -> None:
    """Keep a write that was done in this transaction for the other side.

    It is about the trees that it changed and those that it names: one that changed nothing, such as
    traits that were there, carries a generation as well.
    """
    request = asked.request
    minor = negotiated_minor(request.META.get("HTTP_OPENSTACK_API_VERSION"))
    providers = asked.touched.providers | asked.touched.generations
    named = [sorted(providers), sorted(asked.touched.consumers)]
    run(KEEP, [str(request.method), target_of(request), minor, asked.body, *named])


def gated(local: View, pattern: str | None = None, *, read_there: View | None = None) -> View:
    """Return what serves a path as the phase says.

    Args:
        local: What serves it here.
        pattern: The path as metrics name it; nothing for unknown paths.
        read_there: See :class:`GateView`.
    """
    known = {"pattern": pattern} if pattern is not None else {}
    return GateView.as_view(local=local, read_there=read_there, **known)
