from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from scheduling.filters import capacity_filter, filter_has_enough_capacity, free_columns
from scheduling.intents import Intent
from scheduling.request import PlacementRequest
from scheduling.reservations import ReservationIndex
from scheduling.resources import GIB, ZERO
from scheduling.table_rows import HostRow, ReservationRow
from tests.blocked_views import AllocationView, ReservationView, unused_reservation_capacity

from .full_worlds import World, blocks_by_host, free_on, full_requests, full_worlds, kept, pair
from .worlds import gib

Pair = tuple[int, int]
FREE = {"1": (8, 16), "2": (4, 8), "3": (16, 32), "4": (0, 0)}
LOCKED = capacity_filter(lock_reserved=True)


def cr(
    where: str,
    full: Pair,
    *,
    owner: str = "A",
    group: str = "gp-1",
    observed: str | None = None,
    ready: bool = True,
    confirmed: tuple[Pair, ...] = (),
    expected: tuple[Pair, ...] = (),
) -> ReservationRow:
    """A committed slot, blocked as the ledger computes it; ``observed`` None is the target."""
    seen_on = where if observed is None else observed
    vms = [(amount, True) for amount in confirmed] + [(amount, False) for amount in expected]
    view = ReservationView(
        reservation_id=1,
        slot=pair(full),
        target_host=where or None,
        host=seen_on or None,
        allocations=tuple(
            AllocationView(vm_uuid=str(number), resources=pair(amount), is_confirmed=is_confirmed)
            for number, (amount, is_confirmed) in enumerate(vms)
        ),
    )
    return ReservationRow(
        reservation_id=0,
        kind="committed",
        is_ready=ready,
        project_id=owner,
        resource_group=group,
        target_host=where,
        observed_host=seen_on,
        full=pair(full),
        blocked=unused_reservation_capacity(view),
        expected_only=sum((pair(amount) for amount in expected), ZERO),
    )


def failover(where: str, full: Pair, *users: str, ready: bool = True) -> ReservationRow:
    return ReservationRow(
        reservation_id=0,
        kind="failover",
        is_ready=ready,
        target_host=where,
        observed_host=where,
        full=pair(full),
        blocked=pair(full),
        vm_uuids=users,
    )


def world(free: dict[str, Pair], *slots: ReservationRow) -> World:
    return World(
        hosts=tuple(
            HostRow(name=name, host_id=int(name), effective=pair(room))
            for name, room in free.items()
        ),
        reservations=tuple(
            replace(slot, reservation_id=number) for number, slot in enumerate(slots)
        ),
    )


def ask(size: Pair = (4, 8), owner: str = "B", **fields: object) -> PlacementRequest:
    base = PlacementRequest(
        request_key="vm",
        memory_bytes=size[1] * GIB,
        vcpus=size[0],
        project_id=owner,
        extra_specs={"quota:hw_version": "gp-1"},
    )
    return replace(base, **fields)  # type: ignore[arg-type]  # keyword pass-through


BOTH_X = (cr("1", (8, 16), owner="X"), cr("2", (4, 8), owner="X"))
EVACUATE: dict[str, Any] = {"intent": Intent.EVACUATE}
MOVING = cr("1", (8, 16), owner="X", observed="")


