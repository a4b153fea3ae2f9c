"""``/api/v1/failover``: what failures would do, drains, drills, and rebalancing."""

from __future__ import annotations

from typing import Annotated

import orjson
from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from core.api import JSON, ProblemView, json_answer
from core.idempotent import IdempotentView
from core.json_bodies import Body, Elements, Id, Name, given, one_of, read_body, whole
from core.stored_text import check_text
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
from journal.middleware import request_id_of

LONGEST_NAME = 255
MOST_STEPS = 100_000
MOST_NAMES = 20_000


_Names = Annotated[Elements[Name], Field(max_length=MOST_NAMES)]


class _Failed(Body):
    hosts: _Names = ()
    racks: _Names = ()
    azs: _Names = ()


class _Simulation(Body):
    policy: Annotated[DrillPolicy, one_of(DrillPolicy)] = DrillPolicy.MATCHING
    failed: _Failed = _Failed()
    explain: bool = False


class _Drain(Body):
    hosts: Annotated[Elements[Name], Field(max_length=MOST_HOSTS)] = ()


class _Rebalance(Body):
    zone: Name = ""
    steps: Annotated[int, whole(1, MOST_STEPS)] | None = None
    apply: bool = False


class _Replan(Body):
    vm: Annotated[Id, given("must be the uuid of a VM")] = Field("", validate_default=True)
    apply: bool = False


class FailoverView(ProblemView):
    """Most are questions; readers may ask them."""

    http_method_names = ["post"]


class SimulationView(FailoverView):
    """``POST /api/v1/failover/simulations`` (spec failover, 17.2)."""

    path_label = "/api/v1/failover/simulations"

    def post(self, request: Request) -> HttpResponse:
        """Return what the loss of hosts, racks and zones would do; writes nothing."""
        asked = read_body(_Simulation, self.body())
        failed = asked.failed
        failure = FailureSet(hosts=failed.hosts, racks=failed.racks, zones=failed.azs)
        with heavy_question():
            try:
                state, lost = loss_state(failure, now=database_now())
            except UnknownFailureDomainError as error:
                raise InvalidInput(str(error), code="unknown_failure_domain") from None
            content = computed_apart(
                lambda: _simulated(state, lost, asked.policy, explains=asked.explain)
            )
        return HttpResponse(content, content_type=JSON)


class DrainCheckView(FailoverView):
    """``POST /api/v1/failover/drain-check``."""

    path_label = "/api/v1/failover/drain-check"

    def post(self, request: Request) -> HttpResponse:
        """Return whether hosts may be drained together; writes nothing."""
        names = read_body(_Drain, self.body()).hosts
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
        asked = read_body(_Rebalance, self.body())
        zone, steps = asked.zone, asked.steps
        if zone not in failover_zones():
            raise InvalidInput(f"no such zone: {zone}", code="unknown_zone")
        request_id = request_id_of(self.http_request)
        if asked.apply:
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
        asked = read_body(_Replan, self.body())
        done = replan_vm(
            asked.vm,
            request_id=request_id_of(self.http_request),
            is_dry_run=not asked.apply,
        )
        return json_answer(replan_document(done))


def _asked_zone(request: Request) -> str | None:
    zone = request.GET.get("zone")
    if zone is None:
        return None
    return check_text(zone, path="zone", max_length=LONGEST_NAME)


def _simulated(
    state: DrillState, failed: frozenset[str], policy: DrillPolicy, *, explains: bool
) -> bytes:
    result = simulate(state, failed, policy=policy)
    document = simulation_document(result)
    if explains:
        document["explanation"] = explanation_document(state, result)
    return orjson.dumps(document)
