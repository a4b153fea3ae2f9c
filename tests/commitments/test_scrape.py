from __future__ import annotations

import pytest

from commitments.models import SlotCheck
from tests.commitments.change_requests import change, decide_ram
from tests.factories import make_commitment, make_group, make_host, make_slot
from tests.scraping import scrape

SERIES = (
    "cortex_committed_resource_unfulfilled"
    '{availability_zone="az-a",flavor_group="hana_1",resource_type="memory"} 1.0'
)


@pytest.mark.django_db
def test_waiting_commitments_are_counted_and_fulfilled_ones_are_not() -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    make_host("h1", zone="az-a", memory_gib=4, vcpus=16)
    decide_ram("alpha", change("aaaaaaaa-0000", 4, "pending"))
    assert SERIES not in scrape()
    decide_ram("alpha", change("bbbbbbbb-0000", 1, "pending"))
    assert SERIES in scrape()


@pytest.mark.django_db
def test_accepted_commitment_that_lost_its_slots_counts_whatever_its_writer_took() -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    make_commitment(ready_status=False, ready_reason="Reserving", allow_rejection=True)
    assert SERIES in scrape()


@pytest.mark.django_db
def test_refused_vm_lists_and_slots_on_lost_hosts_are_told() -> None:
    SlotCheck.objects.create(zone="az-a", is_refused=True)
    SlotCheck.objects.create(zone="az-b")
    host = make_host("h1", state="down")
    make_slot(make_commitment(), host)
    shown = scrape()
    assert 'cortex_committed_resource_vm_list_refused{availability_zone="az-a"} 1.0' in shown
    assert 'cortex_committed_resource_vm_list_refused{availability_zone="az-b"} 0.0' in shown
    assert 'cortex_committed_resource_slots_on_lost_hosts{availability_zone="az-a"} 1.0' in shown


@pytest.mark.django_db
def test_units_of_memory_that_do_not_fit_the_flavors_are_told() -> None:
    make_group("fits", flavors=[("fits", 2048, 1)], ram_unit_gib=2)
    make_group("other", flavors=[("other", 4096, 1)], ram_unit_gib=2)
    shown = scrape()
    name = "cortex_committed_resource_ram_unit_questionable"
    assert f'{name}{{flavor_group="fits"}} 0.0' in shown
    assert f'{name}{{flavor_group="other"}} 1.0' in shown


@pytest.mark.django_db
def test_hosts_that_are_not_believed_lost_are_told() -> None:
    SlotCheck.objects.create(zone="az-a", host_refusal="9 of 10 hosts are down")
    SlotCheck.objects.create(zone="az-b", host_refusal="")
    shown = scrape()
    assert 'cortex_committed_resource_host_list_refused{availability_zone="az-a"} 1.0' in shown
    assert 'cortex_committed_resource_host_list_refused{availability_zone="az-b"} 0.0' in shown
