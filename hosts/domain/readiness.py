"""What a host's conditions say about new VMs and slots (spec scheduling, 7.2; hosts, C.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

NO_REASONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType({})
# Condition, the status it must have, and what it counts as when it is missing.
_REQUIRED: Final = (
    ("Ready", "True", "missing"),
    ("HypervisorDisabled", "False", "False"),
    ("Terminating", "False", "False"),
)


def hindering_conditions(
    conditions: Mapping[str, object], reasons: Mapping[str, Mapping[str, str]] = NO_REASONS
) -> tuple[str, ...]:
    """Return the conditions that keep new VMs and slots off a host, for people.

    A host that reports no condition is not hindered by any; one that reports some must also be
    Ready by them, the others may be missing.

    Args:
        conditions: Condition type -> status (``True``, ``False``, ``Unknown``, or a truth value).
        reasons: Condition type -> ``reason`` and ``message``, as far as they are told.

    Source: spec scheduling, 7.2; decisions, "host without a Ready condition".
    """
    if not conditions:
        return ()
    stated = {name: str(status) for name, status in conditions.items() if status is not None}
    statuses = [(name, stated.get(name, absent), wanted) for name, wanted, absent in _REQUIRED]
    return tuple(
        f"{name} is {status}" + _why(reasons.get(name, {}))
        for name, status, wanted in statuses
        if status != wanted
    )


def is_hindering(name: str, status: str) -> bool:
    """Return whether a condition that is stated so keeps new VMs and slots off a host."""
    return any(name == known and status != wanted for known, wanted, _ in _REQUIRED)


def _why(told: Mapping[str, str]) -> str:
    words = [told[key] for key in ("reason", "message") if told.get(key)]
    return f" ({': '.join(words)})" if words else ""


#: Conditions that end readiness while they are True, strongest first.
_ENDING: Final = ("Offboarded", "Terminating")
#: Reasons for which a host is not ready that say where it is in its life.
LIFE_CYCLE: Final = frozenset(
    {"Offboarded", "Terminating", "Onboarding", "Evicting", "Evicted", "Maintenance"}
)
SUCCEEDED: Final = "Succeeded"
ABORTED: Final = "Aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition of a Hypervisor object.

    Attributes:
        status: ``True``, ``False`` or ``Unknown``.
        reason: A word.
        message: For people.
    """

    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether a host takes VMs, and the word for why not."""

    is_ready: bool
    reason: str
    message: str = ""


def compute_ready(
    conditions: Mapping[str, Condition],
    *,
    maintenance: str,
    lifecycle_managed: bool,
    has_ids: bool = True,
) -> Readiness:
    """Return whether a host is ready by its other conditions: the first rule that matches.

    Args:
        conditions: Condition type -> condition.
        maintenance: Why it is taken out of service; empty for not at all.
        lifecycle_managed: Whether an operator of the cluster brings it in; else nobody onboards it.
        has_ids: Whether it is known what Nova calls it: before that nothing begins.

    Source: spec hosts, C.3.
    """
    found = next((name for name in _ENDING if _status(conditions, name) == "True"), "")
    if found:
        return Readiness(is_ready=False, reason=found)
    onboarding = conditions.get("Onboarding") if lifecycle_managed else None
    if onboarding is not None and onboarding.status == "True":
        return Readiness(is_ready=False, reason="Onboarding", message=_told(onboarding))
    if maintenance:
        evicting = _status(conditions, "Evicting")
        reason = {"True": "Evicting", "False": "Evicted"}.get(evicting, "Maintenance")
        return Readiness(is_ready=False, reason=reason)
    if lifecycle_managed and (onboarding is None or onboarding.reason != SUCCEEDED):
        message = "not started" if has_ids else "waiting for the ids of Nova"
        if onboarding is not None:
            message = "aborted" if onboarding.reason == ABORTED else "not completed"
            message += f": {onboarding.message}" if onboarding.message else ""
        return Readiness(is_ready=False, reason="Onboarding", message=message)
    return Readiness(is_ready=True, reason="Ready")


def _told(condition: Condition) -> str:
    return ": ".join(part for part in (condition.reason, condition.message) if part)


def _status(conditions: Mapping[str, Condition], name: str) -> str:
    found = conditions.get(name)
    return "" if found is None else found.status


def host_readiness(
    conditions: Mapping[str, object],
    *,
    state: str,
    status: str,
    maintenance: str,
    held_off: str,
    reasons: Mapping[str, Mapping[str, str]] = NO_REASONS,
) -> Readiness:
    """Return whether a host takes new VMs and slots, with the first rule that says no.

    A Ready condition that is stated is taken at its word, also that it is False for one of the
    reasons of :func:`compute_ready`; who onboards a host says so in a condition, or nobody does.

    Args:
        conditions: Condition type -> status, as for ``hindering_conditions``.
        reasons: Likewise.
        state: ``up``, ``down`` or ``unknown``: of its compute service; ``fenced`` where an operator
            said that nothing runs there.
        status: ``enabled`` or ``disabled``: likewise.
        maintenance: A value of :class:`hosts.models.Maintenance`; ``ha`` does not hinder.
        held_off: Why it gets no new slots though VMs go on; empty if it does.
    """
    stated = {
        name: Condition(
            status=str(value),
            reason=reasons.get(name, {}).get("reason", ""),
            message=reasons.get(name, {}).get("message", ""),
        )
        for name, value in conditions.items()
    }
    ready = stated.get("Ready", Condition(status=""))
    is_onboarding = _status(stated, "Onboarding") == "True" != ready.status
    found = compute_ready(
        stated,
        maintenance="" if maintenance == "ha" else maintenance,
        lifecycle_managed=is_onboarding,
    )
    if found.is_ready and ready.status == "False" and ready.reason in LIFE_CYCLE:
        found = Readiness(is_ready=False, reason=ready.reason, message=ready.message)
    if not found.is_ready:
        return found
    if state != "up":
        return Readiness(is_ready=False, reason="ServiceDown", message=f"it is {state}")
    if status != "enabled":
        return Readiness(is_ready=False, reason="ServiceDisabled")
    hindering = hindering_conditions(conditions, reasons)
    if hindering:
        return Readiness(is_ready=False, reason="Conditions", message=", ".join(hindering))
    if held_off:
        return Readiness(is_ready=False, reason="SlotsHeldOff", message=held_off)
    return found
