"""``/api/v1/failover``: what a failure would do, and whether hosts may be drained."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson
from django.http import HttpResponse
from django.utils import timezone
from rest_framework.request import Request

from capacity.api.problems import problem_response
from capacity.api.views import SchedulerView
from failover.api.rendering import drain_document, explanation_document, simulation_document
from failover.domain.drill import DrillPolicy, simulate
from failover.domain.drill_state import FailureSet, UnknownFailureDomainError
from failover.selectors.drain import MOST_HOSTS, check_drain
from failover.selectors.drills import drill_state
from failover.selectors.zone import failover_zones
from journal.auth import RULE_READ_ONLY
from journal.errors import InvalidInput
from journal.json_node import JSONNode, parse_json

LONGEST_NAME = 255
MOST_NAMES = 20_000


class FailoverView(SchedulerView):
    """What the endpoints share: readers may ask, errors are problem details."""

    rule = RULE_READ_ONLY
    http_method_names = ["post"]

    def get_exception_handler(self) -> Callable[[Exception, Mapping[str, object]], HttpResponse]:
        """Answer errors as problem details."""

        def answer(error: Exception, context: Mapping[str, object]) -> HttpResponse:
            del context
            response, self.error_text = problem_response(self.http_request, error)
            return response

        return answer


class SimulationView(FailoverView):
    """``POST /api/v1/failover/simulations`` (spec failover, 17.2)."""

    path_label = "/api/v1/failover/simulations"

    def post(self, request: Request) -> HttpResponse:
        """Return what the loss of hosts, racks and zones would do; writes nothing."""
        del request
        node = parse_json(self.body())
        policy, failure = _policy(node), _failure(node.member("failed"))
        explain = node.member("explain")
        state = drill_state(failover_zones(), now=timezone.now())
        try:
            failed = state.expand(failure)
        except UnknownFailureDomainError as error:
            raise InvalidInput(str(error), code="unknown_failure_domain") from None
        result = simulate(state, failed, policy=policy)
        document = simulation_document(result)
        if explain.is_set and explain.flag():
            document["explanation"] = explanation_document(state, result)
        return HttpResponse(orjson.dumps(document), content_type="application/json")


class DrainCheckView(FailoverView):
    """``POST /api/v1/failover/drain-check``."""

    path_label = "/api/v1/failover/drain-check"

    def post(self, request: Request) -> HttpResponse:
        """Return whether hosts may be drained together; writes nothing."""
        del request
        names = _names(parse_json(self.body()).member("hosts"), MOST_HOSTS)
        document = drain_document(check_drain(names, now=timezone.now()))
        return HttpResponse(orjson.dumps(document), content_type="application/json")


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
        hosts=_names(node.member("hosts"), MOST_NAMES),
        racks=_names(node.member("racks"), MOST_NAMES),
        zones=_names(node.member("azs"), MOST_NAMES),
    )


def _names(node: JSONNode, most: int) -> tuple[str, ...]:
    if not node.is_set:
        return ()
    names = tuple(item.text(max_length=LONGEST_NAME) for item in node.items())
    if len(names) > most:
        raise node.wrong(f"at most {most} names are allowed")
    return names
