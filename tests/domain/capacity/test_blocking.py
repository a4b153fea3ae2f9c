from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.domain.blocking import (
    AllocationView,
    HostView,
    ReservationView,
    blocked_columns,
    blocked_resources,
    host_free_capacity,
    host_has_capacity_for,
    unused_reservation_capacity,
)
from scheduling.resources import GIB, ZERO, ResourceVector


def vector(gib: int, vcpus: int = 0) -> ResourceVector:
    return ResourceVector(memory_bytes=gib * GIB, vcpus=vcpus)


def vm(gib: int, vcpus: int = 0, *, confirmed: bool = False, uuid: str = "vm") -> AllocationView:
    return AllocationView(vm_uuid=uuid, resources=vector(gib, vcpus), is_confirmed=confirmed)


def reservation(
    slot: ResourceVector,
    *vms: AllocationView,
    committed: bool = True,
    target: str | None = "h",
    host: str | None = "h",
    key: int = 1,
) -> ReservationView:
    return ReservationView(
        reservation_id=key,
        slot=slot,
        is_committed=committed,
        target_host=target,
        host=host,
        allocations=vms,
    )


@pytest.mark.parametrize(
    ("view", "block"),
    [
        pytest.param(reservation(vector(480), committed=False), vector(480), id="failover"),
        pytest.param(
            reservation(vector(8), vm(8, confirmed=True), committed=False),
            vector(8),
            id="failover with VM",
        ),
        pytest.param(reservation(vector(480)), vector(480), id="no allocations"),
        pytest.param(
            reservation(vector(480), vm(240, confirmed=True)), vector(240), id="one confirmed"
        ),
        pytest.param(
            reservation(vector(480), vm(240, confirmed=True), vm(240, confirmed=True)),
            ZERO,
            id="two confirmed",
        ),
        pytest.param(reservation(vector(480), vm(240)), vector(480), id="expected only"),
        pytest.param(
            reservation(vector(480), vm(240, confirmed=True), target="other"),
            vector(480),
            id="moving",
        ),
        pytest.param(
            reservation(vector(480), vm(500), target="other"), vector(500), id="moving, large VM"
        ),
        pytest.param(
            reservation(vector(8, 4), vm(10, 6, confirmed=True)), ZERO, id="grown VM is clamped"
        ),
        pytest.param(
            reservation(vector(16, 8), vm(8, 4, confirmed=True), vm(12, 6)),
            vector(12, 6),
            id="expected exceeds remaining",
        ),
        pytest.param(reservation(vector(0, 4)), vector(0, 4), id="no memory entry"),
        pytest.param(reservation(vector(8)), vector(8), id="8 empty"),
        pytest.param(reservation(vector(8), vm(8, confirmed=True)), ZERO, id="8 full"),
        pytest.param(
            reservation(vector(8), vm(8, confirmed=True), target="other"),
            vector(8),
            id="8 full, target is not the host",
        ),
        pytest.param(
            reservation(vector(8), vm(8, confirmed=True), committed=False, target="other"),
            vector(8),
            id="failover 8 full, any host",
        ),
        pytest.param(reservation(vector(8), vm(4, confirmed=True)), vector(4), id="8 half"),
        pytest.param(reservation(vector(8), vm(12, confirmed=True)), ZERO, id="8 grown"),
        pytest.param(
            reservation(vector(8), vm(4, confirmed=True), vm(6)), vector(6), id="8, 4 and 6"
        ),
    ],
)
def test_a_reservation_blocks_what_the_table_says(
    view: ReservationView, block: ResourceVector
) -> None:
    assert unused_reservation_capacity(view) == block


def test_ignoring_allocations_blocks_the_whole_slot() -> None:
    view = reservation(vector(480), vm(240, confirmed=True))

    assert unused_reservation_capacity(view, ignore_allocations=True) == vector(480)


@pytest.mark.parametrize(
    ("view", "block"),
    [
        pytest.param(reservation(vector(8), vm(4, confirmed=True), vm(6)), vector(4), id="placed"),
        pytest.param(reservation(vector(8), vm(12), target="other"), vector(8), id="moving"),
        pytest.param(
            reservation(vector(8), vm(12), vm(9, uuid="second")), vector(9), id="only one in flight"
        ),
    ],
)
def test_an_expected_vm_held_in_flight_is_not_blocked_twice(
    view: ReservationView, block: ResourceVector
) -> None:
    assert unused_reservation_capacity(view, in_flight_vm_uuids={"vm"}) == block


BIG = HostView(name="h", effective=vector(1024, 256))


