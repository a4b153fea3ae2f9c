"""``/api/v1/hosts/NAME``: what operators order about agents (spec hosts, D.6)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, ClassVar, Generic, TypeVar

from django.http import HttpResponse
from pydantic import BeforeValidator, Field, model_validator
from rest_framework.request import Request

from core.api import json_answer
from core.idempotent import IdempotentView
from core.json_bodies import (
    EMPTY_FOR_NULL,
    Body,
    Elements,
    Id,
    Members,
    Name,
    checked,
    given,
    one_of,
    parsed,
    problem,
    read_body,
    text,
    wrong,
)
from core.stored_text import shortened
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
    OnboardingOrder,
    abort_onboarding,
    order_onboarding,
)
from journal.auth import RULE_API_WRITE
from journal.middleware import request_id_of

LONGEST_REASON = 1000
Reason = Annotated[str, text(LONGEST_REASON), EMPTY_FOR_NULL]
_Asked = TypeVar("_Asked", bound="Order")


class Order(Body):
    """What every order says."""

    reason: Reason = ""


class _Mode(Order):
    mode: Annotated[AgentMode, one_of(AgentMode)] = Field("", validate_default=True)


class _Decommission(Order):
    force: bool = False


class _Command(Order):
    command: Annotated[AgentCommand, one_of(AgentCommand)] = Field("", validate_default=True)


class _Removal(Order):
    type: Id | None = None


class _Onboarding(Order):
    abort: bool = False
    aggregates: Elements[Name] = ()
    traits: Elements[Name] = ()
    skip_tests: bool = False
    high_availability: bool = True


def _flag(content: object) -> object:
    if content is None:
        raise problem("must be true or false")
    return content


class _Patch(Order):
    """What ``PATCH`` of a host knows; where ``null`` is no order it is refused."""

    agent_mode: Annotated[AgentMode | None, one_of(AgentMode)] = None
    maintenance: Annotated[Maintenance | None, one_of(Maintenance)] = None
    maintenance_reason: Reason = ""
    allowed_projects: (
        Annotated[
            Elements[Annotated[Id, given("must be the id of a project")]],
            Field(max_length=MOST_PROJECTS),
        ]
        | None
    ) = None
    overcommit: Members[Id, float] | None = None
    high_availability: Annotated[bool | None, BeforeValidator(_flag)] = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: object) -> object:
        return {} if content is None else content


class HostOrderView(IdempotentView, Generic[_Asked]):
    """An order about the agent of a host; audited with its reason.

    ``is_task``: it is taken now and goes on after the answer (202), which has the id that the audit
    has it under.
    """

    rule: ClassVar[str] = RULE_API_WRITE
    is_task: ClassVar[bool] = False
    asks: type[_Asked]

    def write(self, request: Request) -> HttpResponse:
        """Carry the order out."""
        name = str(self.kwargs["name"])
        if not name.isprintable():
            raise NoAgent(name)
        told = {"host": name, **self.order(name, read_body(self.asks, self.body()))}
        if not self.is_task:
            return json_answer(told)
        return json_answer(told | {"task_id": request_id_of(self.http_request)}, status=202)

    @abstractmethod
    def order(self, name: str, asked: _Asked) -> dict[str, object]:
        """Carry it out; return what is answered beside the host."""


class ModeView(HostOrderView[_Mode]):
    """``POST /api/v1/hosts/NAME/mode``."""

    path_label = "/api/v1/hosts/{name}/mode"
    asks = _Mode

    def order(self, name: str, asked: _Mode) -> dict[str, object]:
        """Let the agent do more or less."""
        request_id = request_id_of(self.http_request)
        set_mode(name, asked.mode, actor=self.actor, request_id=request_id, reason=asked.reason)
        return {"mode": asked.mode}


class FenceView(HostOrderView[Order]):
    """``POST /api/v1/hosts/NAME/fence``."""

    path_label = "/api/v1/hosts/{name}/fence"
    asks = Order
    is_task = True

    def order(self, name: str, asked: Order) -> dict[str, object]:
        """End the agent's epoch."""
        request_id = request_id_of(self.http_request)
        epoch = fence(name, actor=self.actor, request_id=request_id, reason=asked.reason)
        return {"fence_epoch": epoch}


