"""The first look at polls that may be held, many together, and the view that answers them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from django.http import HttpRequest, HttpResponse, QueryDict
from rest_framework.request import Request

from hosts.agents.errors import AgentRefused
from hosts.agents.holding import HeldPoll, Standing
from hosts.agents.models import HostKey
from hosts.agents.polls import (
    PollQuery,
    ReservationPage,
    empty_pages,
    poll_query,
    read_page,
)
from hosts.agents.signed import SentRequest, key_again, keys_of
from hosts.agents.workload_views import ReservationsView, page_answer
from journal.statements import fetch_rows

_KNOWN: Final = "headroom.known_poll"
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
        page: What is answered if it stays so.
    """

    host_id: uuid.UUID
    kid: str
    before: Standing
    wait_seconds: float
    page: ReservationPage


#: What is known of a poll: that it found nothing, who signed it, or why it is refused.
KnownPoll = EmptyPoll | HostKey | AgentRefused


class HeldReservationsView(ReservationsView):
    """Answers a poll of which something is known, so that its signature is not seen twice."""

    def get(self, request: Request, host_id: uuid.UUID) -> HttpResponse:
        """Return a page, as of now."""
        known: KnownPoll = self.http_request.META[_KNOWN]
        if isinstance(known, AgentRefused):
            raise known
        if isinstance(known, EmptyPoll):
            key = key_again(known.kid, known.host_id, epoch=known.before.fence_epoch)
        else:
            key = known
        return page_answer(read_page(key.agent_id, poll_query(self.http_request.GET.dict())))


def tell(request: HttpRequest, known: KnownPoll) -> None:
    """Have the view know something of a poll; headers cannot say so."""
    request.META[_KNOWN] = known


def first_looks(requests: Sequence[SentRequest]) -> dict[SentRequest, KnownPoll]:
    """Return what is known of polls: three statements for all of them."""
    known: dict[SentRequest, KnownPoll] = dict(zip(requests, keys_of(requests), strict=True))
    asked: dict[SentRequest, tuple[HostKey, PollQuery]] = {}
    for request, key in known.items():
        if not isinstance(key, HostKey):
            continue
        with suppress(AgentRefused):  # the view says so
            query = poll_query(QueryDict(request.query).dict())
            asked[request] = (key, query)
    pages = empty_pages({(key.agent_id, query.after) for key, query in asked.values()})
    for request, (key, query) in asked.items():
        page = pages.get((key.agent_id, query.after))
        if page is not None:
            known[request] = _empty(key, page, query.wait_seconds)
    return known


def held_poll(empty: EmptyPoll, *, began_at: float) -> HeldPoll:
    """Return a poll to be held; it began before anything was known of it."""
    return HeldPoll(
        host_id=empty.host_id,
        kid=empty.kid,
        before=empty.before,
        began_at=began_at,
        seconds=empty.wait_seconds,
    )


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
    return EmptyPoll(
        host_id=key.agent.uuid, kid=key.kid, before=before, wait_seconds=wait_seconds, page=page
    )
