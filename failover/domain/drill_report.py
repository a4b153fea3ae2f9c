"""Drills of all single hosts, all racks and all interacting pairs (spec failover, 17.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from failover.domain.drill import DrillResult, simulate
from failover.domain.drill_columns import drill_state_of
from failover.domain.drill_proofs import PAIR_COUNT, distinct, groups_at_risk, pairs_at_risk
from failover.domain.zone_columns import Int32Column, Int64Column, ZoneSnapshot

#: VMs of so many hosts become objects together.
HOSTS_AT_ONCE: Final = 4000


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


def drill_hosts(zone: ZoneSnapshot) -> DrillReport:
    """Drill the loss of every single host of a zone."""
    return _drill_groups(
        DrillScope.HOST, zone, np.arange(len(zone.hosts), dtype=np.int64), zone.hosts.names
    )


def drill_racks(zone: ZoneSnapshot) -> DrillReport:
    """Drill the loss of every single rack of a zone."""
    racks = sorted(set(zone.hosts.racks) - {""})
    code_of = {rack: code for code, rack in enumerate(racks)}
    group = np.array([code_of.get(rack, -1) for rack in zone.hosts.racks], dtype=np.int64)
    return _drill_groups(DrillScope.RACK, zone, group, racks)


def _drill_groups(
    scope: DrillScope, zone: ZoneSnapshot, group: Int64Column, names: Sequence[str]
) -> DrillReport:
    """Drill the loss of each group of hosts that columns do not prove harmless.

    Args:
        group: int64[H], the group of each host, -1 for none.
        names: Names of the groups.
    """
    is_at_risk = groups_at_risk(zone, group, len(names))
    failures: dict[str, list[str]] = {}
    for row in np.flatnonzero(np.append(is_at_risk, False)[group]).tolist():
        failures.setdefault(names[group[row]], []).append(zone.hosts.names[row])
    return _report(scope, zone, failures, cases=len(names))


def drill_pairs(zone: ZoneSnapshot) -> DrillReport:
    """Drill every pair of hosts that could cost a VM its slot which needs two or more.

    VMs that need a single slot are not counted: one loss is what they are covered against.

    Returns:
        The report; ``cases`` counts all interacting pairs, and hosts with a VM that shares nothing.

    Source: spec failover, 17.1, 17.2 (scheduled report).
    """
    risks, names = pairs_at_risk(zone), zone.hosts.names
    pairs = zip(risks.lower.tolist(), risks.upper.tolist(), strict=True)
    failures = [sorted({names[one], names[other]}) for one, other in pairs]
    return _report(
        DrillScope.PAIR,
        zone,
        {"+".join(failed): failed for failed in failures},
        cases=risks.cases,
        least=PAIR_COUNT,
    )


def _report(
    scope: DrillScope,
    zone: ZoneSnapshot,
    failures: Mapping[str, Collection[str]],
    *,
    cases: int,
    least: int = 1,
) -> DrillReport:
    """Simulate failures and say which VMs they cost.

    Args:
        failures: Name of each -> hosts that fail.
        cases: How many failures there are with those that were proven harmless.
        least: Slots that a VM must be owed to be counted.
    """
    lost: set[str] = set()
    bad: list[tuple[int, DrillCase]] = []
    for case in _simulated(zone, failures):
        here = _lost(case.result, least)
        if here:
            lost |= here
            bad.append((len(here), case))
    bad.sort(key=lambda entry: (-entry[0], entry[1].name))
    return DrillReport(
        scope=scope,
        cases=cases,
        simulated=len(failures),
        unprotected_vms=tuple(sorted(lost)),
        worst=tuple(case for _, case in bad),
    )


def _simulated(zone: ZoneSnapshot, failures: Mapping[str, Collection[str]]) -> Iterator[DrillCase]:
    """Simulate failures with the VMs on their hosts alone, those of some hosts at a time."""
    left = iter(failures.items())
    for first in left:
        chosen, failing = [first], set(first[1])
        while len(failing) < HOSTS_AT_ONCE and (more := next(left, None)):
            chosen.append(more)
            failing.update(more[1])
        state = drill_state_of([zone], failing=failing)
        for name, hosts in chosen:
            yield DrillCase(name=name, result=simulate(state, hosts))


def _lost(result: DrillResult, least: int) -> set[str]:
    return {row.vm for row in result.unprotected if row.required >= least}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastRadius:
    """What the loss of one host would cost.

    Attributes:
        rack: Its failure domain; empty when unknown.
        vms: VMs on it that failover looks after.
        unprotected_vms: Those of them that would get no slot although one is owed to them.
        slots: Failover slots that it holds.
        slot_users: VMs elsewhere that would lose a slot.
    """

    host: str
    rack: str
    vms: int
    unprotected_vms: int
    slots: int
    slot_users: int


def blast_radii(zone: ZoneSnapshot, report: DrillReport) -> list[BlastRadius]:
    """Return what the loss of each host of a zone would cost, by name.

    Args:
        report: The drill of its single hosts.

    Source: spec failover, 17.4 (blast radius).
    """
    names, home, slots, members = zone.hosts.names, zone.vms.host, zone.slots, zone.members
    lost = {case.name: len(_lost(case.result, 1)) for case in report.worst}
    place = slots.host[members.slot]
    is_here = (place >= 0) & (home[members.vm] >= 0)
    uses = distinct(place[is_here] * np.int64(len(home)) + members.vm[is_here])
    columns = zip(
        names,
        zone.hosts.racks,
        _counted(home[home >= 0], names),
        _counted(slots.host[slots.host >= 0], names),
        _counted(uses // len(home), names),
        strict=True,
    )
    return [
        BlastRadius(
            host=host,
            rack=rack,
            vms=vms,
            unprotected_vms=lost.get(host, 0),
            slots=held,
            slot_users=users,
        )
        for host, rack, vms, held, users in sorted(columns)
    ]


def _counted(hosts: Int64Column | Int32Column, names: Sequence[str]) -> list[int]:
    counts: list[int] = np.bincount(hosts, minlength=len(names)).tolist()
    return counts
