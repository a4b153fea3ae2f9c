"""``/api/v1/hosts/NAME``: what operators order about agents (spec hosts, D.6)."""

from __future__ import annotations

from abc import abstractmethod
from decimal import Decimal
from typing import ClassVar, TypeVar

from django.http import HttpResponse
from rest_framework.request import Request

from core.api import json_answer
from core.idempotent import IdempotentView
from hosts.agents.commands import AgentCommand, command_agent
from hosts.agents.errors import NoAgent
from hosts.agents.leases import fence
from hosts.agents.models import AgentMode
from hosts.agents.modes import decommission, set_mode
from hosts.agents.workloads import delete_forgotten, delete_workload
from hosts.domain.overcommit import ratio_problem
from hosts.models import Maintenance
from hosts.services.host_orders import MOST_PROJECTS, HostOrder
from hosts.services.lifecycles import (
    LONGEST_NAME,
    OnboardingOrder,
    abort_onboarding,
    order_onboarding,
)
from journal.auth import RULE_API_WRITE
from journal.json_node import JSONNode, parse_json
from journal.middleware import request_id_of

LONGEST_WORD = 64
LONGEST_REASON = 1000
#: What ``PATCH`` of a host knows.
PATCHED = frozenset(
    {
        "agent_mode",
        "maintenance",
        "maintenance_reason",
        "allowed_projects",
        "overcommit",
        "high_availability",
        "reason",
    }
)
_Words = TypeVar("_Words", AgentMode, Maintenance)


class HostOrderView(IdempotentView):
    """An order about the agent of a host; audited with its reason.

    ``is_task``: it is taken now and goes on after the answer (202), which has the id that the audit
    has it under.
    """

    rule: ClassVar[str] = RULE_API_WRITE
    is_task: ClassVar[bool] = False

    def write(self, request: Request) -> HttpResponse:
        """Carry the order out."""
        name = str(self.kwargs["name"])
        if not name.isprintable():
            raise NoAgent(name)
        node = parse_json(self.body())
        reason = node.member("reason").text(max_length=LONGEST_REASON)
        told = {"host": name, **self.order(name, reason, node)}
        if not self.is_task:
            return json_answer(told)
        return json_answer(told | {"task_id": request_id_of(self.http_request)}, status=202)

    @abstractmethod
    def order(self, name: str, reason: str, node: JSONNode) -> dict[str, object]:
        """Carry it out; return what is answered beside the host."""


class ModeView(HostOrderView):
    """``POST /api/v1/hosts/NAME/mode``."""

    path_label = "/api/v1/hosts/{name}/mode"

    def order(self, name: str, reason: str, node: JSONNode) -> dict[str, object]:
        """Let the agent do more or less."""
        given = node.member("mode")
        mode = given.text(max_length=LONGEST_WORD)
        if mode not in AgentMode.values:
            raise given.wrong(f"must be one of {', '.join(AgentMode.values)}")
        request_id = request_id_of(self.http_request)
        set_mode(name, AgentMode(mode), actor=self.actor, request_id=request_id, reason=reason)
        return {"mode": mode}


class FenceView(HostOrderView):
    """``POST /api/v1/hosts/NAME/fence``."""

    path_label = "/api/v1/hosts/{name}/fence"
    is_task = True

    def order(self, name: str, reason: str, node: JSONNode) -> dict[str, object]:
        """End the agent's epoch."""
        request_id = request_id_of(self.http_request)
        epoch = fence(name, actor=self.actor, request_id=request_id, reason=reason)
        return {"fence_epoch": epoch}


class DecommissionView(HostOrderView):
    """``POST /api/v1/hosts/NAME/decommission``."""

    path_label = "/api/v1/hosts/{name}/decommission"
    is_task = True

    def order(self, name: str, reason: str, node: JSONNode) -> dict[str, object]:
        """Have nothing more to do with the agent."""
        decommission(
            name,
            actor=self.actor,
            request_id=request_id_of(self.http_request),
            reason=reason,
            is_forced=node.member("force").flag(),
        )
        return {"is_decommissioned": True}


class CommandView(HostOrderView):
    """``POST /api/v1/hosts/NAME/commands``."""

    path_label = "/api/v1/hosts/{name}/commands"

    def order(self, name: str, reason: str, node: JSONNode) -> dict[str, object]:
        """Tell the agent to do something with its next heartbeat."""
        given = node.member("command")
        command = given.text(max_length=LONGEST_WORD)
        if command not in AgentCommand.values:
            raise given.wrong(f"must be one of {', '.join(AgentCommand.values)}")
        identity = command_agent(
            name,
            AgentCommand(command),
            actor=self.actor,
            request_id=request_id_of(self.http_request),
            reason=reason,
        )
        return {"command": command, "id": identity}


