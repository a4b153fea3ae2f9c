"""The Celery worker is killed while it looks at slots: the next look finishes what it began."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import transaction
from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import AllocationState, HostCapacity, Reservation, ReservationAllocation
from commitments.models import SlotCheck
from commitments.services.verification import CHUNK_SLOTS
from commitments.tasks import VERIFY_SLOTS
from config.launcher.processes import wait_until
from hosts.models import Instance
from tests.e2e.processes import Worker, someone_waits_for_a_lock, wait_until_database_is_ours
from tests.factories import make_commitment, make_group, make_host, make_slot
from tests.ledger import assert_rooms_add_up

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

SLOTS = 2 * CHUNK_SLOTS + 1
PATIENCE_SECONDS = 60.0


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker, not started yet."""
    process = Worker(directory=tmp_path)
    yield process
    process.forget()


@pytest.fixture
def arrived() -> None:
    """Many slots, each with a VM that came and was not seen yet."""
    make_group("hana_1", flavors=[("small", 1024, 1)])
    host = make_host("h1", memory_gib=4 * SLOTS, vcpus=4 * SLOTS)
    row = make_commitment("aaaaaaaa-000000", amount_gib=SLOTS)
    like = make_slot(row, host, index=0, memory_gib=1, vcpus=1)
    copied = [
        *("kind", "commitment", "zone", "flavor_group_name", "resource_name", "project_id"),
        *("memory_bytes", "vcpus", "target_host", "confirmed_host", "is_ready", "ready_reason"),
    ]
    slots = Reservation.objects.bulk_create(
        Reservation(slot_index=index, **{name: getattr(like, name) for name in copied})
        for index in range(1, SLOTS)
    )
    long_ago = timezone.now() - timedelta(hours=1)
    vms = Instance.objects.bulk_create(
        Instance(
            openstack_id=f"vm-{index:06d}",
            project_id=row.project_id,
            flavor_name="small",
            memory_bytes=like.memory_bytes,
            vcpus=1,
            host=host,
            zone=host.zone,
            status="ACTIVE",
            nova_created_at=long_ago,
        )
        for index in range(SLOTS)
    )
    ReservationAllocation.objects.bulk_create(
        ReservationAllocation(
            reservation=slot,
            vm_uuid=vm.openstack_id,
            state=AllocationState.EXPECTED,
            memory_bytes=vm.memory_bytes,
            vcpus=vm.vcpus,
            since=long_ago,
        )
        for slot, vm in zip([like, *slots], vms, strict=True)
    )
    rebuild_host_capacity()


def look(worker: Worker) -> None:
    worker.send(VERIFY_SLOTS)


def confirmed() -> int:
    return ReservationAllocation.objects.filter(state=AllocationState.CONFIRMED).count()


@pytest.mark.usefixtures("arrived")
def test_worker_killed_while_looking_leaves_whole_chunks_and_the_next_look_finishes(
    worker: Worker,
) -> None:
    worker.start()
    with transaction.atomic():
        assert len(HostCapacity.objects.select_for_update())
        look(worker)
        assert wait_until(someone_waits_for_a_lock, PATIENCE_SECONDS), worker.log()
        worker.kill()
    wait_until_database_is_ours()
    assert confirmed() == 0
    assert not SlotCheck.objects.exists()

    worker.start()
    look(worker)
    assert wait_until(lambda: confirmed() > 0, PATIENCE_SECONDS), worker.log()
    worker.kill()
    wait_until_database_is_ours()
    assert confirmed() % CHUNK_SLOTS in {0, SLOTS % CHUNK_SLOTS}
    assert_rooms_add_up()

    worker.start()
    look(worker)
    assert wait_until(lambda: confirmed() == SLOTS, PATIENCE_SECONDS), worker.log()
    assert wait_until(SlotCheck.objects.exists, PATIENCE_SECONDS), worker.log()
    assert worker.stop() == os.EX_OK
    assert_rooms_add_up()
