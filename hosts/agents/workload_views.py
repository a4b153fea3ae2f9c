"""``/hosts/v1/ID/reservations``: what agents are asked to make, and what they answer."""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from rest_framework.request import Request

from core.api import json_answer
from hosts.agents.errors import AgentGone
from hosts.agents.polls import ReservationPage, poll_query, read_one, read_page
from hosts.agents.signed import agent_of
from hosts.agents.views import AgentView


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

    http_method_names = ["get"]
    path_label = "/hosts/v1/{id}/reservations/{gwid}"

    def get(self, request: Request, host_id: uuid.UUID, gwid: str) -> HttpResponse:
        """Return the signed reservation: 200, or 410 with it in ``details`` when it is gone."""
        agent = agent_of(self.http_request, self.body(), path_id=host_id)
        document, is_gone = read_one(agent, gwid)
        if is_gone:
            raise AgentGone(
                "the reservation is gone", code="reservation_deleted", tombstone=document
            )
        return json_answer(document)


def page_answer(page: ReservationPage) -> HttpResponse:
    """Return the answer to a poll."""
    answer = json_answer(page.document())
    answer["X-Last-Id"] = str(page.last_id)
    return answer
