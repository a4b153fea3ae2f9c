"""``POST /api/v1/hosts/NAME/check-admission``: whether a host has room (spec hosts, A.9, D.6)."""

from __future__ import annotations

from typing import ClassVar

from django.http import HttpResponse
from headroom_host_agent.resources.admission import AllocationRequest
from rest_framework.request import Request

from capacity.agents.admission import HostRoomUnknown, check_admission
from core.api import ProblemView, json_answer
from core.json_bodies import Body, Unsigned, read_body
from journal.auth import RULE_API_READ


class _Question(Body):
    vcpus: Unsigned = 0
    memory_bytes: Unsigned = 0
    disk_bytes: Unsigned = 0
    network_download_bps: Unsigned = 0
    network_upload_bps: Unsigned = 0
    disk_io_bps: Unsigned = 0
    needs_gpu: bool = False


class CheckAdmissionView(ProblemView):
    """Answers a question; nothing is held."""

    rule: ClassVar[str] = RULE_API_READ
    http_method_names = ["post"]
    path_label = "/api/v1/hosts/{name}/check-admission"

    def post(self, request: Request, name: str) -> HttpResponse:
        """Return what is short, and the largest request of the same shape that fits."""
        asked = AllocationRequest(**vars(read_body(_Question, self.body())))
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
    return {name: getattr(request, name) for name in _Question.model_fields}