@pytest.mark.parametrize(
    ("slots", "request_", "expected"),
    [
        pytest.param((), ask(), "123", id="C01"),
        pytest.param((cr("1", (8, 16)), cr("2", (4, 8))), ask(), "3", id="C02"),
        pytest.param(
            (
                cr("1", (8, 16), confirmed=((4, 8),)),
                cr("2", (4, 8), confirmed=((4, 8),)),
            ),
            ask(),
            "123",
            id="C03",
        ),
        pytest.param((cr("1", (8, 16), confirmed=((3, 6), (2, 4))),), ask(), "123", id="C04"),
        pytest.param(
            (
                cr("1", (4, 8)),
                cr("1", (2, 4), observed="2"),
                cr("2", (2, 4), observed="1", confirmed=((2, 4),)),
            ),
            ask((2, 4)),
            "3",
            id="C05",
        ),
        pytest.param(
            (
                cr("1", (2, 4)),
                cr("1", (2, 4), expected=((2, 4),)),
                cr("1", (2, 4), confirmed=((1, 1),)),
                cr("2", (4, 8), group="gp-2"),
            ),
            ask((8, 16), "A"),
            "3",
            id="C06 (product: expected room stays blocked)",
        ),
        pytest.param(
            (*(cr("1", (2, 4)),) * 3, cr("2", (4, 8), group="gp-2")),
            ask((8, 16), "A"),
            "13",
            id="three empty slots of the group, one of another (commitments 10.4)",
        ),
        pytest.param((cr("1", (4, 8)),), ask(owner="A"), "123", id="C08"),
        pytest.param((*BOTH_X, cr("3", (16, 32), owner="X")), ask(owner="A"), "", id="C09"),
        pytest.param((MOVING,), ask(owner="A"), "23", id="C10"),
        pytest.param(
            (MOVING, cr("2", (4, 8), owner="X", observed="3")), ask((4, 8), "A"), "3", id="C11"
        ),
        pytest.param((cr("", (8, 16), owner="X"),), ask(owner="A"), "123", id="C12"),
        pytest.param(
            (cr("1", (4, 8), owner="X", confirmed=((6, 10),)),), ask((9, 17), "A"), "3", id="C13"
        ),
        pytest.param(
            (cr("1", (8, 16), owner="X", confirmed=((4, 8),), expected=((6, 12),)),),
            ask((3, 5), "A"),
            "23",
            id="C14",
        ),
        pytest.param((), ask(owner="A"), "123", id="C15"),
        pytest.param(
            (failover("1", (8, 16), "vm"), failover("2", (4, 8), "vm")), ask(), "3", id="F01"
        ),
        pytest.param(
            (failover("1", (4, 8), "vm"), failover("2", (4, 8), "vm")),
            ask(**EVACUATE),
            "123",
            id="F02",
        ),
        pytest.param(
            (failover("1", (8, 16), "x"), failover("2", (4, 8), "y")),
            ask(**EVACUATE),
            "3",
            id="F03",
        ),
        pytest.param((failover("1", (8, 16)),), ask(**EVACUATE), "23", id="F04"),
        pytest.param((failover("1", (4, 8), "x", "vm", "y"),), ask(**EVACUATE), "123", id="F05"),
        pytest.param(
            (cr("1", (8, 16), owner="X", ready=False, observed=""),),
            ask(owner="A"),
            "23",
            id="N01",
        ),
        pytest.param(
            (
                cr("1", (8, 16), owner="X", ready=False, observed=""),
                cr("2", (4, 8), owner="X", ready=False, observed=""),
            ),
            ask(owner="A"),
            "3",
            id="N02",
        ),
        pytest.param((failover("1", (8, 16), "vm", ready=False),), ask(**EVACUATE), "23", id="N03"),
        pytest.param(
            (cr("1", (8, 16), ready=False),), ask(owner="A"), "23", id="own slot not ready"
        ),
        pytest.param(
            (failover("1", (8, 16), "vm"),),
            ask(lock_reservations=True, **EVACUATE),
            "123",
            id="failover slot of its user even when locked",
        ),
        pytest.param(
            (failover("1", (8, 16), "x"), failover("2", (4, 8), "y", ready=False)),
            ask(intent=Intent.REUSE_FAILOVER_RESERVATION),
            "13",
            id="reuse: every ready failover slot",
        ),
        pytest.param((cr("1", (8, 16), group=""),), ask(), "23", id="ready slot without group"),
        pytest.param(
            (cr("1", (8, 16), group=""),),
            ask(assume_empty_hosts=True),
            "23",
            id="ready slot without group on empty hosts",
        ),
    ],
)
def test_reservations_block_and_release(
    slots: tuple[ReservationRow, ...], request_: PlacementRequest, expected: str
) -> None:
    table = world(FREE, *slots).table()
    assert kept(table, request_, filter_has_enough_capacity) == list(expected)


def test_locked_step_keeps_own_slots_blocked() -> None:
    table = world(FREE, cr("1", (8, 16)), cr("3", (16, 32))).table()
    assert kept(table, ask(owner="A"), LOCKED) == ["2"]  # C07


@pytest.mark.parametrize("by_step", [False, True])
@pytest.mark.parametrize("by_option", [False, True])
def test_lock_of_step_or_call_keeps_slots_blocked(by_step: bool, by_option: bool) -> None:
    table = world({"1": (8, 16), "2": (8, 16)}, cr("1", (8, 16))).table()
    step = LOCKED if by_step else filter_has_enough_capacity
    expected = ["2"] if by_step or by_option else ["1", "2"]
    assert kept(table, ask(owner="A", lock_reservations=by_option), step) == expected


