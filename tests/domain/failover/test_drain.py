from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.groups.flavor_groups import FlavorSpec
from capacity.ledger.slot_request import SlotAsk
from failover.domain.drain import (
    Blocker,
    CoverAfter,
    DrainInput,
    DrainReport,
    DrainSlot,
    DrainVM,
    MoveKind,
    blockers_for,
    cover_after,
    plan_drain,
)
from failover.domain.drain_window import MOST_STRETCHES, SafeWindow, next_safe_window
from failover.domain.drill_state import DrillState, DrillVM
from scheduling.resources import GIB
from scheduling.table import HostTable
from scheduling.table_rows import HostRow
from tests.domain.failover.drill_worlds import gib, rules_hold, states, world

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def table(**free_gib: int) -> HostTable:
    return HostTable.from_rows(
        HostRow(name=name, host_id=number, effective=gib(free, 100))
        for number, (name, free) in enumerate(sorted(free_gib.items()))
    )


def ask(key: str, memory_gib: int) -> SlotAsk:
    return SlotAsk(
        slot_name=key,
        flavor=FlavorSpec(name="f", vcpus=1, memory_bytes=GIB),
        slot=gib(memory_gib, 1),
        zone="",
        project_id="",
    )


def vm(uuid: str, memory_gib: int, host: str = "a") -> DrainVM:
    return DrainVM(host=host, ask=ask(uuid, memory_gib))


def slot(name: str, memory_gib: int, *vm_uuids: str, commitment: str = "c") -> DrainSlot:
    return DrainSlot(
        name=name,
        commitment=commitment,
        host="a",
        ask=ask(name, memory_gib),
        vm_uuids=vm_uuids,
    )


def drained(
    hosts: HostTable,
    *,
    vms: tuple[DrainVM, ...] = (),
    slots: tuple[DrainSlot, ...] = (),
    state: DrillState | None = None,
    failover: dict[str, SlotAsk] | None = None,
    gone: tuple[str, ...] = ("a",),
) -> DrainReport:
    return plan_drain(
        DrainInput(
            hosts=gone,
            table=hosts,
            vms=vms,
            slots=slots,
            failover_asks=failover or {},
            state=state or DrillState.of((), (), ()),
        )
    )


def where(report: DrainReport) -> dict[str, str]:
    return {move.key: move.to_host for move in report.moves}


@pytest.mark.parametrize(
    ("hosts", "vms", "slots", "expected", "blockers"),
    [
        pytest.param(table(a=100, b=0), (), (), {}, (), id="an empty host is always safe"),
        pytest.param(
            table(a=100, b=8), (vm("v", 8),), (), {"v": "b"}, (), id="the only VM fits elsewhere"
        ),
        pytest.param(
            table(a=100, b=7),
            (vm("v", 8),),
            (),
            {},
            (Blocker.VM_STUCK,),
            id="room on the host itself does not count",
        ),
        pytest.param(
            table(a=100, b=8, c=8),
            (vm("v", 8),),
            (slot("s", 8),),
            {"s": "b", "v": "c"},
            (),
            id="slots are placed before VMs and block what they take",
        ),
        pytest.param(
            table(a=100, b=8),
            (vm("v", 8),),
            (slot("s", 8),),
            {"s": "b"},
            (Blocker.VM_STUCK,),
            id="a slot takes the last room",
        ),
        pytest.param(
            table(a=100, b=16),
            (vm("v", 4),),
            (slot("s", 16, "v"),),
            {"s": "b", "v": "b"},
            (),
            id="a VM travels inside its slot",
        ),
        pytest.param(
            table(a=100, b=8),
            (vm("v", 4),),
            (slot("s", 16, "v"),),
            {"v": "b"},
            (Blocker.COMMITMENT_STRANDED,),
            id="a VM may leave a slot that is stranded",
        ),
        pytest.param(
            table(a=100, b=9, c=16),
            (vm("v", 12), vm("w", 2)),
            (slot("s", 5, "v"), slot("t", 7, "v", "w"), slot("u", 4, "w"), slot("x", 9)),
            {"s": "c", "t": "c", "u": "c", "x": "b", "v": "c", "w": "c"},
            (),
            id="slots that share VMs go to one host with them",
        ),
        pytest.param(
            table(a=100, b=8, c=6),
            (vm("small", 6), vm("large", 8)),
            (),
            {"large": "b", "small": "c"},
            (),
            id="the largest are placed first",
        ),
    ],
)
def test_drain_of_one_host(
    hosts: HostTable,
    vms: tuple[DrainVM, ...],
    slots: tuple[DrainSlot, ...],
    expected: dict[str, str],
    blockers: tuple[Blocker, ...],
) -> None:
    report = drained(hosts, vms=vms, slots=slots)

    assert where(report) == expected
    assert report.blockers == blockers
    assert report.is_safe == (not blockers)