@pytest.mark.parametrize(
    ("host", "reservations", "free"),
    [
        pytest.param(BIG, [], vector(1024, 256), id="nothing"),
        pytest.param(
            HostView(name="h", effective=vector(1024, 256), allocation=vector(512, 128)),
            [],
            vector(512, 128),
            id="allocation",
        ),
        pytest.param(BIG, [reservation(vector(512, 128))], vector(512, 128), id="slot"),
        pytest.param(
            HostView(name="h", effective=vector(1024, 256), allocation=vector(256, 64)),
            [reservation(vector(512, 128))],
            vector(256, 64),
            id="allocation and slot",
        ),
        pytest.param(
            HostView(name="h", effective=vector(1024, 256), allocation=vector(256)),
            [reservation(vector(512), vm(256, confirmed=True))],
            vector(512, 256),
            id="confirmed VM in slot",
        ),
        pytest.param(
            BIG,
            [reservation(vector(512, 128), target="x", host="x")],
            vector(1024, 256),
            id="slot on another host",
        ),
        pytest.param(
            HostView(name="h", effective=vector(4096, 256)),
            [reservation(vector(1024, 128), key=key) for key in range(5)],
            vector(-1024, -384),
            id="over-subscribed",
        ),
        pytest.param(HostView(name="h", capacity=vector(512)), [], vector(512), id="only capacity"),
        pytest.param(HostView(name="h"), [], None, id="no data"),
        pytest.param(
            BIG, [reservation(vector(512, 128), target=None)], vector(1024, 256), id="evicted"
        ),
        pytest.param(
            BIG, [reservation(vector(512, 128), target="x")], vector(512, 128), id="leaving"
        ),
        pytest.param(
            BIG, [reservation(vector(512, 128), host="x")], vector(512, 128), id="arriving"
        ),
    ],
)
def test_free_capacity_of_a_host_follows_the_table(
    host: HostView, reservations: list[ReservationView], free: ResourceVector | None
) -> None:
    assert host_free_capacity(host, reservations) == free


SLOT = reservation(vector(480, 40), target=None, host=None, key=99)


def host(gib: int, vcpus: int, allocated_gib: int = 0) -> HostView:
    return HostView(name="h", effective=vector(gib, vcpus), allocation=vector(allocated_gib))


@pytest.mark.parametrize(
    ("given_host", "reservations", "fits"),
    [
        pytest.param(host(960, 80), [], True, id="empty"),
        pytest.param(host(480, 40), [reservation(vector(480, 40))], False, id="full"),
        pytest.param(host(960, 80), [reservation(vector(480, 40))], True, id="half full"),
        pytest.param(
            host(960, 80),
            [reservation(vector(240, 20), key=1), reservation(vector(240, 20), key=2)],
            True,
            id="boundary",
        ),
        pytest.param(host(960, 60), [reservation(vector(480, 40))], False, id="CPU"),
        pytest.param(host(480, 40), [reservation(vector(480, 40), key=99)], True, id="itself"),
        pytest.param(
            host(480, 40),
            [reservation(vector(480, 40), target="x", host="x")],
            True,
            id="unrelated host",
        ),
        pytest.param(host(480, 40, 100), [], False, id="allocation"),
        pytest.param(
            host(480, 40), [reservation(vector(480, 40), target=None)], False, id="status host only"
        ),
        pytest.param(HostView(name="h"), [], False, id="no data"),
    ],
)
def test_a_slot_can_move_where_the_table_says(
    given_host: HostView, reservations: list[ReservationView], fits: bool
) -> None:
    assert host_has_capacity_for(SLOT, given_host, reservations) == fits


VECTORS = st.builds(ResourceVector, memory_bytes=st.integers(0, 20), vcpus=st.integers(0, 20))
RESERVATIONS = st.builds(
    ReservationView,
    reservation_id=st.just(1),
    slot=VECTORS,
    is_committed=st.booleans(),
    target_host=st.sampled_from(["a", "b"]),
    host=st.sampled_from(["a", "b"]),
    allocations=st.lists(
        st.builds(
            AllocationView,
            vm_uuid=st.sampled_from("xyz"),
            resources=VECTORS,
            is_confirmed=st.booleans(),
        ),
        max_size=4,
    ).map(tuple),
)


@given(st.lists(RESERVATIONS, max_size=6), st.sets(st.sampled_from("xyz")), st.booleans())
def test_columns_block_what_single_reservations_block(
    reservations: list[ReservationView], in_flight: set[str], ignore: bool
) -> None:
    def column(resource: str, *, confirmed: bool) -> np.ndarray:
        return np.array(
            [
                sum(
                    getattr(one.resources, resource)
                    for one in view.allocations
                    if one.is_confirmed == confirmed
                    and (one.is_confirmed or one.vm_uuid not in in_flight)
                )
                for view in reservations
            ],
            dtype=np.int64,
        )

    for resource in ("memory_bytes", "vcpus"):
        blocked = blocked_columns(
            slot=np.array([getattr(view.slot, resource) for view in reservations], dtype=np.int64),
            confirmed=column(resource, confirmed=True),
            expected=column(resource, confirmed=False),
            counts_vms=np.array([v.is_committed and not ignore for v in reservations], dtype=bool),
            is_moving=np.array([view.is_moving for view in reservations], dtype=bool),
        )
        assert blocked.tolist() == [
            getattr(
                unused_reservation_capacity(
                    view, in_flight_vm_uuids=in_flight, ignore_allocations=ignore
                ),
                resource,
            )
            for view in reservations
        ]


@given(VECTORS, VECTORS, VECTORS)
def test_a_block_is_never_negative_and_covers_the_expected_vms(
    slot: ResourceVector, confirmed: ResourceVector, expected: ResourceVector
) -> None:
    block = blocked_resources(slot=slot, confirmed=confirmed, expected=expected)

    assert expected.fits_into(block)
    assert slot.fits_into(block + confirmed)
    assert ZERO.fits_into(block)
