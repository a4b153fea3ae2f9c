"""Which side serves a request while a cloud moves (docs/gateway.md).

A write that is handed on is announced by a row before it goes out, and the phase is read again
after that: a switch that did not see the row is seen by this look. A write of ours holds a shared
lock until its transaction ends, in which it is kept for the other side as well; whoever changes the
truth takes that lock alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.db import transaction
from django.http import HttpRequest, HttpResponse

from core.conf import headroom
from core.prepared import drop_dead_connection, fetch_prepared
from journal.bodies import unparsed_body_of
from placement.api.base import counted_at_the_end
from placement.api.rendering import MOUNT
from placement.api.urls import UNKNOWN, View
from placement.cutover import parted
from placement.cutover.announcing import UNCERTAIN, WITHDRAW, Asked, announce, keep, note_done
from placement.cutover.state import PARTED, current_phase, hold_truth
from placement.domain.errors import ServiceUnavailable
from placement.domain.touched import READS, touched_by
from placement.gateway.views import ForwardView
from placement.models import Phase

#: How often a held write looks whether it may go on, seconds.
LOOK_SECONDS: Final = 0.015
#: How long a write looks at the most: two turns of a switch, which waits longer between them.
MOST_LOOKS_SECONDS: Final = 3.0
#: Likewise while a cloud moves in parts: other writes about both sides may be before it.
MOST_PARTED_SECONDS: Final = 10.0
LOCAL: Final = frozenset({Phase.SWITCHED, Phase.RETURNING})
FAILED: Final = 400


class GateView(ForwardView):
    """A path whose requests the other Placement answers, or we do, as the phase says.

    Attributes:
        local: Serves it here.
        read_there: Serves reads while the other side is the truth, if not this view.
        read_parted: Serves reads while each side answers for its own, if not this view.
    """

    local: View = UNKNOWN
    read_there: View | None = None
    read_parted: View | None = None

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Serve a request where the truth is; who serves it counts it, and we what nobody does."""
        started = time.perf_counter()
        self.begin(request)
        try:
            if request.method in READS:
                return self._read(request, kwargs)
            return self._write(request, kwargs)
        except Exception as error:  # noqa: BLE001 - every error has an answer of its own
            self.http_request = request  # handing on may have taken a copy
            return self.counted(self.failed(error), started)

    def _read(self, request: HttpRequest, items: Mapping[str, str]) -> HttpResponse:
        phase = current_phase()
        if phase in LOCAL:
            return self.local(request, **items)
        if phase in PARTED and self.read_parted is not None:
            return self.read_parted(request, **items)
        if self.read_there is not None:
            return self.read_there(request, **items)
        return super().dispatch(request, **items)

    def _write(self, request: HttpRequest, items: Mapping[str, str]) -> HttpResponse:
        phase = current_phase()
        if phase is Phase.OFF:
            return super().dispatch(request, **items)
        with counted_at_the_end(request):
            return self._written(phase, request, items)

    def _written(
        self, phase: Phase, request: HttpRequest, items: Mapping[str, str]
    ) -> HttpResponse:
        body = unparsed_body_of(request, limit_mib=headroom().placement.max_body_mib)
        path = request.path_info[len(MOUNT) :] or "/"
        asked = Asked(request=request, body=body, touched=touched_by(path, body))
        began_at = time.monotonic()
        while True:
            response = self._tried(phase, asked, items)
            if response is not None:
                return response
            most_seconds = MOST_PARTED_SECONDS if phase in PARTED else MOST_LOOKS_SECONDS
            if time.monotonic() > began_at + most_seconds:
                raise ServiceUnavailable("Writes are held.", headers={"Retry-After": "1"})
            time.sleep(LOOK_SECONDS)
            phase = current_phase()
            if phase is Phase.PARTED:
                parted.settle_left()

    def _tried(self, phase: Phase, asked: Asked, items: Mapping[str, str]) -> HttpResponse | None:
        """Return the answer to a write, or nothing if it may not begin now."""
        if phase is Phase.OFF:
            return super().dispatch(asked.again(), **items)
        if phase is Phase.COPYING:
            return self._handed_on(asked, items)
        if phase is Phase.SWITCHED:
            return mirrored(asked, lambda request: self.local(request, **items))
        if phase is Phase.PARTED:
            return parted.written(
                asked,
                here=lambda request: self.local(request, **items),
                there=lambda request: super(GateView, self).dispatch(request, **items),
            )
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
            keep(asked, response)
    return response


def gated(
    local: View,
    pattern: str | None = None,
    *,
    read_there: View | None = None,
    read_parted: View | None = None,
) -> View:
    """Return what serves a path as the phase says.

    Args:
        local: What serves it here.
        pattern: The path as metrics name it; nothing for unknown paths.
        read_there: See :class:`GateView`.
        read_parted: Likewise.
    """
    known = {"pattern": pattern} if pattern is not None else {}
    reads = {"read_there": read_there, "read_parted": read_parted}
    return GateView.as_view(local=local, **reads, **known)
