"""Taking a host out of service step by step, and for good (spec hosts, C.3).

Of a host that no object of its own describes nobody states conditions: what is still on it says how
far it is. Nova's service is the cloud's: who takes a host out deletes that last, and the next list
takes the host out of Headroom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hosts.domain.maintenance import HA, TERMINATION
from hosts.domain.readiness import LIFE_CYCLE, SUCCEEDED, Condition, Readiness

NO_CONDITIONS: Final[Mapping[str, Condition]] = MappingProxyType({})


class Step(StrEnum):
    """What is done before a host is gone, in this order."""

    TERMINATION = "termination"
    RESERVATIONS = "reservations"
    VMS = "vms"
    AGENT = "agent"
    AGGREGATES = "aggregates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What is still on a host.

    Attributes:
        reservations: Slots and failover reservations, also those that are going there.
        has_agent: Whether an agent enrolled that was not decommissioned.
        aggregates: Host aggregates that it is in.
    """

    maintenance: str
    reservations: int = 0
    vms: int = 0
    has_agent: bool = False
    aggregates: int = 0


def offboarding(holdings: Holdings) -> tuple[tuple[Step, bool], ...]:
    """Return each step with whether it is done."""
    return (
        (Step.TERMINATION, holdings.maintenance == TERMINATION),
        (Step.RESERVATIONS, holdings.reservations == 0),
        (Step.VMS, holdings.vms == 0),
        (Step.AGENT, not holdings.has_agent),
        (Step.AGGREGATES, holdings.aggregates == 0),
    )


def conditions_of(holdings: Holdings) -> Mapping[str, Condition]:
    """Return the conditions that follow from what is still on a host.

    Any maintenance but that of high availability wants the host empty: it is evicting until it is.
    One that is to go and where every step is done is offboarded.
    """
    if holdings.maintenance in {"", HA}:
        return NO_CONDITIONS
    if holdings.reservations or holdings.vms:
        return {"Evicting": Condition(status="True", reason="Running")}
    evicted = {"Evicting": Condition(status="False", reason=SUCCEEDED)}
    if all(is_done for _, is_done in offboarding(holdings)):
        return evicted | {"Offboarded": Condition(status="True", reason="Offboarded")}
    return evicted


def shown_state(readiness: Readiness, liveness: str) -> str:
    """Return one word for lists: where in its life a host is, else whether its agent is heard.

    Source: spec hosts, D.3.
    """
    return readiness.reason.lower() if readiness.reason in LIFE_CYCLE else liveness
