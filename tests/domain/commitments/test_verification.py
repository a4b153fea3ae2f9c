from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.verification import (
    ListedVM,
    Patience,
    Sighting,
    SlotVMs,
    VMFate,
    verify_slot,
)
from scheduling.resources import GIB, ResourceVector

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOST_1, HOST_NEW = 1, 2
SIZE = ResourceVector(memory_bytes=240 * GIB, vcpus=20)
GRACE = timedelta(minutes=15)
AT_ONCE = Patience(grace=GRACE, settle=timedelta(0))
PATIENT = Patience(grace=GRACE, settle=timedelta(minutes=2))


def vm(uuid: str, minutes: int, *, is_confirmed: bool = False, **fields: object) -> ListedVM:
    return ListedVM(
        vm_uuid=uuid,
        is_confirmed=is_confirmed,
        since=NOW - timedelta(minutes=minutes),
        resources=SIZE,
        **fields,  # type: ignore[arg-type]  # the rest of the dataclass
    )


def on(host_id: int | None, *, is_moving: bool = False) -> Sighting:
    return Sighting(host_id=host_id, resources=SIZE, is_moving=is_moving)


def fates(
    vms: list[ListedVM],
    sightings: dict[str, Sighting],
    *,
    patience: Patience = AT_ONCE,
    has_room: bool = True,
    group: str = "hana_1",
) -> tuple[list[VMFate], bool, int | None]:
    verdict = verify_slot(
        SlotVMs(slot_id=9, host_id=HOST_1, vms=tuple(vms), group=group),
        sightings,
        now=NOW,
        patience=patience,
        can_follow=lambda _: has_room,
    )
    return [one.fate for one in verdict.vms], verdict.is_in_grace, verdict.follows_to


NEW, OLD = vm("new", 5), vm("old", 30)
SEEN = vm("vm", 2, is_confirmed=True)


@pytest.mark.parametrize(
    ("vms", "sightings", "expected", "is_in_grace"),
    [
        pytest.param([OLD], {"old": on(HOST_1)}, [VMFate.CONFIRMED], False, id="30 min, on host-1"),
        pytest.param([OLD], {}, [VMFate.NEVER_ARRIVED], False, id="30 min, nowhere"),
        pytest.param([NEW], {}, [VMFate.KEPT], True, id="5 min, nowhere"),
        pytest.param([vm("vm", 14)], {}, [VMFate.KEPT], True, id="14 min, nowhere"),
        pytest.param([vm("vm", 15)], {}, [VMFate.NEVER_ARRIVED], False, id="15 min: grace is over"),
        pytest.param(
            [NEW, OLD],
            {"old": on(HOST_1)},
            [VMFate.KEPT, VMFate.CONFIRMED],
            True,
            id="5 min new, 30 min old on host-1",
        ),
        pytest.param([SEEN], {}, [VMFate.GONE], False, id="2 min, confirmed, nowhere: at once"),
        pytest.param(
            [vm("a", 30, is_confirmed=True), vm("b", 30, is_confirmed=True)],
            {"a": on(HOST_1), "b": on(HOST_NEW)},
            [VMFate.KEPT, VMFate.MOVED_AWAY],
            False,
            id="two confirmed, one moved",
        ),
        pytest.param(
            [vm("vm", 30, is_confirmed=True)],
            {"vm": on(None)},
            [VMFate.GONE],
            False,
            id="confirmed, on no host",
        ),
        pytest.param(
            [NEW], {"new": on(HOST_1)}, [VMFate.CONFIRMED], False, id="5 min, there: not waited for"
        ),
        pytest.param(
            [vm("vm", 60, is_in_flight=True)], {}, [VMFate.KEPT], True, id="still in flight"
        ),
        pytest.param(
            [SEEN],
            {"vm": Sighting(host_id=HOST_1, resources=SIZE + SIZE)},
            [VMFate.CONFIRMED],
            False,
            id="resized in place",
        ),
        pytest.param(
            [OLD], {"old": on(HOST_NEW)}, [VMFate.NEVER_ARRIVED], False, id="arrived elsewhere"
        ),
    ],
)
def test_vms_of_a_slot_are_judged_as_the_table_says(
    vms: list[ListedVM],
    sightings: dict[str, Sighting],
    expected: list[VMFate],
    is_in_grace: bool,
) -> None:
    assert fates(vms, sightings) == (expected, is_in_grace, None)


@pytest.mark.parametrize(
    ("has_room", "fate", "follows_to"),
    [
        pytest.param(True, VMFate.FOLLOWED, HOST_NEW, id="host-new has room: slot moves"),
        pytest.param(False, VMFate.MOVED_AWAY, None, id="host-new is blocked: slot stays"),
    ],
)
def test_slot_follows_its_only_vm_where_there_is_room(
    has_room: bool, fate: VMFate, follows_to: int | None
) -> None:
    assert fates([SEEN], {"vm": on(HOST_NEW)}, has_room=has_room) == ([fate], False, follows_to)


