"""When a refused batch fits, and what would fit instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from capacity.ledger.slot_request import SlotAsk
from commitments.domain.admission import (
    AdmissionSnapshot,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.advice import Advice, advice_lines, advise, largest_fitting_units
from commitments.domain.cores_account import CoresLedger
from commitments.domain.first_fit import first_fit
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import CommitmentStatus, ResourceType
from commitments.domain.timeline import (
    CoresRelease,
    Displaced,
    EditedSnapshot,
    HostChange,
    HostEdit,
    Releases,
    Sweep,
    Timeline,
    later_part,
    with_host_changes,
)
from scheduling.resources import GIB, ZERO, ResourceVector
from scheduling.table import HostTable
from scheduling.table_rows import HostRow

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SMALL = FlavorSpec(name="small", vcpus=1, memory_bytes=GIB)
LARGE = FlavorSpec(name="large", vcpus=4, memory_bytes=4 * GIB)
GROUP = FlavorGroupDef(name="g", flavors=(LARGE, SMALL), ram_core_ratio_mib=1024)
CORES = {("g", zone): CoresLedger(total_vcpus=16, held_vcpus=12) for zone in ("az", "az-b")}


def gib(memory_gib: int) -> ResourceVector:
    return ResourceVector(memory_bytes=memory_gib * GIB, vcpus=memory_gib)


def host(number: int, room_gib: int, committed: ResourceVector = ZERO, zone: str = "az") -> HostRow:
    return HostRow(
        name=f"h{number}",
        host_id=number,
        zone=zone,
        effective=gib(room_gib),
        committed=committed,
    )


def snapshot(*hosts: HostRow) -> AdmissionSnapshot:
    return AdmissionSnapshot(hosts=HostTable.from_rows(hosts), groups={"g": GROUP}, cores=CORES)


def target(
    amount: int,
    *,
    uuid: str = "new",
    resource_type: ResourceType = ResourceType.MEMORY,
    days: int = 400,
    held: bool = False,
) -> CommitmentTarget:
    is_memory = resource_type is ResourceType.MEMORY
    return CommitmentTarget(
        commitment_uuid=uuid,
        desired=CommitmentState(
            commitment_uuid=uuid,
            project_id="p",
            domain_id="d",
            flavor_group_name="g",
            zone="az",
            resource_type=resource_type,
            requested_amount=amount * GIB if is_memory else amount,
            status=CommitmentStatus.CONFIRMED,
            end_time=NOW + timedelta(days=days),
        ),
        is_holding=True,
        previous_project_id="p" if held else "",
    )


def day(number: int) -> datetime:
    return NOW + timedelta(days=number)


def timeline(
    releases: Sequence[tuple[int, int, int]] = (),
    hosts: Sequence[tuple[int, HostChange]] = (),
    cores: Sequence[tuple[int, int]] = (),
) -> Timeline:
    """Build a timeline of (day, host, GiB), (day, change) and (day, vCPUs), days ascending."""
    days = sorted({*(r[0] for r in releases), *(h[0] for h in hosts), *(c[0] for c in cores)})
    index = {d: number for number, d in enumerate(days)}
    rows = sorted(releases)
    return Timeline(
        moments=tuple(day(d) for d in days),
        releases=Releases(
            moment=np.array([index[d] for d, _, _ in rows], dtype=np.int64),
            host_ids=np.array([h for _, h, _ in rows], dtype=np.int64),
            memory_bytes=np.array([g * GIB for _, _, g in rows], dtype=np.int64),
            vcpus=np.array([g for _, _, g in rows], dtype=np.int64),
        ),
        hosts=tuple((index[d], change) for d, change in hosts),
        cores=tuple(
            CoresRelease(moment=index[d], flavor_group_name="g", zone="az", vcpus=vcpus)
            for d, vcpus in cores
        ),
    )


FULL = snapshot(host(1, 8, gib(8)), host(2, 8, gib(8)))
ADDED = HostChange(edit=HostEdit.ADDED, host_id=1, name="planned-1")
DRAINED = HostChange(edit=HostEdit.DRAINED, host_id=1)


def ask(memory_gib: int, name: str = "vm", ends_on: int | None = None) -> Displaced:
    slot = SlotAsk(
        slot_id=None,
        slot_index=0,
        slot_name=name,
        flavor=SMALL,
        slot=gib(memory_gib),
        zone="az",
        project_id="p",
    )
    return Displaced(ask=slot, ends_at=None if ends_on is None else day(ends_on))


def waiting(edited: EditedSnapshot) -> list[str]:
    return [missing.ask.slot_name for missing in edited.aftermath.waiting]


@pytest.mark.parametrize(
    ("known", "wanted", "fits_on"),
    [
        pytest.param(timeline(), target(1), None, id="nothing is known"),
        pytest.param(timeline([(3, 1, 4)]), target(4), 3, id="one expiry is enough"),
        pytest.param(timeline([(3, 1, 2)]), target(4), None, id="one expiry is too little"),
        pytest.param(timeline([(3, 1, 4), (9, 2, 4)]), target(8), 9, id="two expiries together"),
        pytest.param(
            timeline([(3, 1, 1), (5, 1, 3), (9, 2, 4)]), target(4), 5, id="the first that fits"
        ),
        pytest.param(timeline([(3, 99, 8)]), target(1), None, id="room of an unknown host"),
        pytest.param(timeline(hosts=[(6, ADDED)]), target(8), 6, id="a planned host"),
        pytest.param(
            timeline([(3, 1, 8)], hosts=[(2, DRAINED)]), target(4), None, id="drained before"
        ),
        pytest.param(
            timeline([(1, 1, 4)], hosts=[(2, DRAINED)]), target(4), 1, id="fits before a drain"
        ),
        pytest.param(
            timeline([(4, 2, 4)], hosts=[(2, DRAINED), (8, ADDED)]),
            target(8),
            8,
            id="drained, then a new host",
        ),
        pytest.param(timeline([(3, 1, 4)]), target(4, days=3), None, id="ends when it would begin"),
        pytest.param(
            timeline(cores=[(2, 1), (5, 8)]),
            target(8, resource_type=ResourceType.CORES),
            5,
            id="cores that are given back",
        ),
        pytest.param(
            timeline(hosts=[(7, ADDED)]),
            target(8, resource_type=ResourceType.CORES),
            7,
            id="cores of a planned host",
        ),
    ],
)
def test_first_moment_at_which_a_refused_commitment_fits(
    known: Timeline, wanted: CommitmentTarget, fits_on: int | None
) -> None:
    fit = first_fit(FULL, [wanted], known)
    assert (fit.at if fit else None) == (None if fits_on is None else day(fits_on))
    if fit is not None:
        assert not fit.plan.rejections


@st.composite
def worlds(draw: st.DrawFn) -> tuple[AdmissionSnapshot, list[CommitmentTarget], Timeline]:
    hosts = [
        host(number, 8, gib(draw(st.integers(0, 8))))
        for number in range(1, draw(st.integers(2, 4)))
    ]
    days = st.integers(1, 8)
    releases = draw(
        st.lists(st.tuples(days, st.integers(1, 4), st.integers(1, 6)), min_size=0, max_size=8)
    )
    changes = [
        (on, replace(change, name=f"planned-{number}"))
        for number, (on, change) in enumerate(
            sorted(
                draw(st.lists(st.tuples(days, st.sampled_from([ADDED, DRAINED])), max_size=2)),
                key=lambda pair: pair[0],
            )
        )
    ]
    targets = [
        target(amount, uuid=f"c{number}")
        for number, amount in enumerate(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    ]
    return snapshot(*hosts), targets, timeline(releases, hosts=changes)


@given(world=worlds(), moment=st.integers(0, 15))
def test_room_along_the_timeline_is_that_of_hosts_built_so(
    world: tuple[AdmissionSnapshot, list[CommitmentTarget], Timeline], moment: int
) -> None:
    start, _targets, known = world
    if moment >= len(known.moments):
        return
    after = Sweep(start, known).snapshot_at(moment).hosts
    drained = {c.host_id for at, c in known.hosts if at <= moment and c.edit is HostEdit.DRAINED}
    for row, host_id in enumerate(after.host_ids.tolist()):
        if host_id < 0:
            assert after.free_memory_bytes()[row] == 8 * GIB
            continue
        given_back = sum(
            int(memory)
            for at, to, memory in zip(
                known.releases.moment,
                known.releases.host_ids,
                known.releases.memory_bytes,
                strict=True,
            )
            if at <= moment and to == host_id
        )
        before = int(start.hosts.committed_memory_bytes[start.hosts.row_of[f"h{host_id}"]])
        effective = 0 if host_id in drained else 8 * GIB
        assert after.free_memory_bytes()[row] == effective - max(before - given_back, 0)


@given(world=worlds(), on=st.integers(0, 9))
def test_the_later_part_goes_on_where_the_sweep_stands(
    world: tuple[AdmissionSnapshot, list[CommitmentTarget], Timeline], on: int
) -> None:
    start, _targets, known = world
    rest = later_part(known, day(on))
    passed = len(known.moments) - len(rest.moments)
    assert all(moment > day(on) for moment in rest.moments)
    assert all(moment <= day(on) for moment in known.moments[:passed])
    assert len(rest.hosts) + sum(at < passed for at, _ in known.hosts) == len(known.hosts)
    kept = rest.releases.memory_bytes.sum()
    gone = known.releases.memory_bytes[known.releases.moment < passed].sum()
    assert kept + gone == known.releases.memory_bytes.sum()
    if rest.moments and not known.hosts:
        middle = replace(start, hosts=Sweep(start, known).snapshot_at(passed - 1).hosts)
        last = len(known.moments) - 1
        assert np.array_equal(
            Sweep(middle, rest).snapshot_at(last - passed).hosts.free_memory_bytes(),
            Sweep(start, known).snapshot_at(last).hosts.free_memory_bytes(),
        )


class TestHostChanges:
    def test_what_a_drained_host_held_goes_to_the_others_and_is_in_the_way_there(self) -> None:
        start = snapshot(host(1, 8), host(2, 8))
        change = replace(DRAINED, displaced=(ask(6), ask(4, "too-much")))
        edited = with_host_changes(start, [change])
        assert edited.snapshot.hosts.free_memory_bytes().tolist() == [0, 2 * GIB]
        assert waiting(edited) == ["too-much"]

    def test_what_goes_never_goes_to_another_host_that_goes(self) -> None:
        start = snapshot(host(1, 8), host(2, 8), host(3, 4))
        both = [
            replace(DRAINED, displaced=(ask(6),)),
            HostChange(edit=HostEdit.DRAINED, host_id=2, displaced=(ask(3, "second"),)),
        ]
        edited = with_host_changes(start, both)
        assert edited.snapshot.hosts.free_memory_bytes().tolist() == [0, 0, GIB]
        assert waiting(edited) == ["vm"]

    def test_a_new_host_is_an_empty_copy(self) -> None:
        hosts = with_host_changes(FULL, [ADDED]).snapshot.hosts
        row = hosts.row_of["planned-1"]
        assert hosts.free_memory_bytes()[row] == 8 * GIB
        assert hosts.zones[hosts.zone[row]] == "az"
        assert bool(hosts.state_ok[row])
        assert len(FULL.hosts) == 2

    def test_an_unknown_host_changes_nothing(self) -> None:
        edited = with_host_changes(FULL, [replace(DRAINED, host_id=77)])
        assert edited.snapshot.hosts is FULL.hosts

    def test_a_taken_name_is_refused(self) -> None:
        with pytest.raises(ValueError, match="exists"):
            with_host_changes(FULL, [replace(ADDED, name="h1")])


class TestAdvice:
    def advice(
        self, start: AdmissionSnapshot, *targets: CommitmentTarget, known: Timeline | None = None
    ) -> Advice:
        plan = plan_admission(start, targets, may_reject=True, now=NOW)
        units = {
            t.commitment_uuid: GIB
            if t.desired and t.desired.resource_type is ResourceType.MEMORY
            else 1
            for t in targets
        }
        return advise(start, plan, timeline=known or timeline(), unit_amounts=units, now=NOW)

    def test_smaller_amount_other_zone_and_later_date(self) -> None:
        start = snapshot(host(1, 8, gib(5)), host(2, 8, gib(8)), host(3, 16, zone="az-b"))
        advice = self.advice(start, target(10), known=timeline([(3, 2, 8)]))
        assert advice.smaller_units == {"new": 3}
        assert advice.zones == ("az-b",)
        assert advice.fit is not None
        assert advice.fit.at == day(3)
        (line,) = advice_lines(advice).values()
        assert line.startswith("no host has room: asked 1 GiB and 1 vCPUs on one host in zone az;")
        assert line.endswith("; fits now: 3 units; fits in az-b; fits from 2026-11-24T12:00:00Z")

    def test_the_filter_that_took_the_last_host_is_named(self) -> None:
        advice = self.advice(snapshot(host(1, 8, zone="az-b")), target(1))
        assert advice.causes["new"].startswith("no host passes filter_correct_az")

    def test_cores_that_are_left_are_the_smaller_amount(self) -> None:
        advice = self.advice(FULL, target(8, resource_type=ResourceType.CORES))
        assert advice.smaller_units == {"new": 4}
        assert advice.causes == {}
        assert advice_lines(advice) == {"new": "fits now: 4 units"}

    def test_a_commitment_that_is_held_goes_to_no_other_zone(self) -> None:
        start = snapshot(host(1, 8, gib(8)), host(3, 16, zone="az-b"))
        assert self.advice(start, target(4, held=True)).zones == ()

    def test_a_batch_fits_elsewhere_as_a_whole_or_not_at_all(self) -> None:
        start = snapshot(host(1, 8, gib(8)), host(3, 8, zone="az-b"))
        both = self.advice(start, target(4, uuid="a"), target(4, uuid="b"))
        assert both.zones == ("az-b",)
        assert self.advice(start, target(4, uuid="a"), target(5, uuid="b")).zones == ()

    def test_structural_problems_get_no_advice(self) -> None:
        start = replace(snapshot(host(1, 8)), max_slots=1)
        assert self.advice(start, target(8)) == Advice()

    def test_a_huge_batch_gets_its_causes_alone(self) -> None:
        start = snapshot(host(1, 8, gib(8)), host(2, 10_000, gib(9_999)))
        advice = self.advice(start, target(4_004))
        assert set(advice.causes) == {"new"}
        assert advice.smaller_units == {}


@given(rooms=st.lists(st.integers(0, 9), min_size=1, max_size=3), amount=st.integers(1, 30))
def test_the_smaller_amount_fits_and_one_unit_more_does_not(rooms: list[int], amount: int) -> None:
    start = snapshot(*(host(number, 9, gib(9 - room)) for number, room in enumerate(rooms, 1)))
    plan = plan_admission(start, [target(amount)], may_reject=True, now=NOW)
    if not plan.rejections:
        return
    units = largest_fitting_units(
        start, [target(amount)], plan.decisions[0], unit_amount=GIB, now=NOW
    )

    def fits(units: int) -> bool:
        return not plan_admission(start, [target(units)], may_reject=True, now=NOW).rejections

    assert units < amount
    assert units == 0 or fits(units)
    assert not fits(units + 1)
