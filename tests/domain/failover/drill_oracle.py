"""Drills that simulate every failure with every VM of a zone: slow, and without any proof."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from failover.domain.drill import simulate
from failover.domain.drill_columns import drill_state_of
from failover.domain.drill_report import BlastRadius, DrillCase, DrillReport, DrillScope
from failover.domain.drill_state import DrillState
from failover.domain.zone_columns import ZoneSnapshot


def slow_report(scope: DrillScope, zone: ZoneSnapshot) -> DrillReport:
    """Return what a drill says when all of a scope that the rules leave is simulated."""
    state = drill_state_of([zone])
    if scope is DrillScope.HOST:
        failures: Mapping[str, Collection[str]] = {host: (host,) for host in state.hosts}
        return _simulated(scope, state, failures, cases=len(failures))
    if scope is DrillScope.RACK:
        return _simulated(scope, state, state.hosts_of_rack, cases=len(state.hosts_of_rack))
    interacting, at_risk = _pairs(state)
    failures = {"+".join(sorted(set(pair))): pair for pair in at_risk}
    return _simulated(scope, state, failures, cases=len(interacting | at_risk), least=2)


def _pairs(state: DrillState) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return pairs that interact, and those of VMs that break rules or have no two usable slots."""
    interacting: set[tuple[str, str]] = set()
    at_risk: set[tuple[str, str]] = set()
    for vm in state.vms.values():
        if vm.required_count < 2:
            continue
        keeps_rules = state.keeps_rules(vm.uuid)
        others = set(state.role_hosts(vm.uuid)) if keeps_rules else set(state.hosts)
        pairs = {(min(vm.host, other), max(vm.host, other)) for other in others - {vm.host}}
        interacting |= pairs
        usable = sum(
            slot.is_usable
            and state.hosts[slot.host].keeps_promises
            and vm.size.fits_into(slot.size)
            for slot in map(state.slots.__getitem__, state.slots_of.get(vm.uuid, ()))
        )
        if not keeps_rules or usable < 2:
            at_risk |= pairs or {(vm.host, vm.host)}
    return interacting, at_risk


def _simulated(
    scope: DrillScope,
    state: DrillState,
    failures: Mapping[str, Collection[str]],
    *,
    cases: int,
    least: int = 1,
) -> DrillReport:
    lost: set[str] = set()
    bad = []
    for name, hosts in failures.items():
        result = simulate(state, hosts)
        here = {row.vm for row in result.unprotected if row.required >= least}
        lost |= here
        if here:
            bad.append((-len(here), name, DrillCase(name=name, result=result)))
    bad.sort(key=lambda entry: entry[:2])
    return DrillReport(
        scope=scope,
        cases=cases,
        simulated=len(failures),
        unprotected_vms=tuple(sorted(lost)),
        worst=tuple(case for *_, case in bad),
    )


def slow_radius(state: DrillState, host: str) -> BlastRadius:
    """Return what the loss of one host would cost."""
    names = state.slots_on.get(host, ())
    users = {user for name in names for user in state.slots[name].users if user in state.vms}
    lost = [row for row in simulate(state, (host,)).unprotected if row.required]
    return BlastRadius(
        host=host,
        rack=state.hosts[host].rack,
        vms=len(state.vms_on.get(host, ())),
        unprotected_vms=len(lost),
        slots=len(names),
        slot_users=len(users),
    )
