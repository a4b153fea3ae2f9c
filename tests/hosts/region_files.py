from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from django.apps import apps
from django.db import connection

from hosts.region.dump import dump_region
from hosts.region.registry import DumpOptions
from hosts.region.run import ImportOptions, ImportReport
from hosts.services.region_import import import_region
from journal.actors import Actor

DATA = Path(__file__).resolve().parent.parent / "data"
REGION = DATA / "mini-cloud-region.json"
LIMES = DATA / "mini-cloud-limes.json"
OWN_APPS = ("hosts", "capacity", "commitments", "failover")
Json = dict[str, Any]


def load(*files: Path, place: bool = False, **options: bool) -> ImportReport:
    return import_region(
        files=files,
        actor=Actor(name="test"),
        request_id="req-test",
        options=ImportOptions(place=place, **options),
    )


def dump(*, with_ended: bool = False) -> bytes:
    stream = BytesIO()
    dump_region(stream, DumpOptions(with_ended=with_ended))
    return stream.getvalue()


def own_tables() -> list[str]:
    return [
        model._meta.db_table
        for name in OWN_APPS
        for model in apps.get_app_config(name).get_models(include_auto_created=True)
    ]


def empty_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET LOCAL lock_timeout = '60s'")  # the server may be looking at the tables
        cursor.execute(f"TRUNCATE {', '.join(own_tables())} CASCADE")


def row_counts() -> dict[str, int]:
    with connection.cursor() as cursor:
        found = {}
        for table in own_tables():
            cursor.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - our tables
            found[table] = cursor.fetchone()[0]
    return found


def write_file(folder: Path, content: Json, name: str = "region.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def edited(source: Path, folder: Path, edit: Callable[[Json], None], name: str = "x.json") -> Path:
    content = json.loads(source.read_text())
    edit(content)
    return write_file(folder, content, name)


def small_region() -> Json:
    """One host, one flavor, one VM, one project: the least that has every section."""
    return {
        "about": {"region": "small", "taken_at": "2026-11-20T10:00:00Z", "source": "test"},
        "identity": {
            "domains": [{"id": "d1", "name": "acme", "enabled": True}],
            "projects": [{"id": "p1", "name": "acme-dev", "domain_id": "d1", "enabled": True}],
        },
        "compute": {
            "flavors": [
                {
                    "id": "f1",
                    "name": "g_c2_m8",
                    "ram": 8192,
                    "vcpus": 2,
                    "disk": 20,
                    "OS-FLV-EXT-DATA:ephemeral": 0,
                    "extra_specs": {
                        "capabilities:hypervisor_type": "QEMU",
                        "quota:hw_version": "gp",
                    },
                }
            ],
            "hypervisors": [
                {
                    "id": "h1",
                    "hypervisor_hostname": "node1",
                    "hypervisor_type": "QEMU",
                    "state": "up",
                    "status": "enabled",
                    "service": {"host": "svc1", "id": "s1", "disabled_reason": None},
                }
            ],
            "services": [
                {
                    "binary": "nova-compute",
                    "host": "svc1",
                    "zone": "nova",
                    "state": "up",
                    "status": "enabled",
                }
            ],
            "aggregates": [
                {
                    "uuid": "a1",
                    "name": "az-a",
                    "hosts": ["svc1"],
                    "metadata": {"availability_zone": "az-a"},
                }
            ],
            "servers": [
                {
                    "id": "v1",
                    "name": "vm",
                    "status": "ACTIVE",
                    "tenant_id": "p1",
                    "user_id": "u1",
                    "created": "2026-01-01T00:00:00Z",
                    "updated": "2026-01-01T00:00:00Z",
                    "flavor": {
                        "original_name": "g_c2_m8",
                        "vcpus": 2,
                        "ram": 8192,
                        "disk": 20,
                        "extra_specs": {},
                    },
                    "OS-EXT-AZ:availability_zone": "az-a",
                    "OS-EXT-SRV-ATTR:host": "svc1",
                    "OS-EXT-SRV-ATTR:hypervisor_hostname": "node1",
                    "OS-EXT-STS:vm_state": "active",
                    "OS-EXT-STS:task_state": None,
                    "OS-EXT-STS:power_state": 1,
                    "image": "",
                    "metadata": {},
                }
            ],
            "server_groups": [
                {"id": "sg1", "name": "ha", "policy": "anti-affinity", "members": ["v1"]}
            ],
        },
        "image": {"images": [{"id": "i1", "name": "sles", "os_distro": "sles"}]},
        "placement": {
            "resource_providers": [
                {
                    "uuid": "h1",
                    "name": "node1",
                    "parent_provider_uuid": None,
                    "root_provider_uuid": "h1",
                    "inventories": {
                        "inventories": {
                            "VCPU": {"total": 64, "reserved": 0, "allocation_ratio": 1.5},
                            "MEMORY_MB": {"total": 65536, "reserved": 1, "allocation_ratio": 1.0},
                            "DISK_GB": {"total": 100, "reserved": 0, "allocation_ratio": 1.0},
                        }
                    },
                    "traits": {"traits": ["CUSTOM_A"]},
                    "aggregates": {"aggregates": ["a1"]},
                }
            ]
        },
        "limes": {
            "commitments": [
                {
                    "id": 1,
                    "uuid": "11111111-0000-0000-0000-000000000001",
                    "service_type": "compute",
                    "resource_name": "hw_version_gp_ram",
                    "availability_zone": "az-a",
                    "amount": 2,
                    "unit": "8 GiB",
                    "duration": "10 years",
                    "created_at": 1793000000,
                    "confirmed_at": 1793000060,
                    "expires_at": 2108532000,
                    "status": "confirmed",
                    "project_id": "p1",
                    "domain_id": "d1",
                }
            ],
            "quotas": [
                {
                    "project_id": "p1",
                    "availability_zone": "az-a",
                    "resource_name": "hw_version_gp_ram",
                    "quota": 10,
                }
            ],
        },
        "headroom": {
            "flavor_group_rules": [{"group": "other", "flavor": "o_*"}],
            "flavor_groups": {"gp": {"ram_unit_gib": 8, "ram": {"handles_commitments": True}}},
            "failover_policies": [{"flavor": "g_*", "count": 1}],
        },
    }