@pytest.mark.parametrize(
    ("of_step", "of_call", "expected"),
    [
        ((), (), ""),
        (("committed",), (), "1"),
        ((), ("committed",), "1"),
        (("failover",), (), "2"),
        (("committed", "failover"), (), "12"),
        (("committed",), ("failover",), "12"),
    ],
)
def test_ignored_types_of_step_and_call_are_united(
    of_step: tuple[str, ...], of_call: tuple[str, ...], expected: str
) -> None:
    slots = (cr("1", (4, 8), owner="X"), failover("2", (4, 8)))
    table = world({"1": (8, 16), "2": (8, 16)}, *slots).table()
    step = capacity_filter(lock_reserved=True, ignored_kinds=of_step)
    request = ask((8, 16), ignored_kinds=frozenset(of_call))
    assert kept(table, request, step) == list(expected)


RESERVE: dict[str, Any] = {"intent": Intent.RESERVE_FOR_COMMITTED_RESOURCE}
TWO = {"1": (8, 16), "2": (8, 16)}
ONE = {"1": (32, 64)}
THREE_SLOTS = (cr("1", (8, 16)),) * 3


@pytest.mark.parametrize(
    ("free", "slots", "request_", "expected"),
    [
        pytest.param(TWO, (cr("1", (8, 16)),), ask(owner="A", **RESERVE), "2", id="reserve"),
        pytest.param(TWO, (cr("1", (8, 16)),), ask(owner="A"), "12", id="create"),
        pytest.param(
            TWO, (cr("1", (8, 16), owner="B"),), ask(owner="A", **RESERVE), "2", id="other's"
        ),
        pytest.param(
            ONE, THREE_SLOTS, ask((10, 20), "A", **RESERVE), "", id="three slots, reserve"
        ),
        pytest.param(ONE, THREE_SLOTS, ask((10, 20), "A"), "1", id="three slots, create"),
    ],
)
def test_slots_are_not_released_to_other_slots(
    free: dict[str, Pair],
    slots: tuple[ReservationRow, ...],
    request_: PlacementRequest,
    expected: str,
) -> None:
    assert kept(world(free, *slots).table(), request_, filter_has_enough_capacity) == list(expected)


def flight(where: str, full: Pair, vm: str = "other", **fields: Any) -> ReservationRow:
    return ReservationRow(
        reservation_id=0,
        kind="in_flight",
        is_ready=False,
        project_id=fields.get("owner", "A"),
        resource_group=fields.get("group", "gp-1"),
        target_host=where,
        full=pair(full),
        blocked=pair(full),
        vm_uuids=(vm,),
        placement_id=f"of-{vm}",
    )


SLOT, BIG = cr("1", (4, 8)), cr("1", (8, 16))


@pytest.mark.parametrize(
    ("reservations", "request_", "expected"),
    [
        pytest.param((SLOT,), ask((8, 16), "A"), False, id="at most the slot is released"),
        pytest.param((SLOT, SLOT), ask((8, 16), "A"), True, id="two slots are released"),
        pytest.param(
            (SLOT, flight("1", (4, 8))), ask((4, 8), "A"), False, id="another VM takes the slot"
        ),
        pytest.param(
            (SLOT, SLOT, flight("1", (4, 8))), ask((4, 8), "A"), True, id="it takes one of two"
        ),
        pytest.param(
            (SLOT, flight("1", (2, 4))), ask((2, 4), "A"), True, id="a small one takes a part"
        ),
        pytest.param(
            (SLOT, flight("1", (2, 4))), ask((4, 8), "A"), False, id="the rest is too small"
        ),
        pytest.param((BIG, flight("1", (4, 8))), ask((4, 8), "A"), True, id="half of a large one"),
        pytest.param(
            (BIG, flight("1", (4, 8), owner="X")), ask((4, 8), "A"), False, id="of others"
        ),
        pytest.param(
            (BIG, flight("1", (4, 8), group="gp-2")), ask((4, 8), "A"), False, id="of another group"
        ),
        pytest.param(
            (SLOT, flight("1", (4, 8), "vm")), ask((4, 8), "A"), True, id="its own is released"
        ),
        pytest.param(
            (BIG, flight("1", (4, 8)), flight("1", (4, 8), "vm")),
            ask((4, 8), "A"),
            True,
            id="its own is released beside another",
        ),
        pytest.param(
            (SLOT, flight("1", (4, 8))),
            ask((4, 8), "A", ignored_kinds=frozenset({"in_flight"})),
            True,
            id="ignored VMs in flight take nothing",
        ),
    ],
)
def test_a_slot_is_released_less_what_vms_in_flight_take_of_it(
    reservations: tuple[ReservationRow, ...], request_: PlacementRequest, expected: bool
) -> None:
    """A host of 8 vCPUs and 16 GiB; what slots leave is taken by a VM of another project."""
    left = 8 - sum(row.full.vcpus for row in reservations if row.kind == "committed")
    rest = flight("1", (left, 2 * left), "x", owner="Y")
    table = world({"1": (8, 16)}, *reservations, rest).table()
    assert (kept(table, request_, filter_has_enough_capacity) == ["1"]) is expected


