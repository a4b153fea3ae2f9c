"""The region of ``bench change``: hosts of two generations, half full, one flavor group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from django.apps import apps
from django.conf import settings
from django.db import connection, transaction
from django.test.utils import override_settings

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import (
    FlavorGroup,
    FlavorGroupMember,
    FlavorGroupSettings,
    FlavorGroupSnapshot,
)
from hosts.models import Flavor, Host, HostState, HostStatus, Instance
from journal.conf import AccessToken
from scheduling.resources import GIB

GROUP = "bench"
ZONES = ("az-a", "az-b", "az-c")
FLAVORS_GIB = (64, 32, 16)
HOST_GIB = (2048, 4096)
TOKEN = "benchmark-token-0123456789"  # noqa: S105 - lives as long as one benchmark


def fill_region(hosts: int) -> None:
    """Replace everything in the database by a region of ``hosts`` hosts, half full of VMs."""
    empty_database()
    with transaction.atomic():
        make_group()
        Host.objects.bulk_create(_hosts(hosts), batch_size=2000)
        ids = list(Host.objects.order_by("pk").values_list("pk", flat=True))
        Instance.objects.bulk_create(_vms(ids), batch_size=5000)
        rebuild_host_capacity()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


@contextmanager
def with_token() -> Iterator[None]:
    """Let the benchmark's token change commitments."""
    token = AccessToken.model_validate(
        {"token": TOKEN, "name": "bench", "roles": ["cloud_resource_admin"]}
    )
    chosen = settings.HEADROOM.model_copy(update={"tokens": (token,), "auth": "token"})
    with override_settings(HEADROOM=chosen):  # who keeps the settings is told
        yield


def empty_database() -> None:
    """Remove every row of our apps."""
    tables = [
        model._meta.db_table  # noqa: SLF001 - the documented way to a table's name
        for label in ("journal", "hosts", "capacity", "commitments", "failover")
        for model in apps.get_app_config(label).get_models()
    ]
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables)} CASCADE")


def make_group() -> None:
    """Make the one flavor group, whose memory is committed."""
    flavors = [
        Flavor.objects.create(
            openstack_id=f"flavor-{gib}",
            name=f"b_c{gib // 4}_m{gib}",
            vcpus=gib // 4,
            memory_bytes=gib * GIB,
            extra_specs={"quota:hw_version": GROUP, "capabilities:hypervisor_type": "qemu"},
        )
        for gib in FLAVORS_GIB
    ]
    group = FlavorGroup.objects.create(
        name=GROUP,
        largest_flavor=flavors[0],
        smallest_flavor=flavors[-1],
        ram_core_ratio_mib=4096,
    )
    for position, flavor in enumerate(flavors):
        FlavorGroupMember.objects.create(group=group, flavor=flavor, position=position)
    FlavorGroupSettings.objects.create(
        group_name=GROUP, ram_unit_gib=1, ram_handles_commitments=True
    )
    now = datetime.now(tz=UTC)
    FlavorGroupSnapshot.objects.create(
        is_ready=True, last_extracted_at=now, last_content_change_at=now, content_hash="bench"
    )


def _hosts(count: int) -> Iterator[Host]:
    for number in range(count):
        memory_gib = HOST_GIB[number % len(HOST_GIB)]
        yield Host(
            name=f"node{number:05d}",
            openstack_id=f"{number:032x}",
            zone=ZONES[number % len(ZONES)],
            hypervisor_type="QEMU",
            state=HostState.UP,
            status=HostStatus.ENABLED,
            total_memory_bytes=memory_gib * GIB,
            total_vcpus=memory_gib // 4,
            effective_memory_bytes=memory_gib * GIB,
            effective_vcpus=memory_gib // 4,
            traits=[f"CUSTOM_TRAIT_{number % 40}", "COMPUTE_NODE", "HW_CPU_X86_AVX2"],
        )


def _vms(host_ids: list[int]) -> Iterator[Instance]:
    for number, host_id in enumerate(host_ids):
        memory_gib = HOST_GIB[number % len(HOST_GIB)] // 2
        yield Instance(
            openstack_id=f"{number:08d}-vm",
            name=f"vm-{number}",
            project_id=f"project-{number % 50}",
            flavor_name="b_c16_m64",
            vcpus=memory_gib // 4,
            memory_bytes=memory_gib * GIB,
            host_id=host_id,
            zone=ZONES[number % len(ZONES)],
            status="ACTIVE",
        )