@pytest.mark.parametrize(
    ("missing_minutes", "fate"),
    [
        pytest.param(None, VMFate.MISSING, id="just lost: noted"),
        pytest.param(1, VMFate.KEPT, id="a minute ago: waited for"),
        pytest.param(2, VMFate.GONE, id="two minutes ago: gone"),
    ],
)
def test_seen_vm_that_is_listed_nowhere_gets_time_to_settle(
    missing_minutes: int | None, fate: VMFate
) -> None:
    if missing_minutes is None:
        lost = SEEN
    else:
        lost = vm("vm", 30, missing_since=NOW - timedelta(minutes=missing_minutes))
    assert fates([lost], {}, patience=PATIENT)[0] == [fate]


def test_vm_that_nova_is_moving_stays() -> None:
    assert fates([SEEN], {"vm": on(None, is_moving=True)})[0] == [VMFate.KEPT]


def test_vm_that_comes_back_is_confirmed_again() -> None:
    lost = vm("vm", 30, missing_since=NOW - timedelta(minutes=1))
    assert fates([lost], {"vm": on(HOST_1)}, patience=PATIENT)[0] == [VMFate.CONFIRMED]


@given(
    minutes=st.lists(st.integers(min_value=0, max_value=60), min_size=1, max_size=4),
    places=st.lists(st.sampled_from([None, HOST_1, HOST_NEW]), min_size=4, max_size=4),
    seen=st.lists(st.sampled_from(["never", "now", "lost"]), min_size=4, max_size=4),
    settle=st.sampled_from([0, 2]),
)
def test_a_list_that_is_not_believed_takes_nothing_out_of_slots(
    minutes: list[int], places: list[int | None], seen: list[str], settle: int
) -> None:
    vms = [
        vm(
            f"vm-{number}",
            age,
            is_confirmed=seen[number] == "now",
            missing_since=NOW - timedelta(minutes=age) if seen[number] == "lost" else None,
        )
        for number, age in enumerate(minutes)
    ]
    absent = {one.vm_uuid for number, one in enumerate(vms) if places[number] is None}
    sightings = {
        one.vm_uuid: on(places[number])
        for number, one in enumerate(vms)
        if one.vm_uuid not in absent
    }
    wary = Patience(grace=GRACE, settle=timedelta(minutes=settle), may_drop=False)
    found, _, _ = fates(vms, sightings, patience=wary, has_room=False)
    left = {one.vm_uuid for one, fate in zip(vms, found, strict=True) if fate.leaves}
    assert not left & absent


def of(group: str | None, host_id: int | None = HOST_1, *, is_moving: bool = False) -> Sighting:
    return Sighting(host_id=host_id, resources=SIZE, is_moving=is_moving, group=group)


@pytest.mark.parametrize(
    ("vms", "sighting", "fate"),
    [
        pytest.param([SEEN], of("hana_1"), VMFate.KEPT, id="of the slot's group"),
        pytest.param([SEEN], of("gp"), VMFate.OTHER_GROUP, id="resized into another group"),
        pytest.param([SEEN], of(""), VMFate.OTHER_GROUP, id="resized into a flavor of no group"),
        pytest.param([SEEN], of(None), VMFate.KEPT, id="a flavor that is not known"),
        pytest.param([SEEN], of("gp", is_moving=True), VMFate.KEPT, id="Nova works on it"),
        pytest.param(
            [vm("vm", 30, missing_since=NOW)], of("gp"), VMFate.OTHER_GROUP, id="back from nowhere"
        ),
        pytest.param([vm("vm", 5)], of("gp"), VMFate.KEPT, id="awaited, its resize is not done"),
        pytest.param(
            [vm("vm", 30)], of("gp"), VMFate.NEVER_ARRIVED, id="awaited, its resize never came"
        ),
        pytest.param([vm("vm", 30)], of("hana_1"), VMFate.CONFIRMED, id="awaited, its resize came"),
        pytest.param([SEEN], of("gp", HOST_NEW), VMFate.MOVED_AWAY, id="elsewhere: not followed"),
        pytest.param([SEEN], of("hana_1", HOST_NEW), VMFate.FOLLOWED, id="elsewhere: followed"),
    ],
)
def test_a_slot_is_for_vms_of_its_flavor_group(
    vms: list[ListedVM], sighting: Sighting, fate: VMFate
) -> None:
    assert fates(vms, {"vm": sighting})[0] == [fate]


def test_nothing_leaves_while_nobody_knows_the_slots_group() -> None:
    assert fates([SEEN], {"vm": of("gp")}, group="")[0] == [VMFate.KEPT]


def test_a_list_that_is_not_believed_still_says_of_which_group_a_vm_is() -> None:
    doubtful = Patience(grace=GRACE, settle=timedelta(0), may_drop=False)
    assert fates([SEEN], {"vm": of("gp")}, patience=doubtful)[0] == [VMFate.OTHER_GROUP]
    assert fates([OLD], {"old": of("gp")}, patience=doubtful)[0] == [VMFate.HELD_BACK]
