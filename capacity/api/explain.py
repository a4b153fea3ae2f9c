"""Explanations of what a pipeline would decide (spec scheduling, 16.1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from capacity.api.nova_request import DECODE, HOSTS_IN_DETAIL, parse_nova_call
from capacity.nova.explanations import MOST_HOSTS_IN_DETAIL, explain
from capacity.nova.scheduling import prepared_request
from capacity.policies import EXPLAIN
from core.api import InvalidCall, ProblemView, json_answer
from core.json_bodies import Body, Elements, Name, checked
from journal.errors import InvalidInput
from journal.heavy import Length, computed_apart, heavy_question
from scheduling.request import UnplaceableRequestError


class _Detailed(Body):
    explain_hosts: Annotated[Elements[Name], Field(max_length=MOST_HOSTS_IN_DETAIL)] = ()


class ExplainView(ProblemView):
    """``POST /api/v1/scheduling/explain``: Nova's body, and hosts to explain in detail."""

    rule = EXPLAIN
    limited_by = "scheduler"
    http_method_names = ["post"]
    path_label = "/api/v1/scheduling/explain"

    def post(self, request: Request) -> HttpResponse:
        """Return per host the first filter that removes it, scores, and details; writes nothing."""
        call = parse_nova_call(self.body())
        options = replace(
            call.options,
            read_only=True,
            skip_history=True,
            skip_inflight=True,
            skip_committed_resource_tracking=True,
        )
        offered = call.request.hosts or None
        wanted = replace(
            call.request,
            hosts=offered,
            restrict_to_hosts=None if offered is None else frozenset(offered),
        )
        prepared = prepared_request(wanted, pipeline_name=call.pipeline_name, options=options)
        try:
            with heavy_question(Length.SHORT):
                explanation = explain(
                    prepared.request,
                    prepared.pipeline.pipeline,
                    options=options,
                    host_names=_detailed_hosts(call.hosts_in_detail),
                    computed=computed_apart,
                )
        except UnplaceableRequestError as error:
            raise InvalidInput(str(error), code="unplaceable_request") from None
        return json_answer(explanation.as_document())


def _detailed_hosts(listed: object) -> tuple[str, ...]:
    """Return the hosts to explain; of calls that Nova makes nobody looks whether it is a list."""
    try:
        return checked(_Detailed.model_validate, {HOSTS_IN_DETAIL: listed}).explain_hosts
    except InvalidInput as error:
        raise InvalidCall(DECODE, error.message) from None
