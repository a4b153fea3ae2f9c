"""A renewal takes over when the old commitment ends, as Limes renews: planned, confirmed later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.models import HostCapacity, Reservation
from commitments.models import Commitment
from hosts.models import Host
from scheduling.resources import GIB
from tests.commitments.change_requests import NOW, change, decide_ram
from tests.commitments.due_rows import repair
from tests.examples import few
from tests.factories import make_group, make_host, make_vm
from tests.ledger import assert_rooms_add_up
from tests.process_tables import reset_host_table

pytestmark = pytest.mark.django_db

OLD = "aaaaaaaa-0000-4000-8000-000000000001"
NEW = "bbbbbbbb-0000-4000-8000-000000000002"
RIVAL = "cccccccc-0000-4000-8000-000000000003"
END = NOW + timedelta(days=30)
LATER = END + timedelta(minutes=20)
FAR = END + timedelta(days=365)
ROOM_GIB = 8


@pytest.fixture
def host() -> Host:
    """A zone of one host with room for eight slots of 1 GiB."""
    make_group("hana_1", flavors=[("small", 1024, 1)], ram_unit_gib=1)
    return make_host("h1", zone="az-a", memory_gib=ROOM_GIB, vcpus=ROOM_GIB)


def accepted(project: str, *changes: object, **options: object) -> None:
    outcome = decide_ram(project, *changes, **options)  # type: ignore[arg-type]
    assert (outcome.status, outcome.rejection_reason) == (200, "")


def sell_and_renew(amount: int = ROOM_GIB, renewed: int = ROOM_GIB) -> None:
    """Fill the zone, renew, and have a rival wait for any room."""
    accepted("alpha", change(OLD, amount, expires_at=END))
    accepted("alpha", change(NEW, renewed, "planned", confirm_by=END, expires_at=FAR))
    accepted("beta", change(RIVAL, ROOM_GIB, "pending", expires_at=FAR))


def confirm() -> str:
    asked = change(NEW, ROOM_GIB, old="planned", confirm_by=END, expires_at=FAR)
    return decide_ram("alpha", asked, now=LATER).rejection_reason


def held_gib(uuid: str) -> int:
    rows = Reservation.objects.filter(
        commitment__commitment_uuid=uuid, target_host__isnull=False
    ).values_list("memory_bytes", flat=True)
    return sum(rows) // GIB


def reason(uuid: str) -> str:
    return Commitment.objects.get(commitment_uuid=uuid).ready_reason


@pytest.mark.usefixtures("host")
def test_a_renewal_keeps_the_room_between_the_old_end_and_its_confirmation() -> None:
    sell_and_renew()
    slots = set(Reservation.objects.filter(target_host__isnull=False).values_list("pk", flat=True))
    room = HostCapacity.objects.values().get()
    repair(END)
    assert (held_gib(OLD), held_gib(NEW), held_gib(RIVAL)) == (0, ROOM_GIB, 0)
    assert slots == set(
        Reservation.objects.filter(target_host__isnull=False).values_list("pk", flat=True)
    )
    assert Commitment.objects.get(commitment_uuid=NEW).state == "planned"
    repair(END + timedelta(minutes=10))
    assert (held_gib(NEW), held_gib(RIVAL)) == (ROOM_GIB, 0)
    assert confirm() == ""
    assert (reason(NEW), held_gib(NEW)) == ("Accepted", ROOM_GIB)
    assert HostCapacity.objects.values().get() == {**room, "changed_xid": _xid(), **_times()}
    assert_rooms_add_up()


def _xid() -> object:
    return HostCapacity.objects.values_list("changed_xid", flat=True).get()


def _times() -> dict[str, object]:
    return dict(HostCapacity.objects.values("updated_at").get())


def test_a_renewal_takes_the_slot_with_its_vm(host: Host) -> None:
    sell_and_renew()
    slot = Reservation.objects.filter(target_host=host).order_by("pk").first()
    vm = make_vm(host=host, slot=slot, memory_gib=1, vcpus=1, project_id="alpha")
    repair(END)
    moved = Reservation.objects.get(allocations__vm_uuid=vm.openstack_id)
    assert moved.commitment is not None
    assert moved.commitment.commitment_uuid == NEW
    assert held_gib(NEW) == ROOM_GIB
    assert_rooms_add_up()


@pytest.mark.usefixtures("host")
def test_a_renewal_of_which_limes_never_hears_again_ends_with_its_own_end() -> None:
    sell_and_renew()
    repair(END)
    repair(FAR)
    assert held_gib(NEW) == 0


@pytest.mark.usefixtures("host")
def test_a_renewal_that_is_deleted_gives_the_room_to_who_waits() -> None:
    sell_and_renew()
    repair(END)
    accepted("alpha", change(NEW, ROOM_GIB, None, old="planned"), now=LATER)
    assert held_gib(NEW) == 0
    repair(LATER + timedelta(hours=1))
    assert held_gib(RIVAL) == ROOM_GIB


@pytest.mark.usefixtures("host")
def test_a_planned_commitment_without_predecessor_holds_nothing_at_its_time() -> None:
    accepted("alpha", change(NEW, 1, "planned", confirm_by=END, expires_at=FAR))
    repair(LATER)
    assert (held_gib(NEW), reason(NEW)) == (0, "Planned")


@pytest.mark.usefixtures("host")
def test_a_planned_commitment_whose_time_has_not_come_takes_nothing_over() -> None:
    accepted("alpha", change(OLD, ROOM_GIB, expires_at=END))
    accepted("alpha", change(NEW, ROOM_GIB, "planned", confirm_by=LATER, expires_at=FAR))
    repair(END)
    assert (held_gib(OLD), held_gib(NEW)) == (0, 0)


@pytest.mark.usefixtures("host")
def test_others_of_the_zone_do_not_inherit() -> None:
    accepted("alpha", change(OLD, ROOM_GIB, expires_at=END))
    accepted("gamma", change(NEW, ROOM_GIB, "planned", confirm_by=END, expires_at=FAR))
    repair(END)
    assert (held_gib(OLD), held_gib(NEW)) == (0, 0)


@given(
    amounts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    renewed=st.integers(1, ROOM_GIB),
    chunk=st.integers(1, 3),
)
@few(12)
def test_no_renewal_up_to_what_ended_ever_fails(
    amounts: list[int], renewed: int, chunk: int
) -> None:
    with a_world():
        ended = sell(amounts)
        accepted("alpha", change(NEW, renewed, "planned", confirm_by=END, expires_at=FAR))
        accepted("beta", change(RIVAL, ROOM_GIB, "pending", expires_at=FAR))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("commitments.services.repair.CHUNK_ROWS", chunk)
            repair(END)
        assert held_gib(NEW) in {0, renewed}
        if renewed <= ended:
            assert held_gib(NEW) == renewed
        assert_rooms_add_up()


@contextmanager
def a_world() -> Iterator[None]:
    """Give one example a zone of its own, and take it away again."""
    savepoint = transaction.atomic()
    savepoint._from_testcase = True  # type: ignore[attr-defined]  # set by Django itself
    with savepoint:
        make_group("hana_1", flavors=[("small", 1024, 1)], ram_unit_gib=1)
        make_host("h1", zone="az-a", memory_gib=ROOM_GIB, vcpus=ROOM_GIB)
        reset_host_table()
        yield
        transaction.set_rollback(True)
    reset_host_table()


def sell(amounts: list[int]) -> int:
    """Sell commitments that end together; return how much was accepted."""
    ended = 0
    for number, amount in enumerate(amounts):
        uuid = f"{OLD[:-2]}{number:02}"
        if decide_ram("alpha", change(uuid, amount, expires_at=END)).rejection_reason == "":
            ended += amount
    return ended
