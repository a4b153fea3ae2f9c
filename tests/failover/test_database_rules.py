"""The database refuses what breaks the rules, whoever writes it (spec failover, 7.2, 17.3)."""

from __future__ import annotations

import threading

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.models import Reservation, ReservationAllocation
from failover.domain.slots import FailoverSlot, SlotUser
from failover.models import FailoverReservation
from hosts.models import Host, Instance
from tests.domain.failover.oracle import SLOT, five_rules_hold
from tests.examples import few
from tests.factories import make_allocation, make_hosts, make_reservation, make_vm

INSERT = """
INSERT INTO capacity_reservationallocation
       (reservation_id, vm_uuid, state, memory_bytes, vcpus, since, vm_host_id,
        created_at, updated_at)
SELECT held.id, vm.openstack_id, 'expected', vm.memory_bytes, vm.vcpus, now(), vm.host_id,
       now(), now()
  FROM capacity_reservation AS held, hosts_instance AS vm
 WHERE (held.resource_name, vm.name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""


class Zone:
    """Reservations and VMs made from texts like ``r@3{a@1,b@2}``."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {host.name[-1]: host for host in make_hosts(9)}
        self.vms: dict[str, Instance] = {}
        self.slots: dict[str, Reservation] = {}

    def vm(self, text: str) -> Instance:
        name, host = text.split("@")
        if name not in self.vms:
            self.vms[name] = make_vm(name, self.hosts[host])
        return self.vms[name]

    def build(self, text: str) -> None:
        for name, host, users in SLOT.findall(text):
            slot = make_reservation(self.hosts[host], resource_name=name)
            FailoverReservation.objects.create(reservation=slot, name=f"failover-az-a-{name}")
            self.slots[name] = slot
            for user in filter(None, users.split(",")):
                make_allocation(slot, self.vm(user))

    def join(self, *pairs: tuple[str, str]) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(INSERT, [[name for _, name in pairs], [vm for vm, _ in pairs]])
            assert cursor.rowcount == len(pairs)


@pytest.fixture
def zone(db: None) -> Zone:
    return Zone()


@pytest.mark.parametrize(
    ("state", "vm", "slot"),
    [
        pytest.param("r1@1{}", "v1@1", "r1", id="E05-own-host"),
        pytest.param("r1@3{v1@1}, r2@3{}", "v1@1", "r2", id="E07-two-slots-on-a-host"),
        pytest.param("r1@3{v2@1}", "v1@1", "r1", id="E11-sharers-on-a-host"),
        pytest.param("r1@2{v1@1}, r2@3{v2@2}", "v1@1", "r2", id="E15-sharer-on-slot-host"),
        pytest.param("r3@3{v1@1,v2@2}, r4@4{v1@1}, r1@1{}", "v2@2", "r1", id="E17"),
        pytest.param("r1@3{v1@1,v2@2}, r2@4{v3@2}", "v1@1", "r2", id="E18"),
        pytest.param("r3@3{v1@1,v2@2}, r4@4{v1@1}", "v2@2", "r4", id="E21-same-pair-twice"),
        pytest.param("rA@4{v1@1,v2@2}, rC@6{v1@1}, rB@5{v1@1}", "v3@2", "rB", id="J10"),
    ],
)
def test_forbidden_join_is_refused(zone: Zone, state: str, vm: str, slot: str) -> None:
    zone.build(state)
    zone.vm(vm)
    with pytest.raises(IntegrityError):
        zone.join((vm.split("@", maxsplit=1)[0], slot))


def test_allowed_joins_are_accepted_together(zone: Zone) -> None:
    zone.build("r3@3{v1@1}, r4@4{}, r5@5{}")
    zone.vm("v2@2")
    zone.join(("v2", "r3"), ("v1", "r4"), ("v2", "r5"))
    assert ReservationAllocation.objects.count() == 4


def test_one_bad_join_undoes_the_whole_statement(zone: Zone) -> None:
    zone.build("r3@3{}, r4@4{}")
    zone.vm("v1@1")
    zone.vm("v2@2")
    with pytest.raises(IntegrityError):
        zone.join(("v1", "r3"), ("v2", "r3"), ("v1", "r4"), ("v2", "r4"))
    assert not ReservationAllocation.objects.exists()


@pytest.mark.sql("failover_reservation_moved")
def test_reservation_does_not_move_where_the_rules_forbid_it(zone: Zone) -> None:
    zone.build("r3@3{v1@1,v2@2}")
    row = Reservation.objects.filter(pk=zone.slots["r3"].pk)
    with pytest.raises(IntegrityError), transaction.atomic():
        row.update(target_host=zone.hosts["2"])
    assert row.update(target_host=zone.hosts["4"]) == 1


@pytest.mark.sql("failover_users_changed")
def test_recorded_host_does_not_change_where_the_rules_forbid_it(zone: Zone) -> None:
    zone.build("r3@3{v1@1,v2@2}")
    row = ReservationAllocation.objects.filter(vm_uuid=zone.vms["v1"].openstack_id)
    with pytest.raises(IntegrityError), transaction.atomic():
        row.update(vm_host=zone.hosts["3"])
    with pytest.raises(IntegrityError), transaction.atomic():
        row.update(vm_host=zone.hosts["2"])
    assert row.update(vm_host=zone.hosts["5"]) == 1


def test_reservation_with_users_keeps_its_kind(zone: Zone) -> None:
    zone.build("r3@3{v1@1}")
    with pytest.raises(IntegrityError), transaction.atomic():
        Reservation.objects.filter(pk=zone.slots["r3"].pk).update(kind="in_flight")


