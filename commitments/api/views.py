"""The five LIQUID endpoints (spec liquid, 2.4, 7-11)."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from rest_framework.request import Request

from commitments import metrics
from commitments.api.errors import EndpointDisabled, TextErrorView, text_response
from commitments.api.parsing import (
    CapacityRequest,
    UsageRequest,
    parse_change_request,
    parse_project_id,
    parse_quota_request,
    parse_zones,
)
from commitments.api.rendering import change_response
from commitments.domain.changeset import ChangeRequest
from commitments.policies import (
    CHANGE_COMMITMENTS,
    GET_CAPACITY,
    GET_INFO,
    GET_USAGE,
    SET_QUOTA,
)
from commitments.services.change import ChangeOutcome, change_commitments
from commitments.services.info import current_service_info
from commitments.services.quota import set_project_quota
from commitments.services.reports import report_capacity, report_usage
from core.api import json_answer
from journal.access_log import note_decision
from journal.middleware import request_id_of


class LiquidView(TextErrorView):
    """What the five endpoints share: switch, order of checks, metrics.

    The order of checks is that of spec liquid, 2.4: authentication first; then method and switch,
    whose order differs by endpoint; then project id and body, which the handlers read.
    """

    rule = GET_INFO
    switch: ClassVar[str] = ""
    checks_method_first = False
    endpoint_metrics: ClassVar[metrics.EndpointMetrics | None] = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Run the checks that come before the handler."""
        super().initial(request, *args, **kwargs)
        if self.switch and not getattr(settings.HEADROOM.liquid, self.switch):
            raise EndpointDisabled(f"{self.switch.removeprefix('enable_')} is switched off")

    def observe(self, response: HttpResponseBase, seconds: float) -> None:
        """Count an answer in the endpoint's metrics."""
        if self.endpoint_metrics is not None:
            self.endpoint_metrics.observe(status_code=response.status_code, seconds=seconds)


class InfoView(LiquidView):
    """``GET /commitments/v1/info``."""

    http_method_names = ["get"]
    endpoint_metrics = metrics.INFO

    def get(self, request: Request) -> HttpResponse:
        """Return the ServiceInfo."""
        return json_answer(current_service_info().payload)


class ReportCapacityView(LiquidView):
    """``POST /commitments/v1/report-capacity``."""

    http_method_names = ["post"]
    rule = GET_CAPACITY
    switch = "enable_report_capacity"
    endpoint_metrics = metrics.CAPACITY

    def post(self, request: Request) -> HttpResponse:
        """Return capacity and usage of every group in the zones asked for."""
        zones = parse_zones(self.body(), CapacityRequest, is_lenient=True)
        return json_answer(report_capacity(zones))


class ReportUsageView(LiquidView):
    """``POST /commitments/v1/projects/<project_id>/report-usage``."""

    http_method_names = ["post"]
    rule = GET_USAGE
    switch = "enable_report_usage"
    endpoint_metrics = metrics.USAGE

    def post(self, request: Request, project_id: str) -> HttpResponse:
        """Return what a project uses in the zones asked for."""
        project_id = parse_project_id(project_id)
        zones = parse_zones(self.body(), UsageRequest)
        return json_answer(report_usage(project_id, zones))


class QuotaView(LiquidView):
    """``PUT /commitments/v1/projects/<project_id>/quota``."""

    http_method_names = ["put"]
    rule = SET_QUOTA
    switch = "enable_quota"
    checks_method_first = True
    endpoint_metrics = metrics.QUOTA

    def put(self, request: Request, project_id: str) -> HttpResponse:
        """Replace a project's quota."""
        quota = parse_quota_request(self.body(), project_id=parse_project_id(project_id))
        set_project_quota(quota, actor=self.actor, request_id=request_id_of(self.http_request))
        return HttpResponse(status=204)


class ChangeCommitmentsView(LiquidView):
    """``POST /commitments/v1/change-commitments``."""

    http_method_names = ["post"]
    rule = CHANGE_COMMITMENTS
    switch = "enable_change_commitments"
    change: ChangeRequest | None = None
    outcome: ChangeOutcome | None = None

    def post(self, request: Request) -> HttpResponse:
        """Change commitments, all or none."""
        self.change = parse_change_request(self.body())
        self.outcome = change_commitments(
            self.change,
            actor=self.actor,
            request_id=request_id_of(self.http_request),
        )
        reason = self.outcome.rejection_reason
        note_decision(self.http_request, is_accepted=not reason, reason=reason)
        return change_response(self.outcome)

    def observe(self, response: HttpResponseBase, seconds: float) -> None:
        """Count an answer with the number of commitments that the request named."""
        change, outcome = self.change, self.outcome
        metrics.observe_change(
            status_code=response.status_code,
            seconds=seconds,
            is_dry_run=change is not None and change.is_dry_run,
            is_rejected=outcome is not None and bool(outcome.rejection_reason),
            is_timeout=outcome is not None and outcome.is_timeout,
            zone=change.zone if change else "",
            commitments=sum(1 for _ in change.entries()) if change else 0,
        )


@csrf_exempt
def unknown_path(request: HttpRequest, **_: str) -> HttpResponse:
    """Answer every other path of the API, without redirect."""
    return text_response("Not found", status=404)
