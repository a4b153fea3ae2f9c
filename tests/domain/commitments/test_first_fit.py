"""The first moment at which a batch fits, against a walk through every moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from capacity.ledger.placing import place_slots
from capacity.ledger.slot_request import SlotAsk
from commitments.domain.admission import (
    AdmissionSnapshot,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.first_fit import first_fit
from commitments.domain.planner import SlotView
from commitments.domain.slot_room import SlotRoom
from commitments.domain.statuses import ResourceType
from commitments.domain.timeline import (
    Displaced,
    HostChange,
    HostEdit,
    Sweep,
    Timeline,
    later_part,
    with_host_changes,
)
from scheduling.resources import GIB
from scheduling.table_rows import HostRow
from tests.domain.commitments.test_timeline import (
    NOW,
    SMALL,
    ask,
    day,
    gib,
    host,
    snapshot,
    target,
    timeline,
)

ROOM_GIB = 8


def region(*hosts: HostRow) -> AdmissionSnapshot:
    """Return hosts with two groups: sizes that divide each other, and sizes that do not."""
    odd = FlavorGroupDef(
        name="odd",
        flavors=tuple(
            FlavorSpec(name=f"odd-{size}", vcpus=size, memory_bytes=size * GIB)
            for size in (5, 3, 1)
        ),
        ram_core_ratio_mib=1024,
    )
    start = snapshot(*hosts)
    return replace(start, groups={**start.groups, "odd": odd})


@dataclass(slots=True)
class Slot:
    """A slot of another's commitment, or a VM when it has no end."""

    name: str
    memory_gib: int
    ends_on: int | None
    host_id: int | None

    def displaced(self) -> Displaced:
        asked = SlotAsk(
            slot_id=None,
            slot_index=0,
            slot_name=self.name,
            flavor=SMALL,
            slot=gib(self.memory_gib),
            zone="az",
            project_id="other",
        )
        return Displaced(ask=asked, ends_at=None if self.ends_on is None else day(self.ends_on))


@dataclass(slots=True)
class Event:
    """A host that is drained, or a new one like it."""

    on: int
    edit: HostEdit
    host_id: int


@dataclass(slots=True)
class World:
    """Hosts, what is on them and what happens to them.

    The batch ends a commitment of its own project: ``given_back`` is the host of its slot, which
    may not leave it, and the GiB.
    """

    host_count: int
    given_back: tuple[int, int] | None = None
    slots: list[Slot] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    targets: list[CommitmentTarget] = field(default_factory=list)

    def snapshot(self) -> AdmissionSnapshot:
        rows = (self.row(number) for number in range(1, self.host_count + 1))
        return replace(region(*rows), rooms=self.rooms())

    def row(self, host_id: int) -> HostRow:
        return host(host_id, ROOM_GIB, gib(self.held_gib(host_id, self.slots)))

    def held_gib(self, host_id: int, slots: Sequence[Slot]) -> int:
        held_gib = sum(slot.memory_gib for slot in slots if slot.host_id == host_id)
        if self.given_back is not None and self.given_back[0] == host_id:
            held_gib += self.given_back[1]
        return held_gib

    def rooms(self) -> dict[int, SlotRoom]:
        if self.given_back is None:
            return {}
        host_id, memory_gib = self.given_back
        return {1: SlotRoom(host_ids=(host_id,), blocked=gib(memory_gib))}

    def ending(self) -> list[CommitmentTarget]:
        if self.given_back is None:
            return []
        host_id, memory_gib = self.given_back
        slot = SlotView(
            slot_id=1,
            slot_index=0,
            project_id="p",
            domain_id="d",
            flavor_group_name="another",
            zone="az",
            memory_bytes=memory_gib * GIB,
            vcpus=memory_gib,
            resource_name="another-1",
            target_host=f"h{host_id}",
        )
        return [
            CommitmentTarget(commitment_uuid="old", desired=None, is_holding=False, slots=(slot,))
        ]

    def timeline(self) -> Timeline:
        changes = [
            (
                event.on,
                HostChange(
                    edit=event.edit,
                    host_id=event.host_id,
                    name=f"planned-{number}",
                    displaced=tuple(slot.displaced() for slot in self.on_host(event.host_id))
                    if event.edit is not HostEdit.ADDED
                    else (),
                ),
            )
            for number, event in enumerate(self.events)
        ]
        return timeline(
            [
                (slot.ends_on, slot.host_id, slot.memory_gib)
                for slot in self.slots
                if slot.ends_on is not None and slot.host_id is not None
            ],
            hosts=changes,
        )

    def on_host(self, host_id: int) -> list[Slot]:
        found = [slot for slot in self.slots if slot.host_id == host_id]
        return sorted(found, key=lambda slot: -slot.memory_gib)


