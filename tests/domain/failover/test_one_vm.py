"""Planning one VM against brute force (spec failover, 7.2, 11.1, 12.1, 17.4, 17.8)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from failover.domain.cleaning import plan_cleaning
from failover.domain.covering import plan_cover, plan_zone
from failover.domain.plan import CleaningPlan, CoverPlan, PlanOptions, ReuseOrder, ZonePlan
from failover.domain.shadow import zone_after
from failover.domain.shelf import share_limit
from failover.domain.slots import FailoverSlot, SlotUser
from failover.domain.zone_columns import ZoneSnapshot
from tests.domain.failover.oracle import five_rules_hold, may_join, slots_of, vm_at
from tests.domain.failover.zones import GIB, OpenChooser, zone_of

HOSTS = [str(number) for number in range(1, 13)]
FREE = PlanOptions(brake_floor=10_000)
SIZES = (4, 8, 16)


class Planned(NamedTuple):
    """What one VM gets, and on what."""

    snapshot: ZoneSnapshot
    cover: CoverPlan


def planned(
    snapshot: ZoneSnapshot,
    uuid: str,
    *,
    most_required: int = 2,
    options: PlanOptions = FREE,
    barred: Collection[int] = (),
) -> Planned:
    """Plan one VM alone, as the part of a zone around it is planned."""
    vm = snapshot.vm_row[uuid]
    is_it = np.arange(len(snapshot.vms)) == vm
    near = replace(snapshot, vms=replace(snapshot.vms, is_listed=is_it, is_seen=~is_it))
    cover = plan_cover(
        near,
        CleaningPlan(),
        OpenChooser(near),
        replace(options, most_required=most_required),
        barred={vm: sum(1 << host for host in barred)},
    )
    return Planned(near, cover)


def applied(
    slots: Sequence[FailoverSlot], result: Planned, uuid: str, host: str
) -> list[FailoverSlot]:
    """Return the reservations after a plan."""
    cover, names = result.cover, result.snapshot.slots.names
    joined = {number for _, number in cover.joins}
    user = SlotUser(vm_uuid=uuid, host=host, joined_at=1e9)
    after = [
        slot.joined(user)
        if slot.name in {names[number] for number in joined if number < len(names)}
        else slot
        for slot in slots
    ]
    after += [
        FailoverSlot(
            name=f"n{len(after)}-{slot.number}",
            host=result.snapshot.hosts.names[slot.host],
            users=(user,),
            memory_bytes=slot.memory_bytes,
        )
        for slot in cover.created
    ]
    return after


def plain(snapshot: ZoneSnapshot) -> list[FailoverSlot]:
    """Return the reservations of a snapshot; keys and numbers agree."""
    members, slots, hosts = snapshot.members, snapshot.slots, snapshot.hosts.names
    users: dict[int, list[SlotUser]] = {}
    for row, slot in enumerate(members.slot.tolist()):
        uuid = snapshot.vms.uuids[members.vm[row]]
        host = hosts[members.joined_host[row]]
        users.setdefault(slot, []).append(SlotUser(vm_uuid=uuid, host=host, joined_at=row))
    return [
        FailoverSlot(
            name=f"r{row}",
            host=hosts[slots.host[row]],
            users=tuple(users.get(row, ())),
            memory_bytes=int(slots.memory_bytes[row]),
        )
        for row in range(len(slots))
    ]


@st.composite
def zones(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, int], int, list[str]]:
    count = draw(st.integers(2, 14))
    vms = {f"v{number:02}": draw(st.sampled_from(HOSTS)) for number in range(count)}
    sizes = {uuid: draw(st.sampled_from(SIZES)) for uuid in vms}
    required = draw(st.integers(1, 3))
    missing = draw(st.lists(st.sampled_from(sorted(vms)), min_size=1, max_size=4, unique=True))
    return vms, sizes, required, missing


@given(zones(), st.sampled_from(list(ReuseOrder)))
@settings(max_examples=150, deadline=None)
def test_plans_of_single_vms_keep_the_rules_and_leave_the_loop_nothing_to_do(
    zone: tuple[dict[str, str], dict[str, int], int, list[str]], order: ReuseOrder
) -> None:
    vms, sizes, required, missing = zone
    options = replace(FREE, reuse_order=order, shrinks=False)
    before = {uuid: host for uuid, host in vms.items() if uuid not in missing}
    start = zone_of(HOSTS, before, required=required, vm_gib=sizes)
    plan = plan_zone(start, CleaningPlan(), OpenChooser(start), options)
    slots = plain(zone_after(start, plan.cover))
    limit = share_limit(options.max_users, len(HOSTS), required)
    for uuid in missing:
        known = {**before, uuid: vms[uuid]}
        snapshot = zone_of(HOSTS, known, slots, required=required, vm_gib=sizes)
        result = planned(snapshot, uuid, most_required=required, options=options)
        cover = result.cover
        after = applied(slots, result, uuid, vms[uuid])
        assert five_rules_hold(after)
        assert all(len(slot.users) <= limit for slot in after)
        assert all(
            (slot.memory_bytes or 0) >= sizes[user.vm_uuid] * GIB
            for slot in after
            for user in slot.users
        )
        short = sum(one.reason != "" for one in cover.shortfalls)
        assert (len(cover.joins) == required) == (short == 0)
        if cover.created:
            assert_nothing_could_be_joined(slots, result, uuid, vms[uuid], sizes[uuid], limit)
        if not short:
            assert_the_loop_agrees(known, sizes, required, after, options)
        before, slots = known, after


def assert_nothing_could_be_joined(  # noqa: PLR0917 - a check of one state
    slots: Sequence[FailoverSlot],
    result: Planned,
    uuid: str,
    host: str,
    gib: int,
    limit: int,
) -> None:
    """Before each new reservation, none that exists could be joined: brute force over all."""
    state = list(slots)
    user = SlotUser(vm_uuid=uuid, host=host, joined_at=1e9)
    names, fresh = result.snapshot.slots.names, {s.number: s for s in result.cover.created}
    for _, number in result.cover.joins:
        if number in fresh:
            made = fresh[number]
            for slot in state:
                fits = (slot.memory_bytes or 0) >= gib * GIB and len(slot.users) < limit
                assert not (fits and may_join(vm_at(f"{uuid}@{host}"), slot, state))
            state.append(
                FailoverSlot(
                    name=f"made{number}",
                    host=result.snapshot.hosts.names[made.host],
                    users=(user,),
                    memory_bytes=made.memory_bytes,
                )
            )
        else:
            state = [one.joined(user) if one.name == names[number] else one for one in state]


def assert_the_loop_agrees(
    vms: dict[str, str],
    sizes: dict[str, int],
    required: int,
    after: Sequence[FailoverSlot],
    options: PlanOptions,
) -> None:
    snapshot = zone_of(HOSTS, vms, after, required=required, vm_gib=sizes)
    cleaning = plan_cleaning(snapshot, options)
    plan: ZonePlan = plan_zone(snapshot, cleaning, OpenChooser(snapshot), options)
    touched = {snapshot.vms.uuids[vm] for vm, _ in plan.cover.joins} | {
        snapshot.vms.uuids[snapshot.members.vm[one.member]] for one in cleaning.removals
    }
    covered = [uuid for uuid in vms if sum(s.host_of(uuid) is not None for s in after) == required]
    assert not touched & set(covered)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        pytest.param("r1@5{v2@2,v3@3}, r2@6{v4@4}", "r2", id="fewest users"),
        pytest.param("r1@1{}, r2@6{v4@4}", "r2", id="not on its own host (C1)"),
        pytest.param("r1@5{v2@1}, r2@6{v4@4}", "r2", id="not with a VM of its host (C3)"),
        pytest.param("r1@5{v2@2}, r2@6{v3@3}, r3@1{v2@2}", "r2", id="not beside a slot here (C4)"),
        pytest.param(
            "r1@5{v2@2}, r2@6{v3@3}, r3@7{v2@2,v4@1}", "r2", id="not two sharers of a host (C5)"
        ),
    ],
)
def test_choice_of_a_reservation(text: str, chosen: str) -> None:
    slots = [replace(slot, memory_bytes=8 * GIB) for slot in slots_of(text)]
    vms = {"v1": "1", **{user.vm_uuid: user.host for slot in slots for user in slot.users}}
    snapshot = zone_of(HOSTS, vms, slots, required={**dict.fromkeys(vms, 0), "v1": 1})
    result = planned(snapshot, "v1")
    ((_, number),) = result.cover.joins
    assert result.snapshot.slots.names[number] == chosen


def test_hosts_that_are_barred_are_neither_joined_nor_used() -> None:
    slots = [replace(slot, memory_bytes=8 * GIB) for slot in slots_of("r1@2{}")]
    snapshot = zone_of(["1", "2", "3", "4"], {"v1": "1"}, slots, required=1)
    result = planned(snapshot, "v1", barred=[1, 2])
    assert [result.snapshot.hosts.names[one.host] for one in result.cover.created] == ["4"]


def test_vm_without_memory_is_never_asked_for() -> None:
    snapshot = zone_of(HOSTS, {"v1": "1"}, required=1, vm_gib=0)
    (short,) = planned(snapshot, "v1").cover.shortfalls
    assert short.reason == "no_resources"


def test_vm_that_has_what_it_needs_gets_nothing() -> None:
    slots = [replace(slot, memory_bytes=8 * GIB) for slot in slots_of("r1@2{v1@1}")]
    snapshot = zone_of(HOSTS, {"v1": "1"}, slots, required=1)
    cover = planned(snapshot, "v1").cover
    assert (cover.joins, cover.shortfalls, cover.missing_vms) == ((), (), 0)
