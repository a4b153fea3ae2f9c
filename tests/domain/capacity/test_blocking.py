from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.ledger.blocking import blocked_resources
from scheduling.resources import GIB, ZERO, ResourceVector
from tests.blocked_views import AllocationView, ReservationView, unused_reservation_capacity


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
        pytest.param(reservation(vector(480), vm(600, confirmed=True)), ZERO, id="resized"),
        pytest.param(reservation(vector(480), vm(240)), vector(480), id="expected only"),
        pytest.param(reservation(vector(480), vm(600)), vector(600), id="expected, larger"),
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


VECTORS = st.builds(ResourceVector, memory_bytes=st.integers(0, 20), vcpus=st.integers(0, 20))


@given(VECTORS, VECTORS, VECTORS)
def test_a_block_is_never_negative_and_covers_the_expected_vms(
    slot: ResourceVector, confirmed: ResourceVector, expected: ResourceVector
) -> None:
    block = blocked_resources(slot=slot, confirmed=confirmed, expected=expected)

    assert expected.fits_into(block)
    assert slot.fits_into(block + confirmed)
    assert ZERO.fits_into(block)