OWN, OTHERS = failover("1", (4, 8), "vm"), failover("1", (4, 8), "x")


@pytest.mark.parametrize(
    ("reservations", "request_", "expected"),
    [
        pytest.param((OWN, OTHERS), ask(**EVACUATE), True, id="nobody is in flight"),
        pytest.param(
            (OWN, OTHERS, flight("1", (4, 8), "x")), ask(**EVACUATE), True, id="into the other slot"
        ),
        pytest.param(
            (OWN, OTHERS, flight("1", (4, 8), "x")),
            ask(request_key="y", **EVACUATE),
            False,
            id="without a slot there is no room",
        ),
        pytest.param(
            (OWN, OTHERS, flight("1", (4, 8), "x")), ask(), False, id="a new VM has none either"
        ),
        pytest.param(
            (OWN, OTHERS, flight("1", (4, 8), "y")), ask(**EVACUATE), False, id="into no slot"
        ),
        pytest.param(
            (OWN, failover("1", (2, 4), "x"), flight("1", (4, 8), "x")),
            ask((5, 10), **EVACUATE),
            False,
            id="no more than the slot holds",
        ),
        pytest.param(
            (failover("1", (8, 16), "vm", "x"), flight("1", (4, 8), "x")),
            ask(**EVACUATE),
            True,
            id="into the same slot, which is large enough for both",
        ),
        pytest.param(
            (failover("1", (8, 16), "vm", "x"), flight("1", (4, 8), "x")),
            ask((8, 16), **EVACUATE),
            False,
            id="into the same slot, which is not",
        ),
        pytest.param(
            (OWN, OTHERS, flight("1", (4, 8), "x")),
            ask((5, 10), ignored_kinds=frozenset({"in_flight"}), **EVACUATE),
            False,
            id="what is ignored is given back once",
        ),
    ],
)
def test_a_failover_slot_and_a_vm_in_flight_into_it_are_in_the_way_once(
    reservations: tuple[ReservationRow, ...], request_: PlacementRequest, expected: bool
) -> None:
    """A host of 8 vCPUs and 16 GiB, as full as its slots make it."""
    table = world({"1": (8, 16)}, *reservations).table()
    assert (kept(table, request_, filter_has_enough_capacity) == ["1"]) is expected


EXPECTING = replace(cr("1", (4, 8), expected=((4, 8),)), expected_vms=(("vm", pair((4, 8))),))


@pytest.mark.parametrize(
    ("vm", "expected"), [pytest.param("vm", True, id="own"), pytest.param("x", False, id="other's")]
)
def test_the_room_that_a_slot_keeps_for_a_vm_is_released_to_it_alone(
    vm: str, expected: bool
) -> None:
    table = world({"1": (4, 8)}, EXPECTING).table()
    request = ask((4, 8), "A", request_key=vm)
    assert (kept(table, request, filter_has_enough_capacity) == ["1"]) is expected


def test_ignored_type_wins_over_the_intent() -> None:
    table = world({"1": (8, 16)}, cr("1", (8, 16))).table()
    step = capacity_filter(ignored_kinds=("committed",))
    assert kept(table, ask(owner="A", **RESERVE), step) == ["1"]


@pytest.mark.parametrize(
    ("used_a", "used_b", "slots", "expected"),
    [
        pytest.param(1, 0, (cr("1", (8, 16), confirmed=((4, 8),)), cr("2", (8, 16))), "12", id="1"),
        pytest.param(
            1,
            0,
            (cr("1", (8, 16), confirmed=((4, 8),)), cr("2", (8, 16), expected=((4, 8),))),
            "12",
            id="2",
        ),
        pytest.param(
            1,
            1,
            (cr("1", (8, 16), confirmed=((4, 8),)), cr("2", (8, 16), expected=((4, 8),))),
            "1",
            id="3",
        ),
        pytest.param(
            0,
            1,
            (cr("1", (8, 16), confirmed=((4, 8),)), cr("2", (8, 16), expected=((4, 8),))),
            "1",
            id="4",
        ),
        pytest.param(
            0,
            1,
            (cr("1", (8, 16), confirmed=((4, 8),)), cr("2", (8, 16), confirmed=((4, 8),))),
            "12",
            id="5",
        ),
        pytest.param(
            0, 1, (cr("1", (8, 16)), cr("2", (8, 16), confirmed=((4, 8),))), "12", id="6, 7"
        ),
    ],
)
def test_phases_of_a_vm_that_moves_between_slots(
    used_a: int, used_b: int, slots: tuple[ReservationRow, ...], expected: str
) -> None:
    base = world({"1": (12, 24), "2": (12, 24)}, *slots)
    hosts = tuple(
        replace(host, allocated=gib(8, 4) if used else ZERO)
        for host, used in zip(base.hosts, (used_a, used_b), strict=True)
    )
    table = replace(base, hosts=hosts).table()
    assert kept(table, ask((3, 6), "P"), filter_has_enough_capacity) == list(expected)


