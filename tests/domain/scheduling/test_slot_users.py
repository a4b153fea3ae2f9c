"""VMs as numbers: lists of sixteen bytes a VM, and the slots that list each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling import slot_users
from scheduling.reservations import ReservationIndex
from scheduling.table_rows import ReservationRow
from scheduling.vm_keys import VMUuids, instance_key, packed_uuids, uuid_of

uuids = st.integers(0, 9).map(uuid_of) | st.sampled_from(["vm", uuid_of(255).upper()])
lists = st.lists(uuids, max_size=4, unique=True)
regions = st.dictionaries(st.integers(1, 8), lists, max_size=6)


def slots_of(region: dict[int, list[str]]) -> list[ReservationRow]:
    return [
        ReservationRow(reservation_id=key, kind="failover", vm_uuids=packed_uuids(sorted(users)))
        for key, users in region.items()
    ]


def by_vm(region: dict[int, list[str]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key in sorted(region):
        for vm_uuid in region[key]:
            found.setdefault(vm_uuid, []).append(key)
    return found


@pytest.mark.parametrize("compact_above", [0, 1024])
@given(before=regions, steps=st.lists(st.tuples(regions, st.sets(st.integers(1, 8))), max_size=3))
def test_slots_of_vms_equal_a_plain_search(
    compact_above: int,
    before: dict[int, list[str]],
    steps: list[tuple[dict[int, list[str]], set[int]]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_users, "_COMPACT_ABOVE", compact_above)
        region = dict(before)
        index = ReservationIndex.from_rows(slots_of(region))
        for changed, removed in steps:
            gone = removed - changed.keys()
            index = index.replace_rows(slots_of(changed), removed=gone)
            region = {key: users for key, users in region.items() if key not in gone} | changed
    users = index.failover_of_vm
    expected = by_vm(region)
    found = {vm: [slot.reservation_id for slot in slots] for vm, slots in users.items()}
    assert found == expected
    assert len(users) == len(expected)
    assert ("nobody" in users, users.get("nobody", ())) == (False, ())
    with pytest.raises(KeyError):
        users["nobody"]
    for vm, slots in expected.items():
        assert [slot.reservation_id for slot in users.of_key(instance_key(vm))] == slots
        assert all(
            slot.vm_uuids == tuple(sorted(region[slot.reservation_id])) for slot in users[vm]
        )


@given(lists)
def test_packed_uuids_are_as_the_texts(texts: Sequence[str]) -> None:
    packed = packed_uuids(texts)
    are_usual = bool(texts) and not {"vm", uuid_of(255).upper()} & set(texts)
    assert isinstance(packed, VMUuids) == are_usual
    assert packed == tuple(texts)
    assert tuple(texts) == packed
    assert (len(packed), list(packed), repr(packed)) == (
        len(texts),
        list(texts),
        repr(tuple(texts)),
    )
    assert [packed[place] for place in range(len(texts))] == list(texts)
    assert packed[1:3] == tuple(texts[1:3])
    assert packed == packed_uuids(texts)
    assert hash(packed) == hash(packed_uuids(texts))
    assert (packed == packed_uuids([*texts, "other"])) is False
    assert all(text in packed for text in texts)
    with pytest.raises(IndexError):
        packed[len(texts)]
