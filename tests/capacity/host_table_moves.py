"""Random writes to everything the host table shows, on any connection."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from django.apps import apps
from django.db import DatabaseError, connection
from django.db.models import Model, QuerySet

from capacity.models import (
    AllocationState,
    HostCapacity,
    Reservation,
    ReservationAllocation,
    ReservationKind,
)
from commitments.models import Commitment
from hosts.models import Aggregate, Host, HostState, HostStatus, Instance, Maintenance
from journal.errors import HeadroomError
from scheduling.resources import GIB

ZONES = ("az-a", "az-b", "")
NAMES = tuple(f"host-{number}" for number in range(8))
VMS = tuple(f"vm-{number}" for number in range(4))
AGGREGATES = tuple(f"aggregate-{number}" for number in range(3))
PROJECTS = ("alpha", "beta")
NOW = datetime(2026, 1, 1, tzinfo=UTC)

_Row = TypeVar("_Row", bound=Model)
Move = Callable[[int], None]


def _commit() -> None:
    connection.commit()


def _roll_back() -> None:
    connection.rollback()


def _close() -> None:
    connection.close()


class Writer:
    """A connection in a thread of its own, with its transactions in our hands.

    ``connection`` is another one in each thread, so its methods are looked up there.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._run(self._open)

    def write(self, move: Move, number: int) -> None:
        """Make a move; where it is refused the whole transaction is lost."""
        self._run(lambda: self._attempt(lambda: move(number)))

    def commit(self) -> None:
        self._run(lambda: self._attempt(_commit))

    def roll_back(self) -> None:
        self._run(_roll_back)

    def close(self) -> None:
        self._run(_close)
        self._thread.shutdown()

    def _run(self, work: Callable[[], None]) -> None:
        self._thread.submit(work).result()

    @staticmethod
    def _open() -> None:
        connection.set_autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '20ms'")
        connection.commit()

    @staticmethod
    def _attempt(work: Callable[[], None]) -> None:
        try:
            work()
        except (DatabaseError, HeadroomError):
            connection.rollback()


def empty_tables() -> None:
    """Start anew in the middle of a test."""
    tables = [
        model._meta.db_table
        for label in ("journal", "hosts", "capacity", "commitments")
        for model in apps.get_app_config(label).get_models()
    ]
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables)} CASCADE")


def pick(rows: QuerySet[_Row], number: int) -> _Row | None:
    found = list(rows.order_by("pk"))
    return found[number % len(found)] if found else None


def one_of(words: tuple[Any, ...], number: int) -> Any:
    return words[number % len(words)]