def test_hosts_of_a_set_are_no_refuge_for_each_other() -> None:
    report = drained(table(a=10, b=10), vms=(vm("v", 4), vm("w", 4, "b")), gone=("a", "b"))

    assert [(row.kind, row.key, row.from_host) for row in report.stuck] == [
        (MoveKind.VM, "v", "a"),
        (MoveKind.VM, "w", "b"),
    ]


def test_stranded_slots_are_listed_by_commitment() -> None:
    report = drained(
        table(a=100, b=1),
        slots=(
            slot("s1", 8, commitment="c2"),
            slot("s2", 4, commitment="c1"),
            slot("s3", 4, commitment="c2"),
        ),
    )

    assert {
        uuid: [row.key for row in rows] for uuid, rows in report.stranded_commitments.items()
    } == {"c1": ["s2"], "c2": ["s1", "s3"]}
    assert all("filter_has_enough_capacity" in row.reason for row in report.stuck)


def test_failover_slot_is_made_again_away_from_its_users() -> None:
    state = world("r@a{v@b}", hosts=("c",))

    report = drained(table(a=9, b=9, c=9), state=state, failover={"r": ask("v", 4)})

    assert where(report) == {"r": "c"}
    assert (report.is_safe, report.weakened) == (True, ())


def test_failover_slot_without_a_place_is_a_loss() -> None:
    state = world("r@a{v@b}")

    report = drained(table(a=9, b=9), state=state, failover={"r": ask("v", 4)})

    assert report.blockers == (Blocker.COVERAGE_LOST,)
    assert report.bare_vms == ("v",)


def test_two_slots_of_a_vm_are_not_made_again_on_one_host() -> None:
    state = world("r1@a{v@x} r2@b{v@x}")
    requests = {name: ask("v", 4) for name in ("r1", "r2")}

    report = drained(table(a=9, b=9, c=90, x=90), state=state, failover=requests, gone=("a", "b"))

    assert where(report) == {"r1": "c"}
    assert [row.key for row in report.stuck] == ["r2"]
    assert [(row.vm, row.before, row.after) for row in report.weakened] == [("v", 2, 1)]


def test_vm_that_moves_to_its_own_slot_host_loses_that_slot() -> None:
    state = world("r@b{v@a}", required=1)

    report = drained(table(a=9, b=9), vms=(vm("v", 4),), state=state)

    assert where(report) == {"v": "b"}
    assert report.bare_vms == ("v",)
    assert report.blockers == (Blocker.COVERAGE_LOST,)


def test_vm_that_moves_to_the_host_of_a_sharer_leaves_the_shared_slot() -> None:
    state = world("r1@c{v@a,w@b} r2@d{v@a}")

    lost = cover_after(state, ("a",), {"v": "b"}, {})

    assert [(row.vm, row.required, row.before, row.after) for row in lost] == [("v", 2, 2, 1)]


@given(state=states(are_valid=True), choice=st.data())
def test_slots_that_are_kept_keep_the_rules(state: DrillState, choice: st.DataObject) -> None:
    gone = choice.draw(st.sampled_from(sorted(state.hosts)))
    others = sorted(set(state.hosts) - {gone})
    destinations = {
        uuid: choice.draw(st.sampled_from(others)) for uuid in state.vms_on.get(gone, ())
    }
    weakened = {row.vm: row.after for row in cover_after(state, {gone}, destinations, {})}

    assert keeps_rules_with(state, gone, destinations, weakened)