def in_flight(number: int, where: str, vm: str, placement: str) -> ReservationRow:
    return ReservationRow(
        reservation_id=number,
        kind="in_flight",
        is_ready=False,
        target_host=where,
        full=gib(8, 4),
        blocked=gib(8, 4),
        vm_uuids=(vm,),
        placement_id=placement,
    )


def test_own_in_flight_blocks_do_not_block_a_retry() -> None:
    slots = (in_flight(0, "1", "vm", "x"), in_flight(0, "2", "vm", "x"))
    table = world({"1": (4, 8), "2": (4, 8)}, *slots).table()
    assert kept(table, ask(), filter_has_enough_capacity) == ["1", "2"]
    assert kept(table, ask(request_key="other"), filter_has_enough_capacity) == []


def test_blocks_of_one_placement_count_once_per_host() -> None:
    rows = [
        in_flight(0, "1", "vm", "x"),
        in_flight(1, "1", "vm", "x"),
        in_flight(2, "2", "vm", "x"),
    ]
    assert {host: kinds["in_flight"] for host, kinds in blocks_by_host(rows).items()} == {
        "1": gib(8, 4),
        "2": gib(8, 4),
    }
    table = world({"1": (4, 8), "2": (4, 8)}, *rows).table()
    assert kept(table, ask(), filter_has_enough_capacity) == ["1", "2"]


def test_slot_releases_at_most_the_size_of_the_vm() -> None:
    table = world({"1": (4, 8)}, cr("1", (8, 16))).table()  # over-subscribed by 4/8
    assert kept(table, ask((2, 4), "A"), filter_has_enough_capacity) == []


@given(world=full_worlds, request=full_requests)
def test_free_room_equals_the_sum_over_single_reservations(
    world: World, request: PlacementRequest
) -> None:
    table = world.table()
    for _ in range(2):  # the second time from the cache
        free = free_columns(table, request)
        for row, host in enumerate(world.hosts):
            expected = free_on(world, host, request)
            assert (free.memory_bytes[row], free.vcpus[row]) == (
                expected.memory_bytes,
                expected.vcpus,
            )


@given(before=full_worlds, after=full_worlds, request=full_requests)
def test_changed_side_tables_equal_those_built_anew(
    before: World, after: World, request: PlacementRequest
) -> None:
    old = ReservationIndex.from_rows(before.reservations)
    free_columns(before.table().with_reservations(old), request)
    gone = set(old.by_id) - {row.reservation_id for row in after.reservations}
    changed = old.replace_rows(after.reservations, removed=gone)
    anew = ReservationIndex.from_rows(after.reservations)
    for name in (
        "by_id",
        "committed",
        "failover_of_vm",
        "in_flight_of_vm",
        "failover",
        "all_committed",
    ):
        assert getattr(changed, name) == getattr(anew, name)


def test_untouched_groups_keep_their_identity() -> None:
    old = ReservationIndex.from_rows([replace(cr("1", (1, 1)), reservation_id=1)])
    other = replace(cr("1", (1, 1), owner="Z"), reservation_id=2)
    new = old.replace_rows([other])
    assert new.committed["A", "gp-1"] is old.committed["A", "gp-1"]
    assert new.failover is old.failover


def test_wrong_reservations_are_refused() -> None:
    row = replace(cr("1", (1, 1)), reservation_id=1)
    with pytest.raises(ValueError, match="unknown reservation kind: odd"):
        ReservationIndex.from_rows([replace(row, kind="odd")])
    with pytest.raises(ValueError, match="twice"):
        ReservationIndex.from_rows([row, row])
    with pytest.raises(ValueError, match="twice"):
        ReservationIndex.from_rows([row]).replace_rows([row], removed=[1])