class Walk:
    """What happens day by day, one slot at a time: slow and obvious."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.slots = [replace(slot) for slot in world.slots]
        self.rooms = dict.fromkeys(range(1, world.host_count + 1), ROOM_GIB)
        self.names = {number: f"h{number}" for number in self.rooms}
        self.moved: list[Slot] = []
        self.waiting: list[Slot] = []

    def snapshot(self) -> AdmissionSnapshot:
        rows = []
        for host_id, room_gib in self.rooms.items():
            held_gib = self.world.held_gib(host_id, self.slots)
            rows.append(replace(host(host_id, room_gib, gib(held_gib)), name=self.names[host_id]))
        return replace(region(*rows), rooms=self.world.rooms())

    def live(self, on: int) -> None:
        for slots in (self.slots, self.moved, self.waiting):
            slots[:] = [slot for slot in slots if slot.ends_on is None or slot.ends_on > on]
        today = [event for event in self.world.events if event.on == on]
        going = []
        for number, event in enumerate(self.world.events):
            if event.on != on:
                continue
            if event.edit is HostEdit.ADDED:
                new_id = min(0, *self.rooms) - 1
                self.rooms[new_id], self.names[new_id] = ROOM_GIB, f"planned-{number}"
            elif self.rooms[event.host_id]:
                self.rooms[event.host_id] = 0
                going.append(event.host_id)
        if not today:
            return
        again = [slot for slot in self.moved if slot.host_id in going]
        first = [
            slot
            for host_id in going
            for slot in sorted(self.slots, key=lambda slot: -slot.memory_gib)
            if slot.host_id == host_id and slot not in self.moved
        ]
        homeless = [*self.waiting, *again, *first]
        self.moved = [slot for slot in self.moved if slot not in again]
        self.waiting = []
        for slot in homeless:
            slot.host_id = None
        for slot in homeless:
            (decision,) = place_slots(self.snapshot().hosts, [slot.displaced().ask])
            assert decision is not None
            slot.host_id = decision.host_id
            (self.waiting if slot.host_id is None else self.moved).append(slot)

    def first_fit(self) -> int | None:
        days = {slot.ends_on for slot in self.world.slots} | {e.on for e in self.world.events}
        ends = [t.desired.end_time for t in self.world.targets if t.desired is not None]
        for on in sorted(on for on in days if on is not None):
            self.live(on)
            if any(end is not None and end <= day(on) for end in ends):
                return None
            plan = plan_admission(self.snapshot(), self.world.targets, may_reject=True, now=day(on))
            if not plan.rejections:
                return on
        return None


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World(host_count=draw(st.integers(1, 3)))
    ends = st.one_of(st.none(), st.integers(1, 6), st.integers(1, 6))
    for host_id in range(1, world.host_count + 1):
        left = ROOM_GIB
        if world.given_back is None and draw(st.integers(0, 3)) == 0:
            world.given_back = (host_id, draw(st.integers(1, 5)))
            left -= world.given_back[1]
        while left > 0 and draw(st.integers(0, 5)):
            size = draw(st.integers(1, min(left, 5)))
            name = f"s{len(world.slots)}"
            world.slots.append(Slot(name, size, draw(ends), host_id))
            left -= size
    events = draw(
        st.lists(
            st.tuples(
                st.integers(1, 6),
                st.sampled_from([HostEdit.ADDED, HostEdit.DRAINED, HostEdit.DRAINED]),
                st.integers(1, world.host_count),
            ),
            max_size=4,
        )
    )
    world.events = [Event(*event) for event in sorted(events, key=lambda event: event[0])]
    life = draw(st.sampled_from([400, 400, 4]))
    wanted = draw(
        st.lists(
            st.tuples(st.integers(1, 12), st.sampled_from(["g", "odd"])), min_size=1, max_size=3
        )
    )
    world.targets = [
        *world.ending(),
        *(
            of_group(target(amount, uuid=f"c{number}", days=life), group)
            for number, (amount, group) in enumerate(wanted)
        ),
    ]
    return world


def of_group(wanted: CommitmentTarget, group: str) -> CommitmentTarget:
    assert wanted.desired is not None
    return replace(wanted, desired=replace(wanted.desired, flavor_group_name=group))


@given(world=worlds())
def test_first_fit_is_what_a_walk_through_every_moment_finds(world: World) -> None:
    expected = Walk(world).first_fit()
    fit = first_fit(world.snapshot(), world.targets, world.timeline())
    assert (None if fit is None else fit.at) == (None if expected is None else day(expected))
    if fit is not None:
        assert not fit.plan.rejections


@given(world=worlds(), last=st.integers(1, 6))
def test_room_after_every_moment_is_that_of_the_walk(world: World, last: int) -> None:
    walk, known = Walk(world), world.timeline()
    sweep = Sweep(world.snapshot(), known)
    for number, moment in enumerate(known.moments):
        walk.live((moment - NOW).days)
        if number <= last:
            state = sweep.state_at(number)
            expected = walk.snapshot().hosts
            usable = expected.eff_memory_bytes > 0
            assert state.snapshot.hosts.host_ids.tolist() == expected.host_ids.tolist()
            assert (
                state.snapshot.hosts.free_memory_bytes()[usable].tolist()
                == expected.free_memory_bytes()[usable].tolist()
            )
            assert [one.ask.slot_name for one in state.aftermath.waiting] == [
                slot.name for slot in walk.waiting
            ]


@given(world=worlds(), on=st.integers(0, 6))
def test_a_question_about_later_finds_the_same_moment_as_the_whole_timeline(
    world: World, on: int
) -> None:
    known = world.timeline()
    passed = sum(moment <= day(on) for moment in known.moments)
    then = Sweep(world.snapshot(), known).state_at(passed - 1)
    rest = replace(later_part(known, day(on)), aftermath=then.aftermath)
    walk = Walk(world)
    for moment in known.moments[:passed]:
        walk.live((moment - NOW).days)
    expected = None
    for moment in rest.moments:
        walk.live((moment - NOW).days)
        if _fits(walk, world.targets, (moment - NOW).days):
            expected = moment
            break
    fit = first_fit(then.snapshot, world.targets, rest)
    assert (None if fit is None else fit.at) == expected


def _fits(walk: Walk, targets: Sequence[CommitmentTarget], on: int) -> bool:
    ends = [t.desired.end_time for t in targets if t.desired is not None]
    if any(end is not None and end <= day(on) for end in ends):
        return False
    plan = plan_admission(walk.snapshot(), targets, may_reject=True, now=day(on))
    return not plan.rejections


DRAIN_1 = HostChange(edit=HostEdit.DRAINED, host_id=1)
ADD_1 = HostChange(edit=HostEdit.ADDED, host_id=1, name="new")


@pytest.mark.parametrize(
    ("start", "known", "amount", "fits_on"),
    [
        pytest.param(
            snapshot(host(1, 4, gib(4)), host(2, 8, gib(8))),
            timeline(
                [(1, 1, 4)],
                hosts=[
                    (2, replace(DRAIN_1, displaced=(ask(4, ends_on=1),))),
                    (3, replace(ADD_1, host_id=2)),
                ],
            ),
            8,
            3,
            id="what ended before the drain goes nowhere",
        ),
        pytest.param(
            snapshot(host(1, 8, gib(4)), host(2, 8, gib(6))),
            timeline(
                [(1, 1, 4), (3, 2, 2)],
                hosts=[(2, replace(DRAIN_1, displaced=(ask(4, ends_on=1),)))],
            ),
            7,
            1,
            id="room before the drain counts until the drain",
        ),
        pytest.param(
            snapshot(host(1, 8, gib(8)), host(2, 8, gib(4))),
            timeline([(5, 1, 4)], hosts=[(2, replace(DRAIN_1, displaced=(ask(4, ends_on=5),)))]),
            5,
            None,
            id="what a drained host held gives no room where it was",
        ),
        pytest.param(
            snapshot(host(1, 4, gib(4)), host(2, 8, gib(4))),
            timeline(
                [(5, 1, 4)],
                hosts=[
                    (2, replace(DRAIN_1, displaced=(ask(4, ends_on=5),))),
                    (3, replace(ADD_1, host_id=1)),
                ],
            ),
            8,
            5,
            id="what a drained host held ends where it went",
        ),
        pytest.param(
            snapshot(host(1, 8, gib(4)), host(2, 8, gib(8))),
            timeline(
                [(1, 2, 8)],
                hosts=[(2, replace(DRAIN_1, displaced=(ask(4),)))],
            ),
            12,
            1,
            id="before the drain there is more",
        ),
        pytest.param(
            snapshot(host(1, 8, gib(8)), host(2, 8, gib(8))),
            timeline(
                [(1, 2, 3), (3, 2, 1)],
                hosts=[(2, replace(DRAIN_1, displaced=(ask(3),)))],
            ),
            1,
            1,
            id="room that a drain will take is free until then",
        ),
        pytest.param(
            snapshot(host(1, 8, gib(8)), host(2, 8, gib(8))),
            timeline(
                [(2, 2, 3), (3, 2, 1)],
                hosts=[(2, replace(DRAIN_1, displaced=(ask(3),)))],
            ),
            1,
            3,
            id="a drain moves into what ends at that moment",
        ),
        pytest.param(
            snapshot(host(1, 8, gib(8)), host(2, 8, gib(8))),
            timeline(
                hosts=[(2, replace(DRAIN_1, displaced=(ask(8),))), (4, ADD_1)],
            ),
            1,
            None,
            id="a new host takes in what found no room before",
        ),
        pytest.param(
            snapshot(host(1, 8, gib(8)), host(2, 8, gib(8))),
            timeline(
                [(3, 1, 8)],
                hosts=[(2, replace(DRAIN_1, displaced=(ask(8, ends_on=3),))), (4, ADD_1)],
            ),
            8,
            4,
            id="what ended while it waited takes nothing of a new host",
        ),
    ],
)
def test_first_moment_with_a_drain(
    start: AdmissionSnapshot, known: Timeline, amount: int, fits_on: int | None
) -> None:
    fit = first_fit(start, [target(amount)], known)
    assert (None if fit is None else fit.at) == (None if fits_on is None else day(fits_on))


def test_new_hosts_of_an_edit_and_of_the_timeline_have_keys_of_their_own() -> None:
    edited = with_host_changes(snapshot(host(1, 8)), [replace(ADD_1, name="a")])
    known = replace(timeline(hosts=[(1, ADD_1)]), aftermath=edited.aftermath)
    hosts = Sweep(edited.snapshot, known).snapshot_at(0).hosts
    assert hosts.host_ids.tolist() == [1, -1, -2]


def test_a_planned_host_is_like_what_a_lost_one_was() -> None:
    edited = with_host_changes(snapshot(host(1, 8, gib(3))), [DRAIN_1])
    known = replace(timeline(hosts=[(1, ADD_1)]), aftermath=edited.aftermath)
    hosts = Sweep(edited.snapshot, known).snapshot_at(0).hosts
    assert hosts.free_memory_bytes()[hosts.row_of["new"]] == gib(8).memory_bytes


def test_a_host_that_goes_twice_displaces_once() -> None:
    gone = replace(DRAIN_1, displaced=(ask(3),))
    edited = with_host_changes(snapshot(host(1, 8, gib(3)), host(2, 8)), [gone])
    known = replace(timeline(hosts=[(1, gone)]), aftermath=edited.aftermath)
    hosts = Sweep(edited.snapshot, known).snapshot_at(0).hosts
    assert hosts.free_memory_bytes().tolist()[1] == gib(5).memory_bytes


def test_cores_and_memory_of_one_batch_fit_together() -> None:
    start = snapshot(host(1, 8, gib(8)))
    both = [target(4), target(8, uuid="cores", resource_type=ResourceType.CORES)]
    known = timeline([(3, 1, 8)], cores=[(5, 12)])
    fit = first_fit(start, both, known)
    assert fit is not None
    assert fit.at == day(5)


def only(size: int) -> FlavorGroupDef:
    flavor = FlavorSpec(name=f"only-{size}", vcpus=size, memory_bytes=size * GIB)
    return FlavorGroupDef(name=f"only-{size}", flavors=(flavor,), ram_core_ratio_mib=1024)


UNLUCKY = replace(
    region(host(1, 16, gib(8)), host(2, 8, gib(4))),
    groups={group.name: group for group in (only(5), only(4))},
)
"""Room for 8 and 4; a slot of 5 and two of 4 fit once the second host has 5, and not when it has 7:
then the first slot takes the first host, which is fuller, and the second has room for one of 4."""
SIZES = [of_group(target(5, uuid="a"), "only-5"), of_group(target(8, uuid="b"), "only-4")]


@pytest.mark.parametrize(
    ("releases", "fits_on"),
    [
        pytest.param([(1, 2, 1), (2, 2, 2)], 1, id="it does not fit at the end"),
        pytest.param([(1, 2, 1), (2, 2, 2), (3, 2, 1)], 1, id="it fits twice"),
        pytest.param([(1, 2, 3), (3, 2, 1)], 3, id="it never was lucky"),
    ],
)
def test_first_moment_is_found_where_less_room_was_luckier(
    releases: list[tuple[int, int, int]], fits_on: int
) -> None:
    fit = first_fit(UNLUCKY, SIZES, timeline(releases))
    assert fit is not None
    assert fit.at == day(fits_on)


def test_a_batch_of_many_slots_is_tried_no_more_often_than_it_is_worth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("commitments.domain.first_fit.MOST_TRIED_SLOTS", 3)
    known = timeline([(1, 2, 1), (2, 2, 2), (3, 2, 1)])
    fit = first_fit(UNLUCKY, SIZES, known)
    assert fit is not None
    assert fit.at == day(3)


def test_room_that_the_batch_itself_gives_back_counts() -> None:
    world = World(host_count=1, given_back=(1, 5))
    world.slots = [Slot("a", 2, 1, 1), Slot("b", 1, 2, 1)]
    world.targets = [*world.ending(), target(8)]
    fit = first_fit(world.snapshot(), world.targets, world.timeline())
    assert fit is not None
    assert fit.at == day(2)