@given(state=st.booleans().flatmap(lambda valid: states(are_valid=valid)), choice=st.data())
def test_cover_is_that_of_the_graph_of_all_slots(state: DrillState, choice: st.DataObject) -> None:
    gone = choice.draw(st.sets(st.sampled_from(sorted(state.hosts))))
    others = st.sampled_from([*sorted(set(state.hosts) - gone), "elsewhere"])
    leaving = [name for name, slot in state.slots.items() if slot.host in gone]
    moving = [uuid for host in sorted(gone) for uuid in state.vms_on.get(host, ())]
    destinations = choice.draw(some_of(moving, others))
    recreated = choice.draw(some_of(leaving, others))

    assert cover_after(state, gone, destinations, recreated) == cover_by_all_slots(
        state, gone, destinations, recreated
    )


def some_of(keys: list[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(keys), values) if keys else st.just({})


def cover_by_all_slots(
    state: DrillState, gone: set[str], destinations: dict[str, str], recreated: dict[str, str]
) -> tuple[CoverAfter, ...]:
    """Move VMs in the graph of all slots, then look at every VM."""
    slot_hosts = {
        name: recreated.get(name, slot.host)
        for name, slot in state.slots.items()
        if slot.host not in gone or name in recreated
    }
    graph = state.sharing(slot_hosts)
    for uuid in sorted(state.vms.keys() & destinations):
        names = sorted(graph.vm_slots.get(uuid, ()))
        for name in names:
            graph.remove(uuid, name, slot_hosts[name])
        for name in names:
            graph.joined(uuid, destinations[uuid], name, slot_hosts[name])
    counts = {
        uuid: (len(state.slots_of.get(uuid, ())), len(graph.vm_slots.get(uuid, ())))
        for uuid in state.vms
    }
    return tuple(
        CoverAfter(vm=uuid, required=vm.required_count, before=before, after=after)
        for uuid, vm in state.vms.items()
        for before, after in [counts[uuid]]
        if after < min(before, vm.required_count)
    )


def keeps_rules_with(
    state: DrillState, gone: str, destinations: dict[str, str], weakened: dict[str, int]
) -> bool:
    """Try all subsets of the movers' memberships: the number kept must be possible by the rules."""
    moved = [
        DrillVM(
            uuid=uuid,
            host=destinations.get(uuid, row.host),
            size=row.size,
            required_count=row.required_count,
        )
        for uuid, row in state.vms.items()
    ]
    kept = [one for one in state.slots.values() if one.host != gone]
    expected = {uuid: weakened[uuid] for uuid in weakened if uuid in destinations}

    def search(memberships: list[tuple[str, str]], dropped: frozenset[tuple[str, str]]) -> bool:
        if not memberships:
            slots = [
                replace(
                    one,
                    users=tuple(user for user in one.users if (one.name, user) not in dropped),
                )
                for one in kept
            ]
            after = DrillState.of(state.hosts.values(), moved, slots)
            counts = {uuid: len(after.slots_of.get(uuid, ())) for uuid in expected}
            return rules_hold(after) and counts == expected
        first, rest = memberships[0], memberships[1:]
        return search(rest, dropped) or search(rest, dropped | {first})

    return search(
        [(one.name, user) for one in kept for user in one.users if user in destinations],
        frozenset(),
    )


def days(*numbers: int) -> list[datetime]:
    return [NOW + timedelta(days=number) for number in numbers]


@pytest.mark.parametrize(
    ("room", "growing", "shrinking", "expected"),
    [
        pytest.param({0: 1}, [], [], (0, None), id="safe now, nothing known changes"),
        pytest.param({0: 0, 3: 0}, [3], [], None, id="never safe"),
        pytest.param({0: 0, 3: 1}, [3], [], (3, None), id="safe once a commitment ends"),
        pytest.param({0: 0, 3: 1, 5: 0}, [3], [5], (3, 5), id="a drain of others closes it"),
        pytest.param({0: 1, 1: 0, 2: 1}, [2], [1], (0, 1), id="the first window counts"),
        pytest.param({0: 1, 1: 1, 2: 1}, [1], [2], (0, None), id="what keeps it safe does not end"),
        pytest.param({0: 0, 1: 0, 2: 1}, [2], [1], (2, None), id="safe after a drain"),
        pytest.param({0: 0, 2: 1}, [2], [2], (2, None), id="both at the same moment"),
        pytest.param({0: 0}, [-1], [-2], None, id="the past does not count"),
    ],
)
def test_next_safe_window(
    room: dict[int, int],
    growing: list[int],
    shrinking: list[int],
    expected: tuple[int, int | None] | None,
) -> None:
    window = next_safe_window(
        lambda moment: bool(room[(moment - NOW).days]),
        growing=days(*growing),
        shrinking=days(*shrinking),
        now=NOW,
    )

    assert window == as_window(expected)


def as_window(expected: tuple[int, int | None] | None) -> SafeWindow | None:
    if expected is None:
        return None
    start, end = expected
    return SafeWindow(starts_at=days(start)[0], ends_at=None if end is None else days(end)[0])


@given(
    changes=st.dictionaries(st.integers(1, 40), st.integers(-4, 4), max_size=25),
    free=st.integers(-3, 3),
)
def test_window_is_the_one_that_a_look_at_every_moment_finds(
    changes: dict[int, int], free: int
) -> None:
    def room(day: int) -> int:
        return free + sum(step for at, step in changes.items() if at <= day)

    start: int | None = None
    expected: tuple[int, int | None] | None = None
    for day in (0, *sorted(changes)):
        if start is None and room(day) >= 0:
            start, expected = day, (day, None)
        elif start is not None and room(day) < 0:
            expected = (start, day)
            break

    found = next_safe_window(
        lambda moment: room((moment - NOW).days) >= 0,
        growing=days(*(day for day, step in changes.items() if step >= 0)),
        shrinking=days(*(day for day, step in changes.items() if step < 0)),
        now=NOW,
    )

    assert found == as_window(expected)


def test_many_ends_of_commitments_cost_a_few_looks() -> None:
    asked: list[datetime] = []

    def after_900_days(moment: datetime) -> bool:
        asked.append(moment)
        return (moment - NOW).days >= 900

    window = next_safe_window(after_900_days, growing=days(*range(1, 1000)), shrinking=(), now=NOW)

    assert window == as_window((900, None))
    assert len(asked) < 15


def test_only_so_many_drains_are_looked_at() -> None:
    window = next_safe_window(
        lambda moment: moment > NOW, growing=days(1), shrinking=days(*range(2, 100)), now=NOW
    )

    assert window == as_window((1, MOST_STRETCHES + 1))


@pytest.mark.parametrize(
    ("growing", "shrinking", "expected"),
    [
        pytest.param([1], [], (1, 5), id="ends where nothing is known any more"),
        pytest.param([1], [3], (1, 5), id="after a drain that does no harm"),
        pytest.param([1], [5, 6], (1, 5), id="with drains from there on"),
        pytest.param([5, 6], [], None, id="room that comes then is not counted on"),
    ],
)
def test_window_goes_no_further_than_what_is_known(
    growing: list[int], shrinking: list[int], expected: tuple[int, int] | None
) -> None:
    window = next_safe_window(
        lambda moment: moment > NOW,
        growing=days(*growing),
        shrinking=days(*shrinking),
        now=NOW,
        until=days(5)[0],
    )

    assert window == as_window(expected)


def test_what_drains_before_takes_room_first_and_counts_for_itself_alone() -> None:
    hosts = world("")
    asked = DrainInput(
        hosts=("a", "b"),
        table=table(a=0, b=0, c=4),
        vms=(vm("large", 4, "a"), vm("small", 2, "b")),
        state=hosts,
    )

    def blockers(first: str, host: str) -> tuple[Blocker, ...]:
        report = plan_drain(replace(asked, first=frozenset(first)))
        return blockers_for(report, hosts, [host])

    assert blockers("", "a") == ()
    assert blockers("", "b") == (Blocker.VM_STUCK,)
    assert blockers("b", "a") == (Blocker.VM_STUCK,)
    assert blockers("b", "b") == ()
