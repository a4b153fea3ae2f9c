from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.ledger.blocking import blocked_resources
from capacity.ledger.sharing import InsideVM, cut_slot, divide_vms, share_vm
from scheduling.resources import ZERO, ResourceVector


def size(memory: int, vcpus: int = 0) -> ResourceVector:
    return ResourceVector(memory_bytes=memory, vcpus=vcpus)


sizes = st.builds(size, st.integers(0, 20), st.integers(0, 9))
vms = st.lists(
    st.builds(InsideVM, resources=sizes, is_confirmed=st.booleans(), is_held=st.booleans()),
    max_size=5,
)
cuts = st.lists(st.integers(1, 9), min_size=1, max_size=4)


def block(
    slot: ResourceVector, inside: list[InsideVM], *, is_moving: bool, sees_flights: bool
) -> ResourceVector:
    """Return what a slot blocks, in the words of commitments, 10.1."""
    confirmed = sum((vm.resources for vm in inside if vm.is_confirmed and not is_moving), ZERO)
    expected = sum(
        (
            vm.resources
            for vm in inside
            if not vm.is_confirmed and not (vm.is_held and sees_flights)
        ),
        ZERO,
    )
    return blocked_resources(slot=slot, confirmed=confirmed, expected=expected)


@given(memories=cuts, vcpus=st.integers(0, 12), inside=vms, is_moving=st.booleans())
def test_pieces_block_what_the_slot_blocked(
    memories: list[int], vcpus: int, inside: list[InsideVM], *, is_moving: bool
) -> None:
    slot = size(sum(memories), vcpus)
    pieces = cut_slot(slot, memories)
    assert sum(pieces, ZERO) == slot
    parts = divide_vms(inside, pieces, is_moving=is_moving)
    for vm, its_parts in zip(inside, parts, strict=True):
        assert sum(its_parts, ZERO) == vm.resources
    for sees_flights in (True, False):  # now, and once the flights have ended
        after = ZERO
        for number, piece in enumerate(pieces):
            in_piece = [
                InsideVM(resources=p[number], is_confirmed=vm.is_confirmed, is_held=vm.is_held)
                for vm, p in zip(inside, parts, strict=True)
            ]
            after += block(piece, in_piece, is_moving=is_moving, sees_flights=sees_flights)
        assert after == block(slot, inside, is_moving=is_moving, sees_flights=sees_flights)


@given(st.integers(1, 30), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_slots_that_share_a_vm_block_as_little_as_can_be(vm: int, rooms: list[int]) -> None:
    parts = [part.memory_bytes for part in share_vm(size(vm), [size(room) for room in rooms])]
    assert sum(parts) == vm
    left = sum(max(0, room - part) for room, part in zip(rooms, parts, strict=True))
    tried = product(range(vm + 1), repeat=len(rooms)) if vm <= 12 and len(rooms) <= 3 else ()
    best = min(
        (
            sum(max(0, room - part) for room, part in zip(rooms, split, strict=True))
            for split in tried
            if sum(split) == vm
        ),
        default=max(0, sum(rooms) - vm),
    )
    assert left == best


@pytest.mark.parametrize(
    ("vm", "rooms", "parts"),
    [
        pytest.param(size(16, 4), [size(64, 16)], [size(16, 4)], id="one slot is enough"),
        pytest.param(
            size(64, 16),
            [size(40, 10), size(24, 6)],
            [size(40, 10), size(24, 6)],
            id="two pieces of a slot",
        ),
        pytest.param(
            size(16, 32),
            [size(40, 10), size(24, 6)],
            [size(16, 32), ZERO],
            id="CPU alone needs no other slot",
        ),
        pytest.param(
            size(9, 3), [size(4, 1), size(4, 1)], [size(4, 1), size(5, 2)], id="overfilled"
        ),
    ],
)
def test_parts_of_a_vm(
    vm: ResourceVector, rooms: list[ResourceVector], parts: list[ResourceVector]
) -> None:
    assert list(share_vm(vm, rooms)) == parts


def test_vcpus_of_pieces_follow_their_memory() -> None:
    assert cut_slot(size(8, 16), [3, 5]) == (size(3, 6), size(5, 10))
    assert cut_slot(size(8, 1), [3, 5]) == (size(3, 0), size(5, 1))
