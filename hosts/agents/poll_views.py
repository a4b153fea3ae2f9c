"""The view of polls that may be held: the one of web processes, and what to go on from."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from django.http import HttpRequest, HttpResponse
from rest_framework.request import Request

from hosts.agents.holding import Standing
from hosts.agents.models import HostKey
from hosts.agents.polls import ReservationPage, poll_query, read_page
from hosts.agents.signed import key_again, key_of
from hosts.agents.workload_views import ReservationsView, page_answer
from journal.statements import fetch_rows

_EMPTY: Final = "headroom.empty_poll"
_STANDINGS: Final = """
SELECT key.kid, agent.change_seq, agent.fence_epoch, agent.timeline,
       key.state <> 'revoked' AND coalesce(key.not_after > clock_timestamp(), true)
           AND agent.decommissioned_at IS NULL
  FROM hosts_hostkey AS key
  JOIN hosts_hostagent AS agent ON agent.id = key.agent_id
 WHERE key.kid = ANY(%s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyPoll:
    """A poll that was verified, and for which there was nothing.

    Attributes:
        before: How the host stood then.
        wait_seconds: How long it may be held.
    """

    host_id: uuid.UUID
    kid: str
    before: Standing
    wait_seconds: float


class HeldReservationsView(ReservationsView):
    """Answers a poll; once more, when it was held, without its signature being seen twice."""

    def get(self, request: Request, host_id: uuid.UUID) -> HttpResponse:
        """Return a page, as of now."""
        asked = self.http_request
        held = empty_poll(asked)
        if held is None:
            key = key_of(asked, self.body(), path_id=host_id)
        else:
            key = key_again(held.kid, held.host_id, epoch=held.before.fence_epoch)
        query = poll_query(asked.GET.dict())
        page = read_page(key.agent_id, query)
        if not page.reservations and query.wait_seconds:
            asked.META[_EMPTY] = _empty(key, page, query.wait_seconds)
        return page_answer(page)


def empty_poll(request: HttpRequest) -> EmptyPoll | None:
    """Return what is known of a poll that found nothing; headers cannot say so."""
    found = request.META.get(_EMPTY)
    return found if isinstance(found, EmptyPoll) else None


def ask_again(request: HttpRequest, held: EmptyPoll) -> None:
    """Have the view take a request as verified."""
    request.META[_EMPTY] = held


def standings(kids: list[str]) -> dict[str, Standing]:
    """Return how hosts stand, by the name of a key; one that nobody knows is left out."""
    return {
        kid: Standing(
            change_seq=change_seq, fence_epoch=epoch, timeline=timeline, is_taken=is_taken
        )
        for kid, change_seq, epoch, timeline, is_taken in fetch_rows(_STANDINGS, [kids])
    }


def _empty(key: HostKey, page: ReservationPage, wait_seconds: float) -> EmptyPoll:
    before = Standing(
        change_seq=page.last_id,
        fence_epoch=page.fence_epoch,
        timeline=uuid.UUID(page.timeline),
        is_taken=True,
    )
    return EmptyPoll(host_id=key.agent.uuid, kid=key.kid, before=before, wait_seconds=wait_seconds)