class DecommissionView(HostOrderView[_Decommission]):
    """``POST /api/v1/hosts/NAME/decommission``."""

    path_label = "/api/v1/hosts/{name}/decommission"
    asks = _Decommission
    is_task = True

    def order(self, name: str, asked: _Decommission) -> dict[str, object]:
        """Have nothing more to do with the agent."""
        decommission(
            name,
            actor=self.actor,
            request_id=request_id_of(self.http_request),
            reason=asked.reason,
            is_forced=asked.force,
        )
        return {"is_decommissioned": True}


class CommandView(HostOrderView[_Command]):
    """``POST /api/v1/hosts/NAME/commands``."""

    path_label = "/api/v1/hosts/{name}/commands"
    asks = _Command

    def order(self, name: str, asked: _Command) -> dict[str, object]:
        """Tell the agent to do something with its next heartbeat."""
        identity = command_agent(
            name,
            asked.command,
            actor=self.actor,
            request_id=request_id_of(self.http_request),
            reason=asked.reason,
        )
        return {"command": asked.command, "id": identity}


class DecommissionReservationView(HostOrderView[_Removal]):
    """``POST /api/v1/hosts/NAME/reservations/GWID/decommission``."""

    path_label = "/api/v1/hosts/{name}/reservations/{gwid}/decommission"
    asks = _Removal

    def order(self, name: str, asked: _Removal) -> dict[str, object]:
        """Have the agent remove one of its workloads.

        With ``type`` it may be one that a restored backup does not know.
        """
        gwid, kind = str(self.kwargs["gwid"]), asked.type
        request_id = request_id_of(self.http_request)
        if kind is not None:
            state = delete_forgotten(
                name, gwid, kind, actor=self.actor, request_id=request_id, reason=asked.reason
            )
        else:
            state = delete_workload(
                name, gwid, actor=self.actor, request_id=request_id, reason=asked.reason
            )
        return {"reservation": gwid, "state": state}


class OnboardView(HostOrderView[_Onboarding]):
    """``POST /api/v1/hosts/NAME/onboard``."""

    path_label = "/api/v1/hosts/{name}/onboard"
    asks = _Onboarding
    is_task = True

    def order(self, name: str, asked: _Onboarding) -> dict[str, object]:
        """Have a host brought into service through Nova, or no further."""
        request_id = request_id_of(self.http_request)
        if asked.abort:
            row = abort_onboarding(
                name, actor=self.actor, request_id=request_id, reason=asked.reason
            )
        else:
            order = OnboardingOrder(
                aggregates=asked.aggregates,
                traits=asked.traits,
                skips_tests=asked.skip_tests,
                high_availability=asked.high_availability,
            )
            row = order_onboarding(
                name, order, actor=self.actor, request_id=request_id, reason=asked.reason
            )
        return {"lifecycle": row.pk, "phase": row.phase}


def host_order(body: bytes) -> tuple[HostOrder, str]:
    """Return what ``PATCH /api/v1/hosts/NAME`` asks for and why; what is missing stays.

    Raises:
        InvalidInput: A field is unknown or wrong, or nothing is asked for.
    """
    asked = checked(lambda content: _Patch.model_validate(content, extra="allow"), parsed(body))
    given = asked.model_fields_set
    unknown, known = sorted(asked.model_extra or ()), _Patch.model_fields
    if unknown:
        raise wrong(shortened(unknown[0]), f"is not known; known are {', '.join(sorted(known))}")
    if not given - {"reason", "maintenance_reason"}:
        raise wrong("", "nothing is to be changed")
    order = HostOrder(
        agent_mode=asked.agent_mode,
        maintenance=asked.maintenance,
        maintenance_reason=asked.maintenance_reason,
        allowed_projects=asked.allowed_projects,
        leaves_projects_to_lists="allowed_projects" in given and asked.allowed_projects is None,
        overcommit=_ratios(asked.overcommit) if "overcommit" in given else None,
        high_availability=asked.high_availability,
    )
    return order, asked.reason


def _ratios(overcommit: Mapping[str, float] | None) -> dict[str, Decimal]:
    found = {name: Decimal(str(ratio)) for name, ratio in (overcommit or {}).items()}
    for name, ratio in found.items():
        found_wrong = ratio_problem(name, ratio)
        if found_wrong:
            raise wrong(f"overcommit.{shortened(name)}", found_wrong)
    return found
