"""What comes next of a host that is brought into service, or taken out (spec hosts, C.3).

One look at a cloud gives one act. The cloud is the truth: whoever looks again goes on from what is
there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

#: After its launch a test VM has to say its name within this.
CONSOLE_WITHIN: Final = timedelta(minutes=5)
#: After a test VM failed the next one is tried.
RETRY_AFTER: Final = timedelta(minutes=1)
#: Nova may take a test VM that was asked for so much later: whoever asked had no answer.
LATE_WITHIN: Final = timedelta(minutes=3)
#: A service that is forced down may still answer: it is believed to be silent after so long.
SILENT_AFTER: Final = timedelta(minutes=3)


class Phase(StrEnum):
    """How far a host is."""

    INITIAL = "initial"
    TESTING = "testing"
    HANDOVER = "handover"
    ABORTING = "aborting"
    OFFBOARDING = "offboarding"
    SUCCEEDED = "succeeded"
    ABORTED = "aborted"


#: Phases in which nothing more is done.
OVER: Final = frozenset({Phase.SUCCEEDED, Phase.ABORTED})


class Do(StrEnum):
    """What is done next."""

    WAIT = "wait"
    ADVANCE = "advance"
    JOIN_AGGREGATE = "join_aggregate"
    LEAVE_AGGREGATE = "leave_aggregate"
    ENABLE_SERVICE = "enable_service"
    BOOT_TEST_VM = "boot_test_vm"
    DELETE_TEST_VM = "delete_test_vm"
    SET_TRAITS = "set_traits"
    DELETE_SERVICE = "delete_service"
    DELETE_PROVIDER = "delete_provider"


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One thing to do.

    Attributes:
        target: Which aggregate, which VM, or the phase that follows.
        why: What is waited for, or why a VM failed; for people.
    """

    do: Do
    target: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Nova's compute service of a host; ``updated_at`` is when it was heard last."""

    is_enabled: bool
    is_up: bool
    is_forced_down: bool = False
    updated_at: datetime | None = None

    def answers(self, now: datetime) -> bool:
        """Return whether the process behind it may still run, which would register it anew."""
        if not self.is_forced_down:
            return self.is_up
        return self.updated_at is None or self.updated_at > now - SILENT_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeVM:
    """A VM that was booted to see whether the host can.

    Attributes:
        name: What its console has to show.
        since: When it was launched, else when it was asked for.
        console: What it showed last; empty if nothing.
        fault: Why it is in an error, as Nova says.
    """

    uuid: str
    name: str
    status: str
    since: datetime
    is_deleting: bool = False
    console: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How a host is to be once it is in service.

    Attributes:
        aggregates: Names of those that it is in then, its zone's included.
        traits: That its resource provider has then, beside those that it has.
        test_aggregate: Where it is while it is tested; empty for nowhere.
    """

    aggregates: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
    skips_tests: bool = False
    test_aggregate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look at the cloud found.

    Attributes:
        service: None where Nova has none of the host.
        zones: Known aggregates: name -> the zone that it gives, empty for none.
        aggregates: Names of those that the host is in.
        test_vms: That were booted for it, whoever booted them.
        traits: Of its resource provider; None where that was not looked at.
        vms: How many VMs Nova has on the host.
        reservations: How many Headroom still has there, of any kind.
        has_agent: Whether an agent of ours is not decommissioned.
        has_provider: Whether a resource provider of it is left.
    """

    service: Service | None = None
    zones: Mapping[str, str] = field(default_factory=dict)
    aggregates: Collection[str] = ()
    test_vms: tuple[ProbeVM, ...] = ()
    traits: Collection[str] | None = None
    vms: int = 0
    reservations: int = 0
    has_agent: bool = False
    has_provider: bool = False


def next_onboarding_act(
    phase: Phase,
    wanted: Wanted,
    found: Found,
    *,
    now: datetime,
    tried_at: datetime | None = None,
) -> Act:
    """Return what comes next of a host that is brought in.

    Args:
        phase: How far it is.
        wanted: How it is to be.
        found: How it is.
        now: The time.
        tried_at: When a test VM was asked for last.
    """
    match phase:
        case Phase.INITIAL:
            return _initial(wanted, found)
        case Phase.TESTING:
            return _testing(found, now, tried_at)
        case Phase.HANDOVER:
            return _handover(wanted, found)
        case Phase.ABORTING:
            return _aborting(found, now, tried_at)
    return Act(do=Do.WAIT)


