"""``/hosts/v1/ID/instances`` and ``.../stats``: what agents see on their hosts."""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from rest_framework.request import Request

from hosts.agents.observed import change_instances, store_instances, store_stats
from hosts.agents.signed import agent_of
from hosts.agents.views import AgentView
from journal.middleware import request_id_of


class InstancesView(AgentView):
    """``PUT`` and ``PATCH /hosts/v1/ID/instances``: the VMs of a host, or what changed of them."""

    http_method_names = ["put", "patch"]
    path_label = "/hosts/v1/{id}/instances"

    def put(self, request: Request, host_id: uuid.UUID) -> HttpResponse:
        """Keep the whole list."""
        body = self.body()
        agent = agent_of(self.http_request, body, path_id=host_id)
        store_instances(agent, self.document(body))
        return HttpResponse(status=204)

    def patch(self, request: Request, host_id: uuid.UUID) -> HttpResponse:
        """Change the list that is kept."""
        body = self.body()
        agent = agent_of(self.http_request, body, path_id=host_id)
        change_instances(agent, self.document(body))
        return HttpResponse(status=204)


class StatsView(AgentView):
    """``PUT /hosts/v1/ID/stats``: what an agent has made."""

    http_method_names = ["put"]
    path_label = "/hosts/v1/{id}/stats"

    def put(self, request: Request, host_id: uuid.UUID) -> HttpResponse:
        """Keep it and compare it."""
        body = self.body()
        agent = agent_of(self.http_request, body, path_id=host_id)
        store_stats(agent, self.document(body), request_id=request_id_of(self.http_request))
        return HttpResponse(status=204)
