"""Claims of new VMs are settled in fewer statements, to the same end as any others (ADR 0029)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import Error, IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationAllocation
from core.prepared import run
from hosts.models import Host
from journal.actors import Actor
from journal.outages import sqlstate_of
from journal.statements import fetch_rows
from placement.models import (
    Allocation,
    Consumer,
    ConsumerProject,
    ConsumerUser,
    Inventory,
    ResourceClass,
    ResourceProvider,
)
from placement.services.allocations import (
    CLAIM,
    REPLACE,
    AllocationRequest,
    ConsumerWrite,
    replace_parameters,
)
from tests.examples import few
from tests.factories import make_vm
from tests.placement.claim_cloud import OWNER, SMALL, Cloud, cloud_of_claims, make_flight
from tests.placement.client import PlacementClient, uuid
from tests.placement.rows import make_provider
from tests.placement.test_engines_agree import (
    FLAVORS,
    PROJECTS,
    Room,
    as_in_a_test_case,
    make_hosts,
    placement,
    rooms,
)

__all__ = ["placement"]

pytestmark = pytest.mark.django_db

SETTLED = "SELECT placement_settled(%s::text[], %s::boolean)"
SETTLE_NEW = """
SELECT is_settled, committed_vcpus FROM capacity_settle_new(%s, %s, %s, %s, %s, %s::jsonb)
"""
LEFT_OUT = {"id", "changed_xid", "created_at", "updated_at", "since", "confirmed_at", "uuid"}

claims = st.tuples(
    st.integers(0, 2),
    st.sampled_from(sorted(FLAVORS)),
    st.sampled_from([*PROJECTS, "nobody"]),
    st.booleans(),
)


@pytest.mark.sql(
    "placement_claim", "placement_settle_new", "capacity_settle_new", "capacity_block_slots"
)
@few(12)
@given(
    world=st.lists(rooms, min_size=1, max_size=2),
    asked=st.lists(claims, min_size=1, max_size=3),
    enforces=st.booleans(),
)
def test_new_vms_are_settled_to_the_same_end(
    placement: PlacementClient,
    world: list[Room],
    asked: list[tuple[int, str, str, bool]],
    enforces: bool,
) -> None:
    """Also where some of them hold something already, or are in flight."""
    ends = []
    with as_in_a_test_case():
        hosts = make_hosts(placement, world)
        vms = [uuid() for _ in asked]
        for vm, (_, flavor, project, is_awaited) in zip(vms, asked, strict=True):
            if is_awaited:
                gib, vcpus = FLAVORS[flavor]
                make_flight(hosts[-1], vm, memory_gib=gib, vcpus=vcpus, project_id=project)
        rebuild_host_capacity()
        for write in (at_once, in_steps):
            attempt = transaction.savepoint()
            told = [
                write(vm, hosts[place % len(hosts)], flavor, project, enforces)
                for vm, (place, flavor, project, _) in zip(vms, asked, strict=True)
            ]
            ends.append((told, everything()))
            transaction.savepoint_rollback(attempt)
    assert ends[0] == ends[1]


def at_once(vm: str, host: Host, flavor: str, project: str, enforces: bool) -> object:
    return end_of(lambda: run(CLAIM, [*parameters_of(vm, host, flavor, project), [vm], enforces]))


def in_steps(vm: str, host: Host, flavor: str, project: str, enforces: bool) -> object:
    def write() -> None:
        run(REPLACE, parameters_of(vm, host, flavor, project))
        run(SETTLED, [[vm], enforces])

    return end_of(write)


def parameters_of(vm: str, host: Host, flavor: str, project: str) -> Sequence[Any]:  # Any: of SQL
    gib, vcpus = FLAVORS[flavor]
    consumer = ConsumerWrite(
        uuid=vm,
        project_id=project,
        user_id="user",
        resources={host.openstack_id: {"MEMORY_MB": gib * 1024, "VCPU": vcpus}},
    )
    request = AllocationRequest(consumers=[consumer], checks_generations=False)
    return [*replace_parameters(request, actor=Actor(name="test"), request_id="r"), None]


def end_of(work: Callable[[], object]) -> object:
    """Return how a write ended: what was refused, or nothing."""
    try:
        with transaction.atomic():
            work()
    except Error as error:
        cause: Any = error.__cause__  # Any: the driver's
        return sqlstate_of(error), cause.diag.message_detail
    return None


def everything() -> dict[str, list[dict[str, Any]]]:  # Any: columns
    """Return all that claims write, but for keys and times."""
    rows: dict[str, list[dict[str, Any]]] = {
        "held": [
            dict(row) for row in Allocation.objects.values("consumer__uuid", "provider_id", "used")
        ],
        "consumers": [dict(row) for row in Consumer.objects.values("uuid", "generation")],
    }
    for model in (HostCapacity, Reservation, ReservationAllocation, Inventory, ResourceProvider):
        rows[model.__name__] = [
            {name: value for name, value in row.items() if name not in LEFT_OUT}
            for row in model._default_manager.values()
        ]
    return {name: sorted(found, key=str) for name, found in rows.items()}


@pytest.fixture
def cloud(settings: Any) -> Cloud:
    return cloud_of_claims(settings)


def settled(vm: str, host: Host) -> tuple[bool, int | None]:
    facts = [vm, OWNER, host.pk, SMALL["MEMORY_MB"] << 20, SMALL["VCPU"], json.dumps(SMALL)]
    ((is_settled, blocked),) = fetch_rows(SETTLE_NEW, facts)
    return is_settled, blocked


@pytest.mark.sql("capacity_settle_new")
def test_who_is_known_to_the_ledger_takes_a_longer_look(cloud: Cloud) -> None:
    assert settled(uuid(), cloud.held) == (True, -2)
    assert cloud.blocked_gib() == 8
    awaited, inside = uuid(), uuid()
    make_flight(cloud.free, awaited)
    make_vm(
        host=cloud.held,
        openstack_id=inside,
        memory_gib=8,
        vcpus=2,
        project_id=OWNER,
        slot=cloud.slot,
    )
    assert settled(awaited, cloud.held) == (False, None)
    assert settled(inside, cloud.held) == (False, None)
    HostCapacity.objects.filter(host=cloud.free).delete()
    assert settled(uuid(), cloud.free) == (False, None)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM capacity_reservation WHERE kind = 'in_flight'")
        assert cursor.fetchone() == (1,)


@pytest.mark.sql("placement_claimed_of", "placement_allocated")
def test_a_vm_in_a_slot_that_holds_nothing_counts_beside_a_new_claim(cloud: Cloud) -> None:
    listed = make_vm(
        host=cloud.held,
        openstack_id=uuid(),
        memory_gib=8,
        vcpus=2,
        project_id=OWNER,
        slot=cloud.slot,
    )
    rebuild_host_capacity()
    room = HostCapacity.objects.get(host=cloud.held)
    assert room.allocated_memory_bytes >> 30 == 8
    for vm in (uuid(), listed.openstack_id):  # then it claims what it has
        held = {cloud.held.openstack_id: SMALL}
        assert cloud.client.allocate(vm, held, project_id=OWNER).status == 204
        room.refresh_from_db()
        assert (room.allocated_memory_bytes >> 30, room.committed_memory_bytes) == (16, 0)


@pytest.mark.sql("placement_allocate_new")
@pytest.mark.parametrize(
    "names", [("VCPU", "MEMORY_MB", "DISK_GB"), ("DISK_GB", "PCPU", "CUSTOM_THING", "VCPU")]
)
def test_a_new_claim_is_of_the_classes_that_it_names(
    placement: PlacementClient, names: Sequence[str]
) -> None:
    ResourceClass.objects.create(name="CUSTOM_THING")
    provider = make_provider("p", inventories=dict.fromkeys([*names, "VGPU"], 100))
    amounts, vm = {name: amount for amount, name in enumerate(names, 1)}, uuid()

    assert placement.allocate(vm, {str(provider.uuid): amounts}).status == 204

    rows = Allocation.objects.filter(consumer__uuid=vm)
    assert dict(rows.values_list("resource_class__name", "used")) == amounts
    used = Inventory.objects.filter(provider=provider, used__gt=0)
    assert dict(used.values_list("resource_class__name", "used")) == amounts


@pytest.mark.parametrize("model", [ConsumerProject, ConsumerUser])
@pytest.mark.sql("placement_triggers")
def test_names_that_consumers_point_at_stay(
    cloud: Cloud, model: type[ConsumerProject] | type[ConsumerUser]
) -> None:
    assert cloud.claim(uuid(), cloud.free) == 204
    named = model.objects.get()
    for change in (
        f"DELETE FROM {model._meta.db_table}",  # noqa: S608 - ours
        f"UPDATE {model._meta.db_table} SET external_id = 'other'",  # noqa: S608 - ours
    ):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            run(change)
    assert list(model.objects.all()) == [named]
