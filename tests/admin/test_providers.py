from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from core.text import moment_text
from hosts.models import Host
from placement.models import AllocationEvent, Inventory, Origin, ResourceProvider
from tests import factories
from tests.placement.rows import allocate, make_provider

VM = UUID("00000000-0000-4000-8000-00000000beef")

pytestmark = pytest.mark.django_db


@pytest.fixture
def host() -> ResourceProvider:
    """A host with a NUMA cell; a VM has a quarter of the host's memory and half of the cell."""
    region_host = factories.make_host("compute-1")
    factories.make_vm("vm-one", region_host, openstack_id=str(VM))
    host = make_provider(
        "compute-1",
        inventories={"MEMORY_MB": 65536, "VCPU": 16},
        traits=("CUSTOM_GOLD",),
        uuid=UUID(region_host.openstack_id),
    )
    cell = make_provider("compute-1-cell", parent=host, inventories={"PCPU": 8})
    allocate(VM, {host: {"MEMORY_MB": 16384}, cell: {"PCPU": 4}}, type_name="INSTANCE")
    AllocationEvent.objects.create(
        consumer_uuid=VM,
        provider_uuid=host.uuid,
        resource_class="MEMORY_MB",
        amount=16384,
        previous=0,
        actor="nova",
        request_id="req-history",
    )
    return host


def page(client: Client, name: str, pk: int) -> str:
    return client.get(reverse(f"admin:placement_{name}_change", args=[pk])).content.decode()


def test_a_providers_page_shows_its_tree_with_use_and_who_holds_it(
    admin_client: Client, host: ResourceProvider
) -> None:
    text = page(admin_client, "resourceprovider", host.pk)

    assert "16 GiB of 64 GiB used (25 %), 48 GiB free" in text
    assert "compute-1-cell" in text
    assert "4 of 8 used (50 %), 4 free" in text
    assert "CUSTOM_GOLD" in text
    assert "host compute-1" in text
    assert "vm-one" in text
    assert "MEMORY_MB 0 GiB → 16 GiB" in text
    assert "req-history" in text


def test_a_hosts_page_says_what_commitments_and_failover_hold_there(
    admin_client: Client, host: ResourceProvider
) -> None:
    ResourceProvider.objects.filter(pk=host.pk).update(origin=Origin.HOST)
    assert "held by commitments" not in page(admin_client, "resourceprovider", host.pk)
    factories.make_reservation(Host.objects.get(name="compute-1"), memory_gib=8, vcpus=3)

    text = page(admin_client, "resourceprovider", host.pk)

    assert "8 GiB held by commitments and failover" in text
    assert "3 held by commitments and failover" in text
    assert text.count("held by commitments and failover") == 2


def test_a_hosts_page_shows_claims_that_no_vm_list_has(
    admin_client: Client, host: ResourceProvider, settings: Any
) -> None:
    """What is listed is under VMs; a slot says who is in it, and since when."""
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": "placement"})
    ResourceProvider.objects.filter(pk=host.pk).update(origin=Origin.HOST)
    region_host = Host.objects.get(name="compute-1")
    url = reverse("admin:hosts_host_change", args=[region_host.pk])
    assert "that the VM list does not have" not in admin_client.get(url).content.decode()

    new = uuid4()
    allocate(new, {host: {"MEMORY_MB": 8192, "VCPU": 2}}, type_name="MIGRATION")
    slot = factories.make_slot(factories.make_commitment(), region_host, memory_gib=8, vcpus=2)
    since = timezone.now() - timedelta(hours=3)
    slot.allocations.create(
        vm_uuid=str(new),
        state="confirmed",
        memory_bytes=8 << 30,
        vcpus=2,
        since=since,
        confirmed_at=since,
        confirmed_host=region_host,
    )

    text = admin_client.get(url).content.decode()

    assert "that the VM list does not have" in text
    told = text[text.index("that the VM list does not have") :]
    assert reverse("admin:headroom_find", args=["consumer", str(new)]) in told
    assert "migration 8 GiB, 2 vCPUs" in told
    assert str(VM) not in told
    assert "confirmed, not listed yet," in text
    assert moment_text(since) in text


def test_a_provider_over_capacity_says_so(admin_client: Client, host: ResourceProvider) -> None:
    Inventory.objects.filter(provider=host, resource_class__name="MEMORY_MB").update(total=8192)

    text = page(admin_client, "resourceprovider", host.pk)

    assert "16 GiB of 8 GiB used (200 %), 8 GiB over capacity" in text


def test_a_consumers_page_shows_what_it_holds_and_which_vm_it_is(
    admin_client: Client, host: ResourceProvider
) -> None:
    consumer = host.allocations.get().consumer

    text = page(admin_client, "consumer", consumer.pk)

    assert "VM vm-one" in text
    assert "MEMORY_MB 16 GiB" in text
    assert "PCPU 4" in text
    assert "compute-1-cell" in text
    assert "nova" in text


@pytest.mark.parametrize(
    ("query", "names"),
    [
        pytest.param("", {"compute-1", "compute-1-cell"}, id="all"),
        pytest.param("place=root", {"compute-1"}, id="roots"),
        pytest.param("place=nested", {"compute-1-cell"}, id="nested"),
        pytest.param("trait=CUSTOM_GOLD", {"compute-1"}, id="trait"),
        pytest.param("resource_class=PCPU", {"compute-1-cell"}, id="class"),
        pytest.param("q=cell", {"compute-1-cell"}, id="name"),
    ],
)
def test_providers_are_found(
    admin_client: Client, host: ResourceProvider, query: str, names: set[str]
) -> None:
    assert host.pk
    answer = admin_client.get(reverse("admin:placement_resourceprovider_changelist") + f"?{query}")

    assert {row.name for row in answer.context["cl"].result_list} == names


def test_a_provider_is_found_by_its_uuid(admin_client: Client, host: ResourceProvider) -> None:
    url = reverse("admin:placement_resourceprovider_changelist") + f"?q={host.uuid}"

    assert [row.pk for row in admin_client.get(url).context["cl"].result_list] == [host.pk]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        pytest.param("type=INSTANCE", 1, id="type"),
        pytest.param("type=-", 0, id="no type"),
        pytest.param(f"q={VM}", 1, id="uuid"),
        pytest.param("q=project-1", 1, id="project"),
        pytest.param("provider=0", 0, id="another provider"),
        pytest.param("provider=nonsense", 0, id="no number"),
    ],
)
def test_consumers_are_found(
    admin_client: Client, host: ResourceProvider, query: str, count: int
) -> None:
    assert host.pk
    answer = admin_client.get(reverse("admin:placement_consumer_changelist") + f"?{query}")

    assert len(answer.context["cl"].result_list) == count


def test_the_list_of_traits_tells_which_flavors_ask_for_one_that_nobody_created(
    admin_client: Client, host: ResourceProvider
) -> None:
    del host
    factories.make_flavor("m1.lost", extra_specs={"trait:CUSTOM_GONE": "required"})
    factories.make_flavor("m1.fine", extra_specs={"trait:CUSTOM_GOLD": "required"})
    shown = admin_client.get(reverse("admin:placement_trait_changelist")).content.decode()
    assert "m1.lost" in shown
    assert "asks for trait CUSTOM_GONE, which nobody created" in shown
    assert "m1.fine" not in shown
