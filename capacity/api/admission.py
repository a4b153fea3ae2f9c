"""``POST /api/v1/hosts/NAME/check-admission``: whether a host has room (spec hosts, A.9, D.6)."""

from __future__ import annotations

from typing import ClassVar, Final

from django.http import HttpResponse
from headroom_host_agent.resources.admission import AllocationRequest
from rest_framework.request import Request

from capacity.agents.admission import HostRoomUnknown, check_admission
from core.api import ProblemView, json_answer
from journal.auth import RULE_API_READ
from journal.json_node import parse_json

_AMOUNTS: Final = (
    "vcpus",
    "memory_bytes",
    "disk_bytes",
    "network_download_bps",
    "network_upload_bps",
    "disk_io_bps",
)


class CheckAdmissionView(ProblemView):
    """Answers a question; nothing is held."""

    rule: ClassVar[str] = RULE_API_READ
    http_method_names = ["post"]
    path_label = "/api/v1/hosts/{name}/check-admission"

    def post(self, request: Request, name: str) -> HttpResponse:
        """Return what is short, and the largest request of the same shape that fits."""
        node = parse_json(self.body())
        amounts = {amount: node.member(amount).unsigned() for amount in _AMOUNTS}
        asked = AllocationRequest(**amounts, needs_gpu=node.member("needs_gpu").flag())
        if not name.isprintable():
            raise HostRoomUnknown("no such host", field="host")
        found = check_admission(name, asked)
        return json_answer(
            {
                "host": name,
                "fits": found.fits,
                "failures": [one.to_json() for one in found.failures],
                "largest_fit": _told(found.largest_fit),
                "unchecked": list(found.unchecked),
            }
        )


def _told(request: AllocationRequest | None) -> dict[str, object] | None:
    if request is None:
        return None
    told: dict[str, object] = {amount: getattr(request, amount) for amount in _AMOUNTS}
    return told | {"needs_gpu": request.needs_gpu}
