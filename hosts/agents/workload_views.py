"""``/hosts/v1/ID/reservations``: what agents are asked to make, and what they answer."""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from rest_framework.request import Request

from core.api import json_answer
from hosts.agents.errors import AgentGone
from hosts.agents.polls import ReservationPage, poll_query, read_one, read_page
from hosts.agents.results import take_result
from hosts.agents.signed import agent_of
from hosts.agents.views import AgentView
from journal.middleware import request_id_of


class ReservationsView(AgentView):
    """``GET /hosts/v1/ID/reservations``: what is new for an agent; held elsewhere, not here."""

    http_method_names = ["get"]
    path_label = "/hosts/v1/{id}/reservations"

    def get(self, request: Request, host_id: uuid.UUID) -> HttpResponse:
        """Return a page, at once."""
        agent = agent_of(self.http_request, self.body(), path_id=host_id)
        query = poll_query(self.http_request.GET.dict())
        return page_answer(read_page(agent.pk, query))


class ReservationView(AgentView):
    """``GET /hosts/v1/ID/reservations/GWID``: one reservation, or its tombstone."""

    http_method_names = ["get", "delete"]
    path_label = "/hosts/v1/{id}/reservations/{gwid}"

    def get(self, request: Request, host_id: uuid.UUID, gwid: str) -> HttpResponse:
        """Return the signed reservation: 200, or 410 with it as ``tombstone`` when it is gone."""
        agent = agent_of(self.http_request, self.body(), path_id=host_id)
        document, is_gone = read_one(agent, gwid)
        if is_gone:
            raise AgentGone(
                "the reservation is gone", code="reservation_deleted", tombstone=document
            )
        return json_answer(document)

    def delete(self, request: Request, host_id: uuid.UUID, gwid: str) -> HttpResponse:
        """Take the word that a reservation is gone, as ``PUT .../deleted`` does."""
        return _told(self, host_id, gwid, is_deletion=True)


class ResultView(AgentView):
    """``PUT /hosts/v1/ID/reservations/GWID/result``: what became of an attempt."""

    http_method_names = ["put"]
    path_label = "/hosts/v1/{id}/reservations/{gwid}/result"

    def put(self, request: Request, host_id: uuid.UUID, gwid: str) -> HttpResponse:
        """Take a signed result: 201, or 200 when it was told before."""
        return _told(self, host_id, gwid, is_deletion=False)


class DeletedView(AgentView):
    """``PUT /hosts/v1/ID/reservations/GWID/deleted``: a reservation is gone from its host."""

    http_method_names = ["put"]
    path_label = "/hosts/v1/{id}/reservations/{gwid}/deleted"

    def put(self, request: Request, host_id: uuid.UUID, gwid: str) -> HttpResponse:
        """Take a signed result whose state is ``deleted``."""
        return _told(self, host_id, gwid, is_deletion=True)


def _told(view: AgentView, host_id: uuid.UUID, gwid: str, *, is_deletion: bool) -> HttpResponse:
    body = view.body()
    agent = agent_of(view.http_request, body, path_id=host_id)
    request_id = request_id_of(view.http_request)
    sent = view.document(body)
    taken = take_result(agent, gwid, sent, is_deletion=is_deletion, request_id=request_id)
    status = 201 if taken.is_new and not is_deletion else 200
    return json_answer({"state": taken.state.value}, status=status)


def page_answer(page: ReservationPage) -> HttpResponse:
    """Return the answer to a poll."""
    answer = json_answer(page.document())
    answer["X-Last-Id"] = str(page.last_id)
    return answer
