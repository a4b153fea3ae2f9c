"""``GET /api/v1/hosts/NAME/offboarding``: how far a host is out of service (spec hosts, C.3)."""

from __future__ import annotations

from typing import ClassVar

from django.http import HttpResponse
from rest_framework.request import Request

from capacity.offboarding import holdings_of, life_of
from core.api import ProblemView, json_answer
from hosts.domain.offboarding import offboarding
from hosts.models import Host
from hosts.services.host_orders import UnknownHost
from journal.auth import RULE_API_READ


class OffboardingView(ProblemView):
    """Answers a question; nothing is changed."""

    rule: ClassVar[str] = RULE_API_READ
    http_method_names = ["get"]
    path_label = "/api/v1/hosts/{name}/offboarding"

    def get(self, request: Request, name: str) -> HttpResponse:
        """Return readiness, the steps that are done, and what is still there.

        Raises:
            UnknownHost: There is none of this name.
        """
        host = Host.objects.filter(name=name).first() if name.isprintable() else None
        if host is None:
            raise UnknownHost(name)
        holdings = holdings_of(host)
        readiness = life_of(host, holdings)
        return json_answer(
            {
                "host": name,
                "readiness": {
                    "is_ready": readiness.is_ready,
                    "reason": readiness.reason,
                    "message": readiness.message,
                },
                "steps": [
                    {"step": step.value, "is_done": is_done}
                    for step, is_done in offboarding(holdings)
                ],
                "left": {
                    "reservations": holdings.reservations,
                    "vms": holdings.vms,
                    "agents": int(holdings.has_agent),
                    "aggregates": holdings.aggregates,
                },
            }
        )