class DecommissionReservationView(HostOrderView):
    """``POST /api/v1/hosts/NAME/reservations/GWID/decommission``."""

    path_label = "/api/v1/hosts/{name}/reservations/{gwid}/decommission"

    def order(self, name: str, reason: str, node: JSONNode) -> dict[str, object]:
        """Have the agent remove one of its workloads.

        With ``type`` it may be one that a restored backup does not know.
        """
        gwid, kind = str(self.kwargs["gwid"]), node.member("type")
        request_id = request_id_of(self.http_request)
        if kind.is_set:
            word = kind.text(max_length=LONGEST_WORD)
            state = delete_forgotten(
                name, gwid, word, actor=self.actor, request_id=request_id, reason=reason
            )
        else:
            state = delete_workload(
                name, gwid, actor=self.actor, request_id=request_id, reason=reason
            )
        return {"reservation": gwid, "state": state}


class OnboardView(HostOrderView):
    """``POST /api/v1/hosts/NAME/onboard``."""

    path_label = "/api/v1/hosts/{name}/onboard"
    is_task = True

    def order(self, name: str, reason: str, node: JSONNode) -> dict[str, object]:
        """Have a host brought into service through Nova, or no further."""
        request_id = request_id_of(self.http_request)
        if node.member("abort").flag():
            row = abort_onboarding(name, actor=self.actor, request_id=request_id, reason=reason)
        else:
            available = node.member("high_availability")
            order = OnboardingOrder(
                aggregates=_names(node.member("aggregates")),
                traits=_names(node.member("traits")),
                skips_tests=node.member("skip_tests").flag(),
                high_availability=available.flag() if available.is_set else True,
            )
            row = order_onboarding(
                name, order, actor=self.actor, request_id=request_id, reason=reason
            )
        return {"lifecycle": row.pk, "phase": row.phase}


def host_order(node: JSONNode) -> HostOrder:
    """Return what ``PATCH /api/v1/hosts/NAME`` asks for; a field that is missing stays.

    Raises:
        InvalidInput: A field is unknown or wrong, or nothing is asked for.
    """
    given = [name for name, _ in node.members(max_key_length=LONGEST_WORD)]
    unknown = sorted(set(given) - PATCHED)
    if unknown:
        raise node.member(unknown[0]).wrong(f"is not known; known are {', '.join(sorted(PATCHED))}")
    if not set(given) - {"reason", "maintenance_reason"}:
        raise node.wrong("nothing is to be changed")
    mode, maintenance = node.member("agent_mode"), node.member("maintenance")
    projects = node.member("allowed_projects")
    return HostOrder(
        agent_mode=_word(mode, AgentMode) if "agent_mode" in given else None,
        maintenance=_word(maintenance, Maintenance) if "maintenance" in given else None,
        maintenance_reason=node.member("maintenance_reason").text(max_length=LONGEST_REASON),
        allowed_projects=(
            tuple(one.text(max_length=LONGEST_WORD) for one in _named(projects))
            if projects.is_set
            else None
        ),
        leaves_projects_to_lists="allowed_projects" in given and not projects.is_set,
        overcommit=_ratios(node.member("overcommit")) if "overcommit" in given else None,
        high_availability=_flag(node.member("high_availability"))
        if "high_availability" in given
        else None,
    )


def _ratios(node: JSONNode) -> dict[str, Decimal]:
    """Return the ratios by resource; ``null`` orders none."""
    found = {}
    for name, ratio in node.members(max_key_length=LONGEST_WORD):
        number = ratio.content
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ratio.wrong("must be a number")
        found[name] = Decimal(str(number))
        problem = ratio_problem(name, found[name])
        if problem:
            raise ratio.wrong(problem)
    return found


def _names(node: JSONNode) -> tuple[str, ...]:
    return tuple(one.text(max_length=LONGEST_NAME) for one in node.items())


def _flag(node: JSONNode) -> bool:
    if not node.is_set:
        raise node.wrong("must be true or false")
    return node.flag()


def _named(projects: JSONNode) -> list[JSONNode]:
    found = list(projects.items())
    if len(found) > MOST_PROJECTS:
        raise projects.wrong(f"has more than {MOST_PROJECTS} projects")
    for one in found:
        if not one.text(max_length=LONGEST_WORD).strip():
            raise one.wrong("must be the id of a project")
    return found


def _word(node: JSONNode, words: type[_Words]) -> _Words:
    text = node.text(max_length=LONGEST_WORD)
    if not node.is_set or text not in words.values:
        raise node.wrong(f"must be one of {', '.join(repr(word) for word in words.values)}")
    return words(text)
