"""``/api/v1/failover``: what failures would do, drains, drills, and rebalancing."""

from __future__ import annotations

import orjson
from django.http import HttpResponse
from rest_framework.request import Request

from core.api import JSON, ProblemView, json_answer
from core.idempotent import IdempotentView
from failover.api.rendering import (
    drain_document,
    drill_document,
    explanation_document,
    rebalancing_document,
    replan_document,
    shadow_plan_document,
    simulation_document,
)
from failover.domain.drill import DrillPolicy, simulate
from failover.domain.drill_state import DrillState, FailureSet, UnknownFailureDomainError
from failover.selectors.drain import MOST_HOSTS, check_drain
from failover.selectors.drills import latest_drills, latest_shadow_plans
from failover.selectors.losses import loss_state
from failover.selectors.zone import failover_zones
from failover.services.orders import start_rebalancing
from failover.services.rebalancing import NoShadowPlan, rebalance_zone
from failover.services.replanning import replan_vm
from failover.services.shadow_plans import compute_shadow_plan
from journal.auth import RULE_API_READ, RULE_API_WRITE
from journal.clock import database_now
from journal.errors import InvalidInput
from journal.heavy import computed_apart, heavy_question
from journal.json_node import JSONNode, check_text, parse_json
from journal.middleware import request_id_of

LONGEST_NAME = 255
LONGEST_UUID = 64
MOST_STEPS = 100_000
MOST_NAMES = 20_000


class FailoverView(ProblemView):
    """Most are questions; readers may ask them."""

    http_method_names = ["post"]


class SimulationView(FailoverView):
    """``POST /api/v1/failover/simulations`` (spec failover, 17.2)."""

    path_label = "/api/v1/failover/simulations"

    def post(self, request: Request) -> HttpResponse:
        """Return what the loss of hosts, racks and zones would do; writes nothing."""
        node = parse_json(self.body())
        policy, failure = _policy(node), _failure(node.member("failed"))
        explain = node.member("explain")
        explains = explain.is_set and explain.flag()
        with heavy_question():
            try:
                state, failed = loss_state(failure, now=database_now())
            except UnknownFailureDomainError as error:
                raise InvalidInput(str(error), code="unknown_failure_domain") from None
            content = computed_apart(lambda: _simulated(state, failed, policy, explains=explains))
        return HttpResponse(content, content_type=JSON)


class DrainCheckView(FailoverView):
    """``POST /api/v1/failover/drain-check``."""

    path_label = "/api/v1/failover/drain-check"

    def post(self, request: Request) -> HttpResponse:
        """Return whether hosts may be drained together; writes nothing."""
        node = parse_json(self.body()).member("hosts")
        names = node.texts(max_length=LONGEST_NAME, most=MOST_HOSTS)
        with heavy_question():
            answer = check_drain(names, now=database_now(), computed=computed_apart)
        return json_answer(drain_document(answer))


class DrillsView(FailoverView):
    """``GET /api/v1/failover/drills``."""

    rule = RULE_API_READ
    http_method_names = ["get"]
    path_label = "/api/v1/failover/drills"

    def get(self, request: Request) -> HttpResponse:
        """Return the newest drill of each scope, of one zone or of all."""
        rows = latest_drills(_asked_zone(request))
        return json_answer({"drills": [drill_document(row) for row in rows]})


class ShadowPlansView(FailoverView):
    """``GET /api/v1/failover/shadow-plans``."""

    rule = RULE_API_READ
    http_method_names = ["get"]
    path_label = "/api/v1/failover/shadow-plans"

    def get(self, request: Request) -> HttpResponse:
        """Return the newest shadow plan of each zone and how far it is carried out."""
        rows = latest_shadow_plans(_asked_zone(request))
        return json_answer({"shadow_plans": [shadow_plan_document(row) for row in rows]})


class RebalancesView(IdempotentView):
    """``POST /api/v1/failover/rebalances`` (spec failover, 17.4)."""

    rule = RULE_API_WRITE
    path_label = "/api/v1/failover/rebalances"

    def write(self, request: Request) -> HttpResponse:
        """Plan a zone from scratch and return what would be done, or start doing it.

        Raises:
            InvalidInput: there is no such zone.
        """
        node = parse_json(self.body())
        zone = node.member("zone").text(max_length=LONGEST_NAME)
        steps = _steps(node.member("steps"))
        if zone not in failover_zones():
            raise InvalidInput(f"no such zone: {zone}", code="unknown_zone")
        request_id = request_id_of(self.http_request)
        if node.member("apply").flag():
            start_rebalancing(zone, steps)
            return json_answer({"zone": zone, "started": True}, status=202)
        now = database_now()
        with heavy_question():
            plan = compute_shadow_plan(
                zone, request_id=request_id, now=now, computed=computed_apart
            )
            try:
                would = rebalance_zone(
                    zone,
                    actor=self.actor,
                    request_id=request_id,
                    now=now,
                    most_steps=steps,
                    is_dry_run=True,
                    computed=computed_apart,
                )
            except NoShadowPlan:
                would = None
        document = {
            "zone": zone,
            "started": False,
            "shadow_plan": shadow_plan_document(plan),
            "rebalancing": None if would is None else rebalancing_document(would),
        }
        return json_answer(document)


class ReplansView(IdempotentView):
    """``POST /api/v1/failover/replans`` (spec failover, 17.8)."""

    rule = RULE_API_WRITE
    path_label = "/api/v1/failover/replans"

    def write(self, request: Request) -> HttpResponse:
        """Plan one VM now, or say what that would do.

        Raises:
            InvalidInput: no VM is named.
        """
        node = parse_json(self.body())
        vm_uuid = node.member("vm").text(max_length=LONGEST_UUID)
        if not vm_uuid:
            raise node.member("vm").wrong("must be the uuid of a VM")
        done = replan_vm(
            vm_uuid,
            request_id=request_id_of(self.http_request),
            is_dry_run=not node.member("apply").flag(),
        )
        return json_answer(replan_document(done))


def _asked_zone(request: Request) -> str | None:
    zone = request.GET.get("zone")
    if zone is None:
        return None
    return check_text(zone, path="zone", max_length=LONGEST_NAME)


def _steps(node: JSONNode) -> int | None:
    if not node.is_set:
        return None
    steps = node.unsigned()
    if not 1 <= steps <= MOST_STEPS:
        raise node.wrong(f"must be from 1 to {MOST_STEPS}")
    return steps


def _simulated(
    state: DrillState, failed: frozenset[str], policy: DrillPolicy, *, explains: bool
) -> bytes:
    result = simulate(state, failed, policy=policy)
    document = simulation_document(result)
    if explains:
        document["explanation"] = explanation_document(state, result)
    return orjson.dumps(document)


def _policy(node: JSONNode) -> DrillPolicy:
    given = node.member("policy")
    if not given.is_set:
        return DrillPolicy.MATCHING
    word = given.text(max_length=LONGEST_NAME)
    if word not in set(DrillPolicy):
        raise given.wrong(f"must be one of {', '.join(DrillPolicy)}")
    return DrillPolicy(word)


def _failure(node: JSONNode) -> FailureSet:
    return FailureSet(
        hosts=node.member("hosts").texts(max_length=LONGEST_NAME, most=MOST_NAMES),
        racks=node.member("racks").texts(max_length=LONGEST_NAME, most=MOST_NAMES),
        zones=node.member("azs").texts(max_length=LONGEST_NAME, most=MOST_NAMES),
    )
