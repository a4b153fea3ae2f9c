"""Reports that simulate only what columns do not prove harmless say what all simulations say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.failover_zones import RoomyChooser, model_zone
from failover.domain import drill_proofs, drill_report
from failover.domain.covering import plan_cover
from failover.domain.drill_columns import drill_state_of
from failover.domain.drill_report import (
    DrillReport,
    blast_radii,
    drill_hosts,
    drill_pairs,
    drill_racks,
)
from failover.domain.plan import CleaningPlan, PlanOptions, ReuseOrder
from failover.domain.shadow import zone_after
from failover.domain.zone_columns import ZoneSnapshot
from tests.domain.failover.drill_oracle import slow_radius, slow_report
from tests.domain.failover.drill_worlds import columns_of, states, world, zones

DRILLS: tuple[Callable[[ZoneSnapshot], DrillReport], ...] = (drill_hosts, drill_racks, drill_pairs)


def says_the_same(zone: ZoneSnapshot) -> None:
    for drill in DRILLS:
        report = drill(zone)
        slow = slow_report(report.scope, zone)
        assert report == replace(slow, simulated=report.simulated)
        assert len(report.worst) <= report.simulated <= slow.simulated
    state = drill_state_of([zone])
    radii = blast_radii(zone, drill_hosts(zone))
    assert radii == [slow_radius(state, host) for host in state.hosts]


@given(zone=zones(foreign=("x-v1", "x-v2")))
def test_reports_of_any_zone_say_what_all_simulations_say(zone: ZoneSnapshot) -> None:
    says_the_same(zone)


@given(zone=st.one_of(states(are_valid=True), states(are_valid=False)).map(columns_of))
@example(zone=columns_of(world("r@1{a@1}")))
@example(zone=columns_of(world("q@2{a@1} r@2{a@1}", vms={"b": "3"})))
def test_reports_of_zones_with_and_without_rules_say_the_same(zone: ZoneSnapshot) -> None:
    says_the_same(zone)


@settings(max_examples=40, deadline=None)
@given(
    hosts=st.integers(4, 24),
    per_host=st.integers(1, 4),
    required=st.integers(1, 3),
    seed=st.integers(0, 1000),
    moved=st.lists(st.tuples(st.integers(0, 95), st.integers(0, 23)), max_size=4),
)
def test_reports_of_covered_zones_with_some_vms_moved_say_the_same(
    hosts: int, per_host: int, required: int, seed: int, moved: list[tuple[int, int]]
) -> None:
    zone = model_zone(hosts, hosts * per_host, required=required, seed=seed)
    order = PlanOptions(reuse_order=ReuseOrder.MOST_USERS, max_users=4)
    covered = zone_after(zone, plan_cover(zone, CleaningPlan(), RoomyChooser(zone), order))
    racks = tuple(f"k{number // 3}" for number in range(hosts))
    home = covered.vms.host.copy()
    for vm, host in moved:
        home[vm % len(home)] = host % hosts
    says_the_same(
        replace(
            covered,
            hosts=replace(covered.hosts, racks=racks),
            vms=replace(covered.vms, host=home),
        )
    )


@given(zone=states(are_valid=False).map(columns_of))
def test_a_zone_may_be_drilled_in_parts(zone: ZoneSnapshot) -> None:
    whole = [drill(zone) for drill in DRILLS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drill_proofs, "AT_ONCE", 1)
        patch.setattr(drill_report, "HOSTS_AT_ONCE", 2)
        assert [drill(zone) for drill in DRILLS] == whole


def test_covered_zone_is_proven_without_any_simulation() -> None:
    zone = model_zone(60, 600, required=2)
    cover = plan_cover(zone, CleaningPlan(), RoomyChooser(zone), PlanOptions())
    covered = zone_after(zone, cover)
    assert [(drill(covered).simulated, drill(covered).worst) for drill in DRILLS[::2]] == [
        (0, ()),
        (0, ()),
    ]


def test_vm_that_moved_makes_only_its_own_host_and_what_spoils_it_a_risk() -> None:
    zone = model_zone(60, 600, required=2)
    cover = plan_cover(zone, CleaningPlan(), RoomyChooser(zone), PlanOptions())
    covered = zone_after(zone, cover)
    slot = covered.slots.host[covered.members.slot[covered.members.vm == 0][0]]
    home = covered.vms.host.copy()
    home[0] = slot

    pairs = drill_pairs(replace(covered, vms=replace(covered.vms, host=home)))

    assert pairs.simulated < len(zone.hosts) < pairs.cases


@pytest.mark.parametrize(
    ("part", "column", "setting"),
    [
        ("hosts", "is_ready", False),
        ("hosts", "used_memory_bytes", 1 << 60),
        ("hosts", "used_vcpus", 1 << 30),
        ("slots", "is_usable", False),
        ("slots", "memory_bytes", 1),
        ("slots", "vcpus", 0),
        ("slots", "host", -1),
        ("slots", "host", 0),
    ],
)
def test_only_a_slot_that_could_take_the_vm_proves_anything(
    part: str, column: str, setting: int
) -> None:
    zone = columns_of(world("r@2{a@1}", required=1))
    assert drill_hosts(zone).simulated == 0
    columns = getattr(zone, part)
    changed = replace(columns, **{column: np.full_like(getattr(columns, column), setting)})
    zone = replace(zone, **{part: changed})

    assert drill_hosts(zone).unprotected_vms == ("a",)
    says_the_same(zone)


def test_zone_without_hosts_has_no_failures() -> None:
    zone = replace(columns_of(world("r@1{a@2}")), hosts=model_zone(0, 0).hosts)
    nowhere = np.full(1, -1, dtype=np.int32)
    zone = replace(
        zone, vms=replace(zone.vms, host=nowhere), slots=replace(zone.slots, host=nowhere)
    )
    assert [(drill(zone).cases, drill(zone).simulated) for drill in DRILLS] == [(0, 0)] * 3
    assert blast_radii(zone, drill_hosts(zone)) == []
