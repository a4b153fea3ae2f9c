"""Network, disk I/O and GPUs that slots hold, taken in the statement that writes them (D.12)."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.host_table import current_host_table, table_differences
from capacity.ledger import resources
from capacity.ledger.resources import shortage_of, verify_reserved
from capacity.models import Reservation
from commitments.models import Commitment
from hosts.agents.modes import decommission
from hosts.agents.resource_models import HostResource
from hosts.models import Flavor, Host
from scheduling.needs import DISK_KEYS, DISK_TOTAL_KEY, GPU_KEYS, VIF_KEYS, Needs, flavor_needs
from scheduling.resources import GIB
from tests.commitments.change_requests import change, decide_ram
from tests.factories import make_commitment, make_group, make_host, make_slot
from tests.hosts.agents.agents import enrolled, report, signed
from tests.hosts.agents.workloads import ANN
from tests.process_tables import load_host_table

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
NEEDS = {"resources:VGPU": "1", "quota:vif_outbound_average": "1000"}


def gpu_group(**specs: str) -> None:
    """One group of a 1 GiB flavor that needs a GPU and 1 MB/s, or what ``specs`` say."""
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    flavor = Flavor.objects.get()
    flavor.extra_specs = {**flavor.extra_specs, **(specs or NEEDS)}
    flavor.save()


def tell(name: str, *, gpus: int | None = None, used: int = 0, network: int = 10**9) -> None:
    """Have the agent of a host report; None for a host without GPUs."""
    identity = enrolled(name)
    status = report()["network"] | {"capacity": network, "effective_limit": network}
    changes: dict[str, Any] = {"network": status}
    if gpus is not None:
        changes["gpu"] = {
            "mode": "vgpu",
            "total_slots": gpus,
            "used_slots": used,
            "allocatable_slots": gpus - used,
            "quarantined_slots": 0,
        }
    assert signed(identity, report(**changes)).send().status_code == 204


def reserved(name: str = "h1") -> tuple[int, int]:
    """Return GPUs and bytes per second of network that are reserved on a host."""
    rows = dict(HostResource.objects.filter(host__name=name).values_list("resource", "reserved"))
    return rows.get("gpu", 0), rows.get("network", 0)


def hosts_of(uuid: str) -> list[str]:
    rows = Reservation.objects.filter(commitment__commitment_uuid=uuid).order_by("slot_index")
    return [row.target_host.name for row in rows if row.target_host is not None]


@pytest.mark.django_db(transaction=True)
@pytest.mark.sql("capacity_hold_resources", "capacity_move_resources", "capacity_changes")
def test_a_commitment_takes_gpus_of_the_hosts_that_have_them_and_gives_them_back() -> None:
    gpu_group()
    for name in ("h1", "h2", "h3"):
        make_host(name, memory_gib=10, vcpus=40)
    tell("h1", gpus=2, used=1)
    tell("h2", gpus=2)
    tell("h3")

    assert decide_ram("alpha", change(A, 3)).rejection_reason == ""
    assert sorted(hosts_of(A)) == ["h1", "h2", "h2"]
    assert (reserved("h1"), reserved("h2")) == ((1, 10**6), (2, 2 * 10**6))
    assert not table_differences(current_host_table(), load_host_table())

    refused = decide_ram("beta", change(B, 1))
    assert "filter_has_other_resources removed 3" in refused.rejection_reason
    assert "not enough there of gpu: requested 1, available 0" in refused.rejection_reason
    assert not hosts_of(B)

    gone = decide_ram("alpha", change(A, 3, None, old="confirmed"))
    assert gone.rejection_reason == ""
    assert (reserved("h1"), reserved("h2"), reserved("h3")) == ((0, 0), (0, 0), (0, 0))
    assert decide_ram("beta", change(B, 1)).rejection_reason == ""


@pytest.mark.django_db(transaction=True)
def test_without_agents_nothing_is_refused_and_what_is_held_is_known_later() -> None:
    gpu_group()
    make_host("h1", memory_gib=10, vcpus=40)
    assert decide_ram("alpha", change(A, 3)).rejection_reason == ""
    assert reserved() == (3, 3 * 10**6)
    tell("h1", gpus=4)
    row = HostResource.objects.get(resource="gpu")
    assert (row.capacity, row.available, row.over_by, row.source) == (4, 1, 0, "detected")
    assert not decide_ram("beta", change(B, 1)).rejection_reason
    assert HostResource.objects.get(resource="gpu").available == 0

    tell_less = HostResource.objects.get(resource="gpu")
    HostResource.objects.filter(pk=tell_less.pk).update(effective_capacity=1)
    tell_less.refresh_from_db()
    assert (tell_less.available, tell_less.over_by) == (0, 3)
    decommission("h1", actor=ANN, request_id="r", reason="sold", is_forced=True)
    assert HostResource.objects.get(resource="gpu").source == "unknown"
    assert set(current_host_table().others_left.ravel().tolist()) == {2**62}


@pytest.mark.django_db(transaction=True)
def test_the_database_refuses_what_no_host_has_room_for_with_the_numbers() -> None:
    gpu_group()
    make_host("h1")
    tell("h1", gpus=1)
    host, commitment = Host.objects.get(), make_commitment()
    first = make_slot(commitment, host, memory_gib=1)
    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        make_slot(commitment, host, memory_gib=1)
    assert shortage_of(refused.value) == "gpu: requested 1, available 0"
    assert (shortage_of(DatabaseError("other")), reserved()[0]) == ("", 1)

    Reservation.objects.filter(pk=first.pk).update(
        target_host=None, confirmed_host=None, blocked_memory_bytes=0, blocked_vcpus=0
    )
    assert reserved() == (0, 0)
    HostResource.objects.filter(resource="gpu").update(is_stale=True)
    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        make_slot(commitment, host, memory_gib=1)
    assert shortage_of(refused.value) == "gpu: requested 1, available 0"
    with pytest.raises(IntegrityError, match="hosts_resource_not_negative"), transaction.atomic():
        HostResource.objects.update(reserved=-1)


@pytest.mark.django_db(transaction=True)
def test_what_vms_take_of_a_slot_is_not_held_and_comes_back_whatever_room_there_is() -> None:
    gpu_group()
    h1, h2 = make_host("h1"), make_host("h2")
    tell("h1", gpus=1)
    tell("h2", gpus=0)
    slot = make_slot(make_commitment(), h1, memory_gib=1)
    rows = Reservation.objects.filter(pk=slot.pk)

    rows.update(blocked_memory_bytes=GIB // 2)
    assert reserved() == (1, 500_000)
    rows.update(blocked_memory_bytes=0)
    assert reserved() == (0, 0)
    HostResource.objects.filter(resource="gpu").update(allocated=1)
    rows.update(blocked_memory_bytes=GIB)
    assert (reserved(), HostResource.objects.get(host=h1, resource="gpu").over_by) == (
        (1, 10**6),
        1,
    )
    rows.update(confirmed_host=h2)  # on its way: it is held on both
    assert (reserved("h1"), reserved("h2")) == ((1, 10**6), (1, 10**6))
    rows.update(target_host=h2)
    assert (reserved("h1"), reserved("h2")) == ((0, 0), (1, 10**6))
    rows.delete()
    assert reserved("h2") == (0, 0)


@pytest.mark.django_db(transaction=True)
def test_two_writers_never_hold_one_gpu_together() -> None:
    gpu_group()
    make_host("h1")
    tell("h1", gpus=5)
    host, commitment = Host.objects.get(), make_commitment()
    lock, told = threading.Barrier(8), []

    def hold(index: int) -> None:
        try:
            lock.wait(60)
            for turn in range(3):
                try:
                    with transaction.atomic():
                        make_slot(commitment, host, memory_gib=1, index=100 * index + turn)
                    told.append("")
                except IntegrityError as error:
                    told.append(shortage_of(error))
        finally:
            connection.close()

    threads = [threading.Thread(target=hold, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [""] * 5 + ["gpu: requested 1, available 0"] * 19
    assert reserved() == (5, 5 * 10**6)


@pytest.mark.django_db(transaction=True)
def test_the_nightly_look_repairs_sums_and_slots_of_flavors_that_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resources, "HOSTS_PER_PART", 1)
    gpu_group()
    for name in ("h1", "h2"):
        make_slot(Commitment.objects.first() or make_commitment(), make_host(name), memory_gib=1)
    assert verify_reserved() == {}
    HostResource.objects.filter(host__name="h1", resource="gpu").update(reserved=7)
    assert verify_reserved() == {"gpu": 1}
    assert reserved() == (1, 10**6)

    flavor = Flavor.objects.get()
    flavor.extra_specs |= {"resources:VGPU": "2"}
    flavor.save()
    assert verify_reserved() == {"slots": 2}
    assert (reserved("h1"), reserved("h2")) == ((2, 10**6), (2, 10**6))
    assert verify_reserved() == {}
    Flavor.objects.update(name="another")  # of a flavor that is gone what is held stays
    Reservation.objects.update(blocked_memory_bytes=GIB // 4)
    assert reserved() == (2, 10**6)
    Reservation.objects.update(blocked_memory_bytes=0)
    assert reserved() == (0, 0)


TEXTS = st.one_of(
    st.integers(0, 10**13).map(str),
    st.sampled_from(["", "-1", "1.5", "0x1", " 1", "1\n", "\u0663"]),
)


@pytest.mark.django_db
@pytest.mark.sql("capacity_flavor_needs")
@given(st.dictionaries(st.sampled_from([*VIF_KEYS, DISK_TOTAL_KEY, *DISK_KEYS, *GPU_KEYS]), TEXTS))
def test_the_database_and_the_engine_read_the_same_of_a_flavor(specs: dict[str, str]) -> None:
    statement = "SELECT network, disk_io, gpu FROM capacity_flavor_needs(%(specs)s::jsonb)"
    with connection.cursor() as cursor:
        cursor.execute(statement, {"specs": json.dumps(specs)})
        assert Needs(*cursor.fetchone()) == flavor_needs(specs)


@pytest.mark.parametrize(
    ("needs", "part", "whole", "wanted"),
    [
        (Needs(gpu=1), 1, 2, Needs(gpu=1)),
        (Needs(network=1000, disk_io=10, gpu=2), 2, 4, Needs(network=500, disk_io=5, gpu=1)),
        (Needs(network=10), 1, 3, Needs(network=4)),
        (Needs(gpu=1), 0, 2, Needs()),
        (Needs(gpu=1), 1, 0, Needs()),
    ],
)
def test_a_part_of_a_flavor_needs_its_share_rounded_up(
    needs: Needs, part: int, whole: int, wanted: Needs
) -> None:
    assert needs.share(part, whole) == wanted