@pytest.mark.sql("failover_users_are_complete")
def test_user_without_a_host_is_refused(zone: Zone) -> None:
    zone.build("r3@3{v1@1}")
    with pytest.raises(IntegrityError), transaction.atomic():
        ReservationAllocation.objects.update(vm_host=None)


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.django_db(transaction=True)
def test_joins_under_an_old_snapshot_are_refused(isolation: str) -> None:
    zone = Zone()
    zone.build("r3@3{}")
    zone.vm("v1@1")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        with pytest.raises(DatabaseError, match="read committed"):
            zone.join(("v1", "r3"))


@pytest.mark.sql("failover_vm_moved", "capacity_forget_users")
def test_vm_that_moves_loses_its_reservations_at_once(zone: Zone) -> None:
    zone.build("r3@3{v1@1,v2@2}, r4@4{v1@1}")
    FailoverReservation.objects.update(acknowledged_at="2026-01-01T00:00Z")
    Instance.objects.filter(name="v1").update(host=zone.hosts["5"])

    left = ReservationAllocation.objects.values_list("vm_uuid", flat=True)
    assert list(left) == [zone.vms["v2"].openstack_id]
    assert not FailoverReservation.objects.filter(acknowledged_at__isnull=False).exists()


@pytest.mark.sql("failover_vms_returned")
@pytest.mark.parametrize(("host", "left"), [("1", 2), ("5", 1)])
def test_vm_that_comes_back_keeps_only_reservations_of_its_host(
    zone: Zone, host: str, left: int
) -> None:
    zone.build("r3@3{v1@1,v2@2}")
    FailoverReservation.objects.update(acknowledged_at="2026-01-01T00:00Z")
    row = Instance.objects.get(name="v1")
    Instance.objects.filter(pk=row.pk).delete()
    Instance.objects.bulk_create(
        [
            Instance(
                openstack_id=row.openstack_id,
                name=row.name,
                host=zone.hosts[host],
                flavor_name=row.flavor_name,
                memory_bytes=row.memory_bytes,
                vcpus=row.vcpus,
                project_id=row.project_id,
            )
        ]
    )

    assert ReservationAllocation.objects.count() == left
    assert FailoverReservation.objects.filter(acknowledged_at__isnull=False).count() == left - 1


def test_vm_that_is_on_no_host_for_a_while_keeps_its_reservations(zone: Zone) -> None:
    zone.build("r3@3{v1@1}")
    Instance.objects.filter(name="v1").update(host=None)
    Instance.objects.filter(name="v1").update(host=zone.hosts["1"])
    assert ReservationAllocation.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_joins_that_only_together_break_the_rules_do_not_both_commit() -> None:
    zone = Zone()
    zone.build("r3@3{v1@1}, r4@4{v1@1}")
    zone.vm("v2@2")
    barrier = threading.Barrier(2)
    outcomes: list[str] = []

    def join(slot: str) -> None:
        try:
            with transaction.atomic():
                barrier.wait(timeout=30)
                zone.join(("v2", slot))
            outcomes.append("committed")
        except IntegrityError:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=join, args=(slot,)) for slot in ("r3", "r4")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["committed", "refused"]


NAMES = tuple(f"v{number}" for number in range(6))


@pytest.mark.sql("failover_enforce_rules")
@few(20)
@given(
    homes=st.lists(st.sampled_from("123456"), min_size=6, max_size=6),
    places=st.lists(st.sampled_from("123456"), min_size=1, max_size=4),
    users=st.lists(
        st.lists(st.sampled_from(NAMES), unique=True, max_size=3), min_size=4, max_size=4
    ),
)
def test_database_refuses_exactly_what_breaks_the_five_rules(
    db: None, homes: list[str], places: list[str], users: list[list[str]]
) -> None:
    del db
    slots = [
        FailoverSlot(
            name=f"r{number}",
            host=place,
            users=tuple(SlotUser(vm_uuid=name, host=homes[int(name[1])]) for name in users[number]),
        )
        for number, place in enumerate(places)
    ]
    pairs = [(user.vm_uuid, slot.name) for slot in slots for user in slot.users]
    savepoint = transaction.savepoint()
    zone = Zone()
    for slot in slots:
        zone.build(f"{slot.name}@{slot.host}{{}}")
    for name, home in zip(NAMES, homes, strict=True):
        zone.vm(f"{name}@{home}")
    try:
        zone.join(*pairs)
        is_accepted = True
    except IntegrityError:
        is_accepted = False
    transaction.savepoint_rollback(savepoint)
    assert is_accepted is five_rules_hold(slots)


@pytest.mark.parametrize(
    ("text", "vms"),
    [
        pytest.param("r1@3{v1@1}", "v2@3", id="within a reservation"),
        pytest.param("r1@3{v1@1}, r2@4{v1@1}, r3@5{v1@1}", "v2@4", id="with another of three"),
    ],
)
def test_refusal_names_the_host_and_the_vm(zone: Zone, text: str, vms: str) -> None:
    zone.build(text)
    zone.vm(vms)
    ids = {str(host.pk) for host in zone.hosts.values()}
    with pytest.raises(IntegrityError, match="is listed twice for VM") as caught:
        zone.join((vms.split("@", maxsplit=1)[0], "r1"))
    words = str(caught.value).split()
    assert words[words.index("host") + 1] in ids
    assert any(vm.openstack_id in str(caught.value) for vm in zone.vms.values())