def next_offboarding_act(found: Found, *, now: datetime) -> Act:
    """Return what comes next of a host that is taken out for good."""
    if why := _still_used(found, now):
        return _wait(why)
    if found.aggregates:
        return Act(do=Do.LEAVE_AGGREGATE, target=min(found.aggregates))
    if found.service is not None:
        return Act(do=Do.DELETE_SERVICE)
    if found.has_provider:
        return Act(do=Do.DELETE_PROVIDER)
    return Act(do=Do.ADVANCE, target=Phase.SUCCEEDED)


def _still_used(found: Found, now: datetime) -> str:
    if found.reservations:
        return f"reservations are left: {found.reservations}"
    if found.vms:
        return f"VMs are left: {found.vms}"
    if found.has_agent:
        return "its agent is not decommissioned"
    if found.service is not None and found.service.answers(now):
        return "nova-compute still answers: stopped, it does not register anew"
    return ""


def _initial(wanted: Wanted, found: Found) -> Act:
    """The host is in its zone and the test aggregate alone, and its service takes VMs."""
    unknown = _unknown(wanted, found)
    if unknown or found.service is None:
        has_not = f"aggregate {unknown}" if unknown else "compute service of it"
        return _wait(f"Nova has no {has_not}")
    first = {name for name in wanted.aggregates if found.zones[name]}
    if wanted.test_aggregate:
        first.add(wanted.test_aggregate)
    if missing := first.difference(found.aggregates):
        return Act(do=Do.JOIN_AGGREGATE, target=min(missing))
    if others := sorted(set(found.aggregates) - first):
        return _wait(f"it is in {', '.join(others)} too, where VMs of projects may come to it")
    if not found.service.is_enabled or found.service.is_forced_down:
        return Act(do=Do.ENABLE_SERVICE)
    if not found.service.is_up:
        return _wait("nova-compute does not answer")
    return Act(do=Do.ADVANCE, target=Phase.HANDOVER if wanted.skips_tests else Phase.TESTING)


def _testing(found: Found, now: datetime, tried_at: datetime | None) -> Act:
    if not found.test_vms:
        is_soon = tried_at is not None and tried_at > now - RETRY_AFTER
        boots = Act(do=Do.BOOT_TEST_VM)
        return _wait("the next test VM is tried within a minute") if is_soon else boots
    if any(vm.is_deleting for vm in found.test_vms):
        return _wait("a test VM is being deleted")
    vm = found.test_vms[0]
    if vm.status == "ACTIVE" and vm.name in vm.console:
        return Act(do=Do.ADVANCE, target=Phase.HANDOVER)
    if vm.status == "ERROR" or vm.since <= now - CONSOLE_WITHIN:
        why = vm.fault or f"it is {vm.status}, and its console does not say its name"
        return Act(do=Do.DELETE_TEST_VM, target=vm.uuid, why=why)
    return _wait(f"the test VM is {vm.status}, its console does not say its name yet")


def _handover(wanted: Wanted, found: Found) -> Act:
    """Traits, then aggregates; what was for tests is taken away first."""
    if act := _without_test_vms(found):
        return act
    unknown = _unknown(wanted, found)
    if unknown:
        return _wait(f"Nova has no aggregate {unknown}")
    if set(wanted.traits).difference(found.traits or ()):
        return Act(do=Do.SET_TRAITS)
    missing = set(wanted.aggregates).difference(found.aggregates)
    if missing:
        return Act(do=Do.JOIN_AGGREGATE, target=min(missing))
    test = wanted.test_aggregate
    if test in found.aggregates and test not in wanted.aggregates:
        return Act(do=Do.LEAVE_AGGREGATE, target=test)
    return Act(do=Do.ADVANCE, target=Phase.SUCCEEDED)


def _aborting(found: Found, now: datetime, tried_at: datetime | None) -> Act:
    if act := _without_test_vms(found):
        return act
    if tried_at is not None and tried_at > now - LATE_WITHIN:
        return _wait("a test VM that was asked for lately may still come")
    return Act(do=Do.ADVANCE, target=Phase.ABORTED)


def _without_test_vms(found: Found) -> Act | None:
    for vm in found.test_vms:
        if not vm.is_deleting:
            return Act(do=Do.DELETE_TEST_VM, target=vm.uuid)
    return _wait("a test VM is being deleted") if found.test_vms else None


def _unknown(wanted: Wanted, found: Found) -> str:
    named = {*wanted.aggregates, wanted.test_aggregate} - {""}
    return ", ".join(sorted(named.difference(found.zones)))


def _wait(why: str) -> Act:
    return Act(do=Do.WAIT, why=why)
