"""The external scheduler that Nova calls (spec scheduling, 2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import orjson
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.request import Request
from rest_framework.views import APIView

from capacity import metrics_scheduling as metrics
from capacity.api import errors
from capacity.api.nova_request import NovaCall, parse_nova_call
from capacity.domain.in_flight import holds_in_flight
from capacity.domain.nova_call import limited_to
from capacity.policies import NOVA_EXTERNAL
from capacity.services.scheduling import UNKNOWN_INTENT, run_scheduling
from journal.access_log import note_decision
from journal.actors import Actor
from journal.auth import authenticate, authorise
from journal.bodies import body_of
from journal.middleware import request_id_of
from journal.tracing import REQUEST_ID_PATTERN, with_global_request_id


class SchedulerView(APIView):
    """What scheduler endpoints share: authentication, size, method, error shape, metrics."""

    rule: ClassVar[str] = NOVA_EXTERNAL
    path_label: ClassVar[str] = ""
    limited_by: ClassVar[str] = "scheduler"  # the section with the longest body
    http_request: HttpRequest
    actor: Actor
    error_text: str = ""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Run the checks that come before the handler; DRF itself checks the method last."""
        self.actor = authenticate(self.http_request)
        authorise(self.actor, self.rule)
        if str(request.method).lower() not in self.http_method_names:
            raise MethodNotAllowed(str(request.method))

    def body(self) -> bytes:
        """Return the body.

        Raises:
            BodyTooLarge: it is larger than the settings allow.
            LengthRequired: it comes in chunks.
        """
        limits = getattr(settings.HEADROOM, self.limited_by)
        try:
            return body_of(self.http_request, limit_mib=limits.max_body_mib)
        except RequestDataTooBig as error:
            raise errors.BodyTooLarge(str(error)) from None

    def get_exception_handler(self) -> Callable[[Exception, Mapping[str, object]], HttpResponse]:
        """Answer errors in the scheduler's shape."""

        def answer(error: Exception, context: Mapping[str, object]) -> HttpResponse:
            del context
            response, self.error_text = errors.answered_error(self.http_request, error)
            return response

        return answer

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Serve a request and count it."""
        started = time.perf_counter()
        self.http_request = request
        response = super().dispatch(request, *args, **kwargs)
        method = str(request.method)
        metrics.API_DURATION_SECONDS.labels(
            method=method if method in KNOWN_METHODS else "other",
            path=self.path_label,
            status=str(response.status_code),
            error=self.error_text,
        ).observe(time.perf_counter() - started)
        return response


KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class NovaExternalView(SchedulerView):
    """``POST /scheduler/nova/external``."""

    http_method_names = ["post"]
    path_label = "/scheduler/nova/external"

    def post(self, request: Request) -> HttpResponse:
        """Return the hosts for a VM, best first."""
        del request
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
        return HttpResponse(orjson.dumps({"hosts": hosts}), content_type="application/json")


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
    return errors.error_response(request, "not found", status=404)
