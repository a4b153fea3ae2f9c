"""Cleaning and covering a zone (spec failover, 9.2, 9.3, 9.6, 10, 11, 12.1, 17.2, 17.4, 17.9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from failover.domain import cleaning
from failover.domain.cleaning import plan_cleaning, rule_breaking_vms, stale_members
from failover.domain.covering import plan_zone
from failover.domain.plan import PlanOptions, RemovalReason, ReuseOrder, ZonePlan
from failover.domain.shelf import share_limit
from failover.domain.slots import FailoverSlot, SlotUser
from failover.domain.zone_columns import ZoneSnapshot
from tests.domain.failover.oracle import slots_of
from tests.domain.failover.zones import GIB, OpenChooser, zone_of

HOSTS = [str(number) for number in range(1, 10)]
FREE = PlanOptions(brake_floor=10_000, trims=False, shrinks=False)


def vms_of(text: str) -> dict[str, str]:
    return dict(part.split("@") for part in text.split())


def users_after(snapshot: ZoneSnapshot, options: PlanOptions = FREE) -> dict[str, set[str]]:
    """Return reservation -> users that step 3 keeps."""
    is_stale, _, _ = stale_members(snapshot)
    left: dict[str, set[str]] = {name: set() for name in snapshot.slots.names}
    for row in np.flatnonzero(~is_stale).tolist():
        slot, vm = snapshot.members.slot[row], snapshot.members.vm[row]
        left[snapshot.slots.names[slot]].add(snapshot.vms.uuids[vm])
    return left


@pytest.mark.parametrize(
    ("vms", "active", "slots", "expected"),
    [
        pytest.param("v1@1 v2@2", "", "r1@3{v1@1,v2@2}", {"r1": "v1 v2"}, id="R1"),
        pytest.param("v1@1", "", "r1@3{v1@1,v2@2}", {"r1": "v1"}, id="R2"),
        pytest.param("v1@1 v2@4", "", "r1@3{v1@1,v2@2}", {"r1": "v1"}, id="R3"),
        pytest.param(
            "v1@1 v2@2", "", "r1@3{v1@1}, r2@4{v2@2,v3@3}", {"r1": "v1", "r2": "v2"}, id="R4"
        ),
        pytest.param("", "", "r1@3{v1@1,v2@2}", {"r1": ""}, id="R5"),
        pytest.param("v1@1", "", "", {}, id="R6"),
        pytest.param("v1@1", "", "r1@3{}", {"r1": ""}, id="R7"),
        pytest.param(
            "v1@1 v2@5 v4@4",
            "",
            "r1@6{v1@1,v2@2}, r2@7{v3@3,v4@4}",
            {"r1": "v1", "r2": "v4"},
            id="R8",
        ),
        pytest.param("v1@1", "v1 v2", "r1@3{v1@1,v2@2}", {"r1": "v1 v2"}, id="R9"),
        pytest.param(
            "",
            "v1 v2 v3",
            "r1@4{v1@1,v2@2}, r2@5{v3@3}",
            {"r1": "v1 v2", "r2": "v3"},
            id="R10",
        ),
        pytest.param("v1@1", "v1 v2", "r1@4{v1@1,v2@2,v3@3}", {"r1": "v1 v2"}, id="R11"),
        pytest.param("v1@1 v2@5", "v1 v2", "r1@3{v1@1,v2@2}", {"r1": "v1"}, id="R12"),
    ],
)
def test_stale_users_are_dropped_as_in_the_table(
    vms: str, active: str, slots: str, expected: dict[str, str]
) -> None:
    snapshot = zone_of(HOSTS, vms_of(vms), slots_of(slots), seen=active.split())
    assert users_after(snapshot) == {name: set(users.split()) for name, users in expected.items()}


def many_members(count: int) -> tuple[dict[str, str], list[FailoverSlot]]:
    """Return VMs on hosts of their own, each alone in a reservation."""
    vms = {f"v{number:03}": f"h{number:03}" for number in range(count)}
    slots = [
        FailoverSlot(
            name=f"r{number:03}",
            host=f"s{number:03}",
            users=(SlotUser(vm_uuid=f"v{number:03}", host=f"h{number:03}", joined_at=number),),
        )
        for number in range(count)
    ]
    return vms, slots


def many_hosts(count: int) -> list[str]:
    return [f"{letter}{number:03}" for letter in "hs" for number in range(count)]


def brake_of(
    vms: Mapping[str, str],
    slots: Sequence[FailoverSlot],
    *,
    notes: Mapping[str, int] | None = None,
    **options: object,
) -> str:
    snapshot = zone_of(many_hosts(100), vms, slots, notes=notes)
    plan = plan_cleaning(snapshot, PlanOptions(**options))  # type: ignore[arg-type]
    if plan.brake is None:
        return ""
    assert (plan.removals, plan.emptied, plan.resized) == ((), (), ())
    return plan.brake.code


def test_losing_the_whole_vm_list_removes_nothing() -> None:
    _, slots = many_members(100)
    assert brake_of({}, slots, previous_vm_count=100) == "vm_list_empty"
    assert brake_of({}, slots[:1]) == "vm_list_empty"


def test_losing_all_lists_of_hosts_removes_nothing() -> None:
    vms, slots = many_members(100)
    notes = {"vms_listed": 100, "hosts_reporting": 200, "vms_reported": 0}
    assert brake_of(vms, slots, notes=notes) == "hosts_report_no_vms"


def test_losing_a_quarter_of_the_vm_list_removes_nothing() -> None:
    vms, slots = many_members(100)
    most = dict(list(vms.items())[:75])
    assert brake_of(most, slots, previous_vm_count=100) == "vm_list_shrank"


def test_what_the_cloud_said_is_gone_is_no_loss() -> None:
    vms, slots = many_members(100)
    said = {"members_said_gone": 100}
    assert brake_of({}, slots, notes=said) == ""
    assert brake_of({}, slots, notes={"members_said_gone": 99}) == "vm_list_empty"
    few = dict(list(vms.items())[:60])
    options = {"previous_vm_count": 60}  # the pass discounted them
    assert brake_of(few, slots, notes={"members_said_gone": 40}, **options) == ""
    assert brake_of(few, slots, notes={"members_said_gone": 10}, **options) == "too_many_removals"


def test_a_zone_that_all_vms_left_has_an_empty_list() -> None:
    _, slots = many_members(20)
    notes = {"members_said_gone": 12, "members_elsewhere": 8}
    assert brake_of({}, slots, notes=notes) == ""
    assert brake_of({}, slots, notes=notes | {"members_elsewhere": 7}) == "vm_list_empty"
    silent = {"hosts_reporting": 200, "vms_reported": 0}
    assert brake_of({}, slots, notes=notes | silent) == ""
    assert brake_of({}, slots, notes=silent) == "hosts_report_no_vms"


def test_too_many_moves_at_once_remove_nothing() -> None:
    vms, slots = many_members(100)
    moved = {uuid: ("s000" if n < 30 else host) for n, (uuid, host) in enumerate(vms.items())}
    assert brake_of(moved, slots, previous_vm_count=100) == "too_many_removals"
    assert brake_of(moved, slots, previous_vm_count=100, max_removal_ratio=0.4) == ""


def test_few_removals_never_halt_a_run() -> None:
    vms, slots = many_members(100)
    most = dict(list(vms.items())[:85])
    assert brake_of(most, slots, previous_vm_count=100) == ""


def test_confirmed_run_removes_what_it_finds() -> None:
    _, slots = many_members(100)
    snapshot = zone_of(many_hosts(100), {}, slots)
    plan = plan_cleaning(snapshot, PlanOptions(is_confirmed=True))
    assert plan.brake is None
    assert len(plan.removals) == 100
    assert {one.reason for one in plan.removals} == {RemovalReason.GONE}
    assert len(plan.emptied) == 100


def test_nothing_is_added_while_the_brake_holds() -> None:
    vms, slots = many_members(100)
    newcomers = {"new": "h000"}
    snapshot = zone_of(many_hosts(100), newcomers, slots, required=1)
    options = PlanOptions(previous_vm_count=100)
    plan = plan_zone(snapshot, plan_cleaning(snapshot, options), OpenChooser(snapshot), options)
    assert plan.cleaning.brake is not None
    assert plan.cover.joins == ()
    assert vms


def planned(snapshot: ZoneSnapshot, options: PlanOptions = FREE) -> ZonePlan:
    return plan_zone(snapshot, plan_cleaning(snapshot, options), OpenChooser(snapshot), options)


@pytest.mark.parametrize(
    ("max_users", "hosts", "required", "limit"),
    [
        pytest.param(20, 100, 2, 20, id="large zone"),
        pytest.param(20, 21, 2, 10, id="bound by hosts"),
        pytest.param(20, 3, 2, 1, id="small zone"),
        pytest.param(20, 2, 2, 1, id="too small a zone"),
        pytest.param(5, 100, 2, 5, id="bound by policy"),
    ],
)
def test_sharing_is_limited(max_users: int, hosts: int, required: int, limit: int) -> None:
    assert share_limit(max_users, hosts, required) == limit


def test_smallest_size_that_fits_is_taken_before_fewest_users() -> None:
    slots = [
        FailoverSlot(name="large", host="3", memory_bytes=64 * GIB),
        FailoverSlot(
            name="tight",
            host="4",
            memory_bytes=8 * GIB,
            users=(SlotUser(vm_uuid="other", host="5", joined_at=0),),
        ),
    ]
    snapshot = zone_of(
        HOSTS, {"v": "1", "other": "5"}, slots, required={"v": 1, "other": 1}, vm_gib=8
    )
    keep = replace(FREE, reuse_order=ReuseOrder.FEWEST_USERS)
    kept = replace(plan_cleaning(snapshot, keep), emptied=())
    plan = plan_zone(snapshot, kept, OpenChooser(snapshot), keep)
    assert plan.cover.joins == ((snapshot.vm_row["v"], 1),)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        pytest.param(ReuseOrder.FEWEST_USERS, 1, id="fewest users"),
        pytest.param(ReuseOrder.MOST_USERS, 2, id="most users"),
        pytest.param(ReuseOrder.OLDEST, 0, id="oldest"),
    ],
)
def test_order_of_reuse_is_selectable(order: ReuseOrder, expected: int) -> None:
    slots = slots_of("r1@7{a@2,b@3}, r2@8{c@4}, r3@9{d@2,e@3,f@5}", memory_bytes=8 * GIB)
    vms = vms_of("v@1 a@2 b@3 c@4 d@2 e@3 f@5")
    snapshot = zone_of(HOSTS, vms, slots, required=1)
    plan = planned(snapshot, replace(FREE, reuse_order=order))
    assert plan.cover.joins == ((snapshot.vm_row["v"], expected),)
    assert plan.cover.reused == 1


def test_largest_vm_is_handled_first_and_the_rest_waits() -> None:
    vms = {"a": "1", "b": "2", "c": "3"}
    snapshot = zone_of(HOSTS, vms, required=1, vm_gib={"a": 4, "b": 16, "c": 8})
    plan = planned(snapshot, replace(FREE, limit=1))
    assert [vm for vm, _ in plan.cover.joins] == [snapshot.vm_row["b"]]
    assert plan.cover.hit_limit
    assert {one.reason for one in plan.cover.shortfalls} == {"waiting"}
    assert (plan.cover.missing_vms, plan.cover.processed_vms) == (3, 1)


def test_one_new_reservation_per_host_limits_creation_only() -> None:
    vms = {"a": "1", "b": "1", "c": "1"}
    options = replace(FREE, one_new_per_host=True)
    plan = planned(zone_of(["1", "2", "3"], vms, required=1), options)
    hosts = [slot.host for slot in plan.cover.created]
    assert len(hosts) == len(set(hosts)) == 2
    assert [one.reason for one in plan.cover.shortfalls] == ["no_eligible_host"]


def test_new_reservations_go_where_least_is_held_or_most_on_demand() -> None:
    vms = {"a": "1"}
    slots = slots_of("r1@2{x@3}", memory_bytes=8 * GIB)
    snapshot = zone_of(["1", "2", "3", "4"], {**vms, "x": "3"}, slots, required=2)
    spread = planned(snapshot, FREE).cover.created[0]
    packed = planned(snapshot, replace(FREE, consolidate=True)).cover.created[0]
    names = snapshot.hosts.names
    assert names[spread.host] != "2"
    assert names[packed.host] in {"2", "1", "4"}


def test_barred_host_is_neither_joined_nor_chosen() -> None:
    slots = slots_of("r1@2{x@3}", memory_bytes=8 * GIB)
    snapshot = zone_of(["1", "2", "3"], {"a": "1", "x": "3"}, slots, required=1)
    barred = {snapshot.vm_row["a"]: 1 << snapshot.host_row["2"]}
    plan = plan_zone(
        snapshot, plan_cleaning(snapshot, FREE), OpenChooser(snapshot), FREE, barred=barred
    )
    assert plan.cover.reused == 0
    assert [snapshot.hosts.names[slot.host] for slot in plan.cover.created] == ["3"]


def test_surplus_leaves_what_frees_most_and_keeps_what_is_validated() -> None:
    slots = slots_of("r1@2{v@1}, r2@3{v@1,w@5}, r3@4{v@1}", memory_bytes=8 * GIB)
    snapshot = zone_of(HOSTS, {"v": "1", "w": "5"}, slots, required=1)
    plan = plan_cleaning(snapshot, PlanOptions())
    names = [snapshot.slots.names[snapshot.members.slot[one.member]] for one in plan.removals]
    assert names == ["r1", "r3"]
    validated = np.array([True, False, False, False])
    kept = replace(snapshot, members=replace(snapshot.members, is_validated=validated))
    plan = plan_cleaning(kept, PlanOptions())
    names = [snapshot.slots.names[snapshot.members.slot[one.member]] for one in plan.removals]
    assert names == ["r3", "r2"]


@pytest.mark.parametrize(
    ("slots", "vms", "removed"),
    [
        pytest.param("r1@3{v1@1,v2@2}", "v1@1 v2@2", [], id="K1"),
        pytest.param("r1@3{v1@1,v2@2}", "v1@1", ["r1 v2"], id="gone, not judged"),
        pytest.param("r1@3{v1@1,v2@1}", "v1@1 v2@1", ["r1 v2"], id="K5"),
        pytest.param("r1@3{v1@1,v2@3}", "v1@1 v2@3", ["r1 v2"], id="K6"),
        pytest.param("r1@3{v1@1}, r2@3{v1@1}", "v1@1", ["r2 v1"], id="K7"),
        pytest.param(
            "r1@3{v1@1,v2@2}, r2@4{v1@1,v2@2}, r3@9{v5@5}",
            "v1@1 v2@2 v5@5",
            ["r2 v2"],
            id="K8",
        ),
    ],
)
def test_rule_breakers_of_a_zone_leave_as_in_the_table(
    slots: str, vms: str, removed: list[str]
) -> None:
    snapshot = zone_of(HOSTS, vms_of(vms), slots_of(slots), required=5)
    plan = plan_cleaning(snapshot, FREE)
    members = snapshot.members
    found = [
        f"{snapshot.slots.names[members.slot[one.member]]} "
        f"{snapshot.vms.uuids[members.vm[one.member]]}"
        for one in plan.removals
    ]
    assert found == removed


def test_users_of_a_reservation_whose_host_left_the_zone_leave_it() -> None:
    snapshot = zone_of(HOSTS, {"v": "1"}, slots_of("r1@elsewhere{v@1}"), required=1)
    plan = plan_cleaning(snapshot, FREE)
    assert [one.reason for one in plan.removals] == [RemovalReason.HOST_GONE]
    assert plan.emptied == (0,)


@pytest.mark.parametrize(
    ("vms", "seen"),
    [
        pytest.param("v@elsewhere w@1", "", id="still there"),
        pytest.param("v@2 w@1", "", id="came back into the zone"),
        pytest.param("w@1", "v", id="only a host knows it"),
    ],
)
def test_users_who_joined_on_a_host_that_left_the_zone_leave(vms: str, seen: str) -> None:
    slots = slots_of("r1@3{v@elsewhere,w@1}, r2@4{v@elsewhere}")
    snapshot = zone_of(HOSTS, vms_of(vms), slots, required=1, seen=seen.split())
    plan = plan_cleaning(snapshot, FREE)
    uuids = [snapshot.vms.uuids[snapshot.members.vm[one.member]] for one in plan.removals]
    assert uuids == ["v", "v"]
    assert {one.reason for one in plan.removals} == {RemovalReason.HOST_GONE}
    assert plan.emptied == (1,)
    assert all(snapshot.vms.host[vm] >= 0 for vm, _ in planned(snapshot).cover.joins)


def test_users_of_an_evacuation_whose_host_left_the_zone_block_nobody() -> None:
    slots = slots_of("r1@3{v@elsewhere,w@gone}, r2@4{u@5}", memory_bytes=8 * GIB)
    vms = {"v": "elsewhere", "w": "gone", "u": "5", "new": "6"}
    snapshot = zone_of(HOSTS, vms, slots, required=1)
    is_consuming = np.array([True, False])
    frozen = replace(snapshot, slots=replace(snapshot.slots, is_consuming=is_consuming))
    plan = planned(frozen)
    assert (plan.cleaning.removals, plan.cleaning.emptied) == ((), ())
    assert plan.cover.shortfalls == ()


def test_vm_without_memory_gets_nothing() -> None:
    snapshot = zone_of(HOSTS, {"v": "1"}, required=1, vm_gib={"v": 0})
    plan = planned(snapshot)
    assert [one.reason for one in plan.cover.shortfalls] == ["no_resources"]


def test_members_are_found_by_reservation() -> None:
    snapshot = zone_of(
        HOSTS, {"a": "1", "b": "2"}, slots_of("r1@3{a@1,b@2}, r2@4{a@1}"), required=2
    )
    starts, rows = snapshot.members_of_slot
    assert [rows[starts[n] : starts[n + 1]].tolist() for n in range(2)] == [[0, 1], [2]]
    assert snapshot.cover.tolist() == [2, 1]


def test_reservation_of_an_evacuation_loses_nobody_and_stays() -> None:
    slots = slots_of("r1@2{v@1}", memory_bytes=8 * GIB)
    snapshot = zone_of(HOSTS, {"v": "5", "w": "6"}, slots, required=1)
    frozen = replace(snapshot, slots=replace(snapshot.slots, is_consuming=np.array([True])))
    plan = plan_cleaning(frozen, FREE)
    assert (plan.removals, plan.emptied) == ((), ())


def test_users_of_an_evacuation_are_not_blamed_wherever_it_is() -> None:
    slots = slots_of("r1@elsewhere{v@1,w@1}, r2@3{v@1}, r3@4{u@2,x@2}", memory_bytes=8 * GIB)
    snapshot = zone_of(HOSTS, {"v": "1", "w": "1", "u": "2", "x": "2"}, slots, required=5)
    frozen = np.array([True, False, False])
    snapshot = replace(snapshot, slots=replace(snapshot.slots, is_consuming=frozen))
    plan = plan_cleaning(snapshot, FREE)
    uuids = [snapshot.vms.uuids[snapshot.members.vm[one.member]] for one in plan.removals]
    assert uuids == ["x"]
    assert {one.reason for one in plan.removals} == {RemovalReason.RULES}


def test_reservation_of_an_evacuation_is_no_surplus() -> None:
    slots = slots_of("r1@2{v@1}, r2@3{v@1}", memory_bytes=8 * GIB)
    snapshot = zone_of(HOSTS, {"v": "1"}, slots, required=1)
    is_consuming = np.array([True, False])
    frozen = replace(snapshot.slots, is_consuming=is_consuming, is_usable=~is_consuming)
    plan = plan_cleaning(replace(snapshot, slots=frozen), PlanOptions())
    assert (plan.removals, plan.emptied) == ((), ())


def test_vm_that_outgrew_its_reservation_leaves_it() -> None:
    slots = slots_of("r1@2{v@1,w@3}", memory_bytes=8 * GIB)
    vms = {"v": "1", "w": "3"}
    snapshot = zone_of(HOSTS, vms, slots, required=1, vm_gib={"v": 16, "w": 4})
    plan = plan_cleaning(snapshot, PlanOptions())
    assert [one.reason for one in plan.removals] == [RemovalReason.TOO_LARGE]
    (shrunk,) = plan.resized
    assert (shrunk.slot, shrunk.memory_bytes, shrunk.users) == (0, 4 * GIB, 1)


@pytest.mark.parametrize("bound", [pytest.param(1 << 31, id="narrow"), pytest.param(0, id="wide")])
def test_rule_breakers_are_found_in_zones_of_any_size(
    bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "_NARROW", bound)
    slots = slots_of("r1@3{v1@1,v2@1}, r2@4{v3@5,v4@6}, r3@6{v3@5}")
    snapshot = zone_of(HOSTS, vms_of("v1@1 v2@1 v3@5 v4@6"), slots)
    everybody = np.ones(len(snapshot.members), dtype=np.bool_)
    broken = rule_breaking_vms(snapshot, everybody)
    assert [snapshot.vms.uuids[row] for row in np.flatnonzero(broken)] == ["v1", "v2", "v3"]
