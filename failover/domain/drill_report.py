"""Drills of all single hosts, all racks and all interacting pairs (spec failover, 17.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from failover.domain.drill import DrillResult, simulate
from failover.domain.drill_state import DrillState

SMALLEST_PAIR_COUNT = 2


class DrillScope(StrEnum):
    """What fails together in each case of a report."""

    HOST = "host"
    RACK = "rack"
    PAIR = "pair"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillCase:
    """One failure and what it costs.

    Attributes:
        name: The host, the rack, or both hosts with ``+`` between them.
        result: What the drill says.
    """

    name: str
    result: DrillResult


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """All failures of one scope.

    Attributes:
        scope: What fails together.
        cases: How many failures were looked at, simulated or proven harmless.
        simulated: How many of them were simulated.
        unprotected_vms: VMs that at least one of the failures leaves without a slot, sorted.
        worst: Failures that leave VMs without a slot, most such VMs first, then by name.
    """

    scope: DrillScope
    cases: int
    simulated: int
    unprotected_vms: tuple[str, ...]
    worst: tuple[DrillCase, ...]


def drill_hosts(state: DrillState) -> DrillReport:
    """Drill the loss of every single host."""
    cases = (DrillCase(name=host, result=simulate(state, (host,))) for host in sorted(state.hosts))
    return _report(DrillScope.HOST, cases, len(state.hosts))


def drill_racks(state: DrillState) -> DrillReport:
    """Drill the loss of every single rack."""
    cases = (
        DrillCase(name=rack, result=simulate(state, state.hosts_of_rack[rack]))
        for rack in sorted(state.hosts_of_rack)
    )
    return _report(DrillScope.RACK, cases, len(state.hosts_of_rack))


def drill_pairs(state: DrillState) -> DrillReport:
    """Drill every pair of hosts that could cost a VM its slot which needs two or more.

    For a VM only pairs of its own host and a host of its list L(v) can matter; a VM that keeps the
    rules and has two usable slots survives every pair by the coverage guarantee, so only pairs of
    the others are simulated. VMs that need a single slot are not counted: one loss is what they
    are covered against.

    Returns:
        The report; ``cases`` counts all interacting pairs, and hosts with a VM that shares nothing.

    Source: spec failover, 17.1, 17.2 (scheduled report).
    """
    wanted = [vm.uuid for vm in state.vms.values() if vm.required_count >= SMALLEST_PAIR_COUNT]
    interacting: set[tuple[str, str]] = set()
    at_risk: set[tuple[str, str]] = set()
    for uuid in wanted:
        host = state.vms[uuid].host
        if host not in state.hosts:
            continue
        keeps_rules = state.keeps_rules(uuid)
        others = set(state.role_hosts(uuid)) if keeps_rules else set(state.hosts)
        pairs = {(min(host, other), max(host, other)) for other in others - {host}}
        interacting |= pairs
        if not keeps_rules or _usable_slots(state, uuid) < SMALLEST_PAIR_COUNT:
            at_risk |= pairs or {(host, host)}
    cases = (
        DrillCase(name="+".join(sorted(set(pair))), result=simulate(state, pair))
        for pair in sorted(at_risk)
    )
    return _report(
        DrillScope.PAIR, cases, len(interacting | at_risk), frozenset(wanted), len(at_risk)
    )


def _usable_slots(state: DrillState, uuid: str) -> int:
    size = state.vms[uuid].size
    return sum(
        state.slots[name].is_usable
        and state.slots[name].host in state.hosts
        and state.hosts[state.slots[name].host].keeps_promises
        and size.fits_into(state.slots[name].size)
        for name in state.slots_of.get(uuid, ())
    )


def _report(
    scope: DrillScope,
    cases: Iterable[DrillCase],
    count: int,
    counted: frozenset[str] | None = None,
    simulated: int | None = None,
) -> DrillReport:
    lost: set[str] = set()
    bad: list[tuple[int, DrillCase]] = []
    for case in cases:
        here = set(_lost(case.result, counted))
        if here:
            lost |= here
            bad.append((len(here), case))
    bad.sort(key=lambda entry: (-entry[0], entry[1].name))
    return DrillReport(
        scope=scope,
        cases=count,
        simulated=count if simulated is None else simulated,
        unprotected_vms=tuple(sorted(lost)),
        worst=tuple(case for _, case in bad),
    )


def _lost(result: DrillResult, counted: frozenset[str] | None) -> Iterator[str]:
    for row in result.unprotected:
        if row.required and (counted is None or row.vm in counted):
            yield row.vm


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastRadius:
    """What the loss of one host would cost.

    Attributes:
        vms: VMs on it that failover looks after.
        unprotected_vms: Those of them that would get no slot although one is owed to them.
        slots: Failover slots that it holds.
        slot_users: VMs elsewhere that would lose a slot.
    """

    host: str
    vms: int
    unprotected_vms: int
    slots: int
    slot_users: int


def blast_radius(state: DrillState, host: str) -> BlastRadius:
    """Return what the loss of one host would cost (spec failover, 17.4: blast radius)."""
    names = state.slots_on.get(host, ())
    users = {user for name in names for user in state.slots[name].users if user in state.vms}
    return BlastRadius(
        host=host,
        vms=len(state.vms_on.get(host, ())),
        unprotected_vms=sum(1 for _ in _lost(simulate(state, (host,)), None)),
        slots=len(names),
        slot_users=len(users),
    )
