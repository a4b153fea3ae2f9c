"""The external scheduler that Nova calls (spec scheduling, 2)."""

from __future__ import annotations

from dataclasses import replace

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.request import Request

from capacity.api.nova_request import NovaCall, parse_nova_call
from capacity.ledger.in_flight_end import UNKNOWN_INTENT, holds_in_flight
from capacity.nova.nova_call import limited_to
from capacity.nova.scheduling import run_scheduling
from capacity.policies import NOVA_EXTERNAL
from core.api import JsonErrorView, error_answer, json_answer
from journal.access_log import note_decision
from journal.middleware import request_id_of
from journal.tracing import REQUEST_ID_PATTERN, with_global_request_id


class NovaExternalView(JsonErrorView):
    """``POST /scheduler/nova/external``."""

    http_method_names = ["post"]
    rule = NOVA_EXTERNAL
    limited_by = "scheduler"  # the section with the longest body
    path_label = "/scheduler/nova/external"

    def post(self, request: Request) -> HttpResponse:
        """Return the hosts for a VM, best first."""
        call = adjusted_call(parse_nova_call(self.body()))
        request_id = request_id_of(self.http_request)
        if REQUEST_ID_PATTERN.fullmatch(call.caller_request_id):
            request_id = call.caller_request_id
        known_id = REQUEST_ID_PATTERN.fullmatch(call.caller_global_id)
        with with_global_request_id(call.caller_global_id if known_id else request_id):
            result = run_scheduling(
                call.request,
                pipeline_name=call.pipeline_name,
                options=call.options,
                actor=self.actor,
                request_id=request_id,
            )
        hosts = result.host_names
        note_decision(
            self.http_request, is_accepted=bool(hosts), reason="" if hosts else result.outcome_class
        )
        if settings.HEADROOM.scheduler.nova_limit_hosts_to_request:
            hosts = limited_to(hosts, call.request.weights or ())  # one for each host, no other
        return json_answer({"hosts": hosts})


def adjusted_call(call: NovaCall) -> NovaCall:
    """Return the call with what the settings say of hosts and candidates.

    Hosts are limited to the request's own before the run, as a mask, so that none is held that
    Nova would not take. A VM gets a few candidates when the caller does not say how many.

    Source: spec scheduling, 2.6 step 1, 13 (``restrict_to_hosts``), 16.3.
    """
    request, options = call.request, call.options
    if settings.HEADROOM.scheduler.nova_limit_hosts_to_request:
        request = replace(request, restrict_to_hosts=request.hosts or ())
    intent = UNKNOWN_INTENT if request.intent is None else request.intent.value
    brings_vm = holds_in_flight(intent) and not (options.read_only or options.skip_inflight)
    if brings_vm and not options.max_candidates:
        options = replace(options, max_candidates=settings.HEADROOM.scheduler.max_candidates_nova)
    return replace(call, request=request, options=options)


@csrf_exempt
def unknown_path(request: HttpRequest, **_: str) -> HttpResponse:
    """Answer every other path of the scheduler, without redirect."""
    return error_answer(request, "not found", status=404)