def add_host(number: int) -> None:
    host = Host.objects.create(
        name=one_of(NAMES, number),
        openstack_id=str(number),
        zone=one_of(ZONES, number // 8),
        hypervisor_type="QEMU",
        state=HostState.UP,
        status=HostStatus.ENABLED,
        effective_memory_bytes=number * GIB,
    )
    HostCapacity.objects.create(
        host=host, zone=host.zone, effective_memory_bytes=number * GIB, effective_vcpus=number
    )


def change_host(number: int) -> None:
    host = pick(Host.objects.all(), number)
    if host is None:
        return
    kind, number = divmod(number // 8, 11)[::-1]
    changes: tuple[Mapping[str, object], ...] = (
        {"status": one_of(tuple(HostStatus), number)},
        {"state": one_of(tuple(HostState), number)},
        {"zone": one_of(ZONES, number)},
        {"traits": [f"T{number % 70}", "T1"]},
        {"custom_traits": [f"T{number % 70}"]},
        {"allowed_projects": [one_of(PROJECTS, number)]},
        {"conditions": {"Ready": one_of(("True", "False", "Unknown"), number)}},
        {"maintenance": one_of(tuple(Maintenance), number)},
        {"building_block": f"bb-{number % 3}", "cpu_arch": "x86_64"},
        {"aggregate_uuids": [one_of(AGGREGATES, number)]},
        {"domain_capabilities": {"features": [f"f{number % 5}"], "devices": ["video"]}},
    )
    Host.objects.filter(pk=host.pk).update(**changes[kind])


def rename_host(number: int) -> None:
    host = pick(Host.objects.all(), number)
    if host is not None:
        name = one_of(NAMES, number // 8)
        Host.objects.filter(pk=host.pk).update(name=name)


def swap_names(number: int) -> None:
    host = pick(Host.objects.all(), number)
    other = pick(Host.objects.all(), number // 8)
    if host is not None and other is not None:
        for row, name in ((host, "-"), (other, host.name), (host, other.name)):
            Host.objects.filter(pk=row.pk).update(name=name)


def delete_host(number: int) -> None:
    host = pick(Host.objects.filter(instances=None, targeted_reservations=None), number)
    if host is not None:
        host.delete()


def change_room(number: int) -> None:
    room = pick(HostCapacity.objects.all(), number)
    if room is not None:
        HostCapacity.objects.filter(pk=room.pk).update(
            allocated_memory_bytes=number, committed_vcpus=number % 7, failover_vcpus=number % 5
        )


def add_vm(number: int) -> None:
    Instance.objects.create(
        openstack_id=one_of(VMS, number),
        project_id=one_of(PROJECTS, number),
        flavor_name="small",
        vcpus=1,
        memory_bytes=GIB,
        status="ACTIVE",
        host=pick(Host.objects.all(), number // 8),
    )


def move_vm(number: int) -> None:
    vm = pick(Instance.objects.all(), number)
    if vm is not None:
        host = None if number % 5 == 0 else pick(Host.objects.all(), number // 8)
        Instance.objects.filter(pk=vm.pk).update(host=host)


def touch_vm(number: int) -> None:
    vm = pick(Instance.objects.all(), number)
    if vm is not None:
        Instance.objects.filter(pk=vm.pk).update(status=f"S{number % 3}")


def delete_vm(number: int) -> None:
    vm = pick(Instance.objects.all(), number)
    if vm is not None:
        vm.delete()


def add_aggregate(number: int) -> None:
    Aggregate.objects.create(
        uuid=one_of(AGGREGATES, number),
        name=f"a{number}",
        metadata={"filter_tenant_id": one_of(PROJECTS, number)},
    )


def change_aggregate(number: int) -> None:
    row = pick(Aggregate.objects.all(), number)
    if row is not None:
        change: dict[str, object] = {"metadata": {"filter_tenant_id": f"p{number % 4}"}}
        if number % 3 == 0:
            change = {"uuid": one_of(AGGREGATES, number // 8)}
        Aggregate.objects.filter(pk=row.pk).update(**change)


def delete_aggregate(number: int) -> None:
    row = pick(Aggregate.objects.all(), number)
    if row is not None:
        row.delete()


def add_reservation(number: int) -> None:
    kind = one_of(tuple(ReservationKind), number)
    host = pick(Host.objects.all(), number // 8)
    fields: dict[str, object] = {}
    if kind == ReservationKind.COMMITTED:
        commitment = Commitment.objects.get()
        fields = {"commitment": commitment, "slot_index": number}
    if kind == ReservationKind.IN_FLIGHT:
        if host is None:
            return
        fields = {
            "vm_uuid": one_of(VMS, number // 3),
            "placement_id": uuid.UUID(int=number),
            "end_time": NOW,
        }
    Reservation.objects.create(
        kind=kind,
        project_id=one_of(PROJECTS, number),
        flavor_group_name=one_of(("g1", "g2", ""), number // 2),
        memory_bytes=number * GIB,
        vcpus=number % 9,
        blocked_memory_bytes=number if host is not None else 0,
        is_ready=one_of((True, False, None), number),
        target_host=host,
        confirmed_host=host if number % 2 else None,
        **fields,
    )


def change_reservation(number: int) -> None:
    row = pick(Reservation.objects.all(), number)
    host = pick(Host.objects.all(), number // 8)
    if row is None or host is None:
        return
    changes: tuple[Mapping[str, object], ...] = (
        {"target_host": host},
        {"confirmed_host": host},
        {"target_host": host, "confirmed_host": host},
        {"is_ready": True},
        {"project_id": one_of(PROJECTS, number), "flavor_group_name": "g1"},
        {"memory_bytes": number},
    )
    change = one_of(changes, number // 64)
    Reservation.objects.filter(pk=row.pk).update(**change)


def delete_reservation(number: int) -> None:
    row = pick(Reservation.objects.all(), number)
    if row is not None:
        row.delete()


def add_allocation(number: int) -> None:
    row = pick(Reservation.objects.exclude(kind="in_flight"), number)
    if row is not None:
        ReservationAllocation.objects.create(
            reservation=row,
            vm_uuid=one_of(VMS, number // 8),
            state=AllocationState.EXPECTED,
            memory_bytes=GIB,
            vcpus=1,
            since=NOW,
        )


def confirm_allocation(number: int) -> None:
    row = pick(ReservationAllocation.objects.all(), number)
    if row is not None:
        host = row.reservation.target_host
        if host is not None:
            ReservationAllocation.objects.filter(pk=row.pk).update(
                state=AllocationState.CONFIRMED, confirmed_host=host, confirmed_at=NOW
            )


def move_allocation(number: int) -> None:
    row = pick(ReservationAllocation.objects.all(), number)
    target = pick(Reservation.objects.all(), number // 8)
    if row is not None and target is not None:
        ReservationAllocation.objects.filter(pk=row.pk).update(reservation=target)


def delete_allocation(number: int) -> None:
    row = pick(ReservationAllocation.objects.all(), number)
    if row is not None:
        row.delete()


def expect_in_flight(number: int) -> None:
    """Expect a VM in a slot, and hold it in flight on the slot's host."""
    host = pick(Host.objects.all(), number)
    if host is None:
        return
    vm_uuid = one_of(VMS, number // 8)
    slot = Reservation.objects.create(
        kind=ReservationKind.COMMITTED,
        commitment=Commitment.objects.get(),
        slot_index=number,
        memory_bytes=4 * GIB,
        vcpus=4,
        target_host=host,
        confirmed_host=host,
    )
    ReservationAllocation.objects.create(
        reservation=slot, vm_uuid=vm_uuid, state="expected", memory_bytes=GIB, vcpus=1, since=NOW
    )
    if number % 2:
        hold_in_flight(number)


def hold_in_flight(number: int) -> None:
    host = pick(Host.objects.all(), number)
    if host is not None:
        Reservation.objects.create(
            kind=ReservationKind.IN_FLIGHT,
            vm_uuid=one_of(VMS, number // 8),
            placement_id=uuid.UUID(int=number),
            end_time=NOW,
            memory_bytes=GIB,
            vcpus=1,
            target_host=host,
        )


def end_in_flight(number: int) -> None:
    row = pick(Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT), number)
    if row is not None:
        row.delete()


MOVES: tuple[Move, ...] = (
    add_host,
    add_host,
    change_host,
    change_host,
    rename_host,
    swap_names,
    delete_host,
    change_room,
    add_vm,
    add_vm,
    move_vm,
    touch_vm,
    delete_vm,
    add_aggregate,
    change_aggregate,
    delete_aggregate,
    add_reservation,
    add_reservation,
    add_reservation,
    expect_in_flight,
    hold_in_flight,
    hold_in_flight,
    end_in_flight,
    change_reservation,
    delete_reservation,
    add_allocation,
    add_allocation,
    confirm_allocation,
    move_allocation,
    delete_allocation,
)
