"""``POST /api/v1/commitments/what-if``: a batch on an edited region, nothing written."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import orjson
from django.http import HttpResponse
from pydantic import AfterValidator, Field
from rest_framework.request import Request

from capacity.ledger.slot_request import SlotAsk
from commitments.api.parsing import ChangeBody
from commitments.api.rendering import rfc3339
from commitments.domain.admission import AdmissionPlan, CommitmentDecision
from commitments.domain.advice import Advice
from commitments.domain.what_if import WhatIfAnswer
from commitments.policies import WHAT_IF
from commitments.services.advice import whole_second_at_or_after
from commitments.services.what_if import AddedHosts, WhatIfQuestion, prepare_what_if
from core.api import JSON, ProblemView
from core.json_bodies import Body, Elements, Moment, Name, Text, given, problem, read_body, whole
from journal.clock import database_now
from journal.heavy import computed_apart, heavy_question

MOST_NEW_HOSTS = 1_000
MOST_NEW_HOSTS_TOGETHER = 10_000
MOST_NAMES = 10_000


def _within_reason(added: tuple[_AddedHosts, ...]) -> tuple[_AddedHosts, ...]:
    together = sum(one.count for one in added)
    if together > MOST_NEW_HOSTS_TOGETHER:
        raise problem(f"{together} new hosts in all, at most {MOST_NEW_HOSTS_TOGETHER} are allowed")
    return added


_HostNames = Annotated[Elements[Name], Field(max_length=MOST_NAMES)]


class _AddedHosts(Body):
    like: Annotated[Name, given("must name the host that the new ones are like")] = Field(
        "", validate_default=True
    )
    count: Annotated[int, whole(1, MOST_NEW_HOSTS)] = 1


class _Edit(Body):
    hosts_added: Annotated[Elements[_AddedHosts], AfterValidator(_within_reason)] = ()
    hosts_drained: _HostNames = ()
    hosts_failed: _HostNames = ()
    commitments_added: ChangeBody | None = None
    commitments_expired: Annotated[Elements[Text], Field(max_length=MOST_NAMES)] = ()


class _Question(Body):
    batch: ChangeBody = Field({}, validate_default=True)
    at: Moment = None
    edit: _Edit = _Edit()

    def question(self) -> WhatIfQuestion:
        """Return what an operator asks."""
        added = self.edit.commitments_added
        return WhatIfQuestion(
            batch=self.batch.request(),
            at=self.at,
            hosts_added=tuple(AddedHosts(**vars(one)) for one in self.edit.hosts_added),
            hosts_drained=self.edit.hosts_drained,
            hosts_failed=self.edit.hosts_failed,
            added=None if added is None else added.request(),
            expired=self.edit.commitments_expired,
        )


class WhatIfView(ProblemView):
    """Decides a change request on the region as it would be."""

    rule = WHAT_IF
    http_method_names = ["post"]
    path_label = "/api/v1/commitments/what-if"

    def post(self, request: Request) -> HttpResponse:
        """Return the decisions, and for a refusal what would fit."""
        with heavy_question():
            answer = prepare_what_if(parse_question(self.body()), now=database_now())
            content = computed_apart(lambda: orjson.dumps(answer_document(answer())))
        return HttpResponse(content, content_type=JSON)


def parse_question(body: bytes) -> WhatIfQuestion:
    """Return the question that a body asks.

    Raises:
        InvalidInput: a field is malformed, or a number is out of range.
    """
    return read_body(_Question, body).question()


def answer_document(answer: WhatIfAnswer) -> dict[str, Any]:
    """Return an answer as plain values: memory in bytes, amounts in declared units."""
    fit = answer.advice.fit
    return {
        "accepted": not answer.plan.rejections,
        "decisions": _decisions(answer.plan, answer.advice),
        "commitments_added": _decisions(answer.added, Advice()),
        "unplaced": [_unplaced(ask) for ask in answer.unplaced],
        "fits_in_zones": list(answer.advice.zones),
        "retry_at": None if fit is None else rfc3339(whole_second_at_or_after(fit.at)),
    }


def _decisions(plan: AdmissionPlan, advice: Advice) -> list[dict[str, Any]]:
    return [_decision(decision, advice) for decision in plan.decisions]


def _decision(decision: CommitmentDecision, advice: Advice) -> dict[str, Any]:
    uuid, desired = decision.target.commitment_uuid, decision.target.desired
    hosts = Counter(
        placement.decision.host_name
        for placement in decision.placements
        if placement.decision is not None and placement.decision.host_name is not None
    )
    missing = sum(placement.host_id is None for placement in decision.placements)
    return {
        "commitment_uuid": uuid,
        "project_id": None if desired is None else desired.project_id,
        "zone": None if desired is None else desired.zone,
        "flavor_group": None if desired is None else desired.flavor_group_name,
        "resource_type": None if desired is None else desired.resource_type.value,
        "outcome": decision.outcome.value,
        "message": decision.message,
        "cause": advice.causes.get(uuid, ""),
        "fits_now_units": advice.smaller_units.get(uuid),
        "new_slots_by_host": dict(sorted(hosts.items())),
        "slots_without_host": missing,
    }


def _unplaced(ask: SlotAsk) -> dict[str, Any]:
    return {
        "what": f"VM {ask.slot_name}" if ask.vm is not None else ask.slot_name,
        "project_id": ask.project_id,
        "zone": ask.zone,
        "memory_bytes": ask.slot.memory_bytes,
        "vcpus": ask.slot.vcpus,
    }
