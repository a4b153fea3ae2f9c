"""The exchanges that the specification of LIQUID shows, byte for byte as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from capacity.models import FlavorGroupSettings, ProjectQuota
from commitments.models import Commitment
from commitments.services.change import change_commitments
from scheduling.resources import GIB, MIB
from tests.api.conftest import Configure, configure, liquid, no_refresh
from tests.api.liquid_client import PROJECT, LiquidClient
from tests.factories import (
    make_assignment,
    make_commitment,
    make_group,
    make_group_capacity,
    make_group_settings,
    make_host,
    make_quota,
    make_vm,
)

__all__ = ["configure", "liquid", "no_refresh"]

pytestmark = pytest.mark.django_db

EXCHANGES = Path(__file__).parent / "liquid"
CHANGED_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HANA_FIXED = [("hana_c8_m32", 32768, 8), ("hana_c4_m16", 16384, 4)]


def replay(client: LiquidClient, name: str) -> tuple[Any, dict[str, Any]]:
    exchange: dict[str, Any] = json.loads((EXCHANGES / f"{name}.json").read_text())
    response = client.send(exchange["method"], exchange["path"], exchange["request"])
    assert response.status_code == exchange["status"], response.content
    answer = response.json() if response.content else None
    return answer, exchange


def make_hana_fixed(*, flavors: Sequence[tuple[str, int, int]] = HANA_FIXED) -> None:
    make_group(
        "hana_fixed",
        flavors=flavors,
        ram_unit_gib=16,
        handles=("ram",),
        quota=("ram",),
        content_changed_at=CHANGED_AT,
    )


def test_info(liquid: LiquidClient) -> None:
    make_hana_fixed()
    make_group(
        "v2_variable",
        flavors=[("v2_c4_m8", 8192, 4), ("v2_c4_m64", 65536, 4)],
        content_changed_at=CHANGED_AT,
    )
    FlavorGroupSettings.objects.filter(group_name="v2_variable").delete()
    make_group_settings("*", ram_unit_gib=0, handles=(), quota=())
    answer, exchange = replay(liquid, "info")
    expected = exchange["response"]
    expected["resources"]["hw_version_hana_fixed_ram"]["handlesCommitments"] = True
    assert answer == expected


@pytest.mark.usefixtures("no_refresh")
def test_report_capacity(liquid: LiquidClient) -> None:
    make_hana_fixed()
    make_group_capacity(
        "hana_fixed",
        "az-one",
        running_instances=200,
        running_slots=None,
        running_vcpus=1600,
        exclusively_free_slots=800,
        exclusively_free_vcpus=6400,
    )
    answer, exchange = replay(liquid, "report_capacity")
    assert answer == exchange["response"]


def test_report_usage(liquid: LiquidClient) -> None:
    make_group(
        "hana_1",
        flavors=[("m1.small", 1024, 4), ("m1.large", 4096, 16)],
        quota=("ram",),
        content_changed_at=CHANGED_AT,
    )
    host = make_host(zone="az-a")
    db_1, db_2 = (
        make_vm(
            name,
            host,
            openstack_id=uuid,
            flavor_name="m1.large",
            memory_gib=4096 * MIB // GIB,
            vcpus=16,
            disk_gib=40,
            project_id=PROJECT,
            os_type=os_type,
            flavor_extra_specs=extra_specs,
            nova_created_at=CHANGED_AT + timedelta(hours=hour),
        )
        for hour, (name, uuid, os_type, extra_specs) in enumerate(
            (
                (
                    "db-1",
                    "7c1d0f52-9f0e-4b1c-9d5e-0a4b8f6f2a01",
                    "sles15_64Guest",
                    {"hw_video:ram_max_mb": "16"},
                ),
                ("db-2", "b2f6a6c4-6c1e-4f6f-8a0b-6f3f5b1d2e02", "unknown", {}),
            )
        )
    )
    assert db_2.name == "db-2"
    committed = make_commitment(
        "3f0e9b0a-5f0b-4d7f-8a55-3d0f6f0f8a11", amount_gib=4, project_id=PROJECT
    )
    make_assignment(committed, db_1)
    make_quota(PROJECT, "az-a", {"hw_version_hana_1_ram": 16})
    answer, exchange = replay(liquid, "report_usage")
    assert answer == exchange["response"]


def test_quota(liquid: LiquidClient) -> None:
    make_hana_fixed()
    assert replay(liquid, "quota")[0] is None
    rows = {row.zone: row for row in ProjectQuota.objects.all()}
    assert {zone: row.quota_by_resource for zone, row in rows.items()} == {
        "az-a": {"hw_version_hana_fixed_ram": 960},
        "az-b": {"hw_version_hana_fixed_ram": 640},
    }
    assert {row.project_name for row in rows.values()} == {"billing-prod"}
    assert {row.domain_name for row in rows.values()} == {"customers"}


def test_change_accepted(liquid: LiquidClient) -> None:
    make_hana_fixed()
    make_host(memory_gib=64, vcpus=16)
    answer, exchange = replay(liquid, "change_accepted")
    assert answer == exchange["response"]
    row = Commitment.objects.get()
    assert (row.requested_amount, row.domain_id) == (
        64 * GIB,
        "0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f",
    )


def test_change_rejected(
    liquid: LiquidClient, monkeypatch: pytest.MonkeyPatch, configure: Configure
) -> None:
    configure(liquid={"advise_on_rejection": False})
    make_hana_fixed(flavors=HANA_FIXED[1:])
    make_host(memory_gib=48, vcpus=16)

    def decide(*args: Any, **kwargs: Any) -> Any:
        return change_commitments(*args, **kwargs, now=NOW)

    monkeypatch.setattr("commitments.api.views.change_commitments", decide)
    answer, exchange = replay(liquid, "change_rejected")
    assert answer == exchange["response"]
    assert not Commitment.objects.exists()


def test_transfer(liquid: LiquidClient) -> None:
    make_hana_fixed()
    make_host(memory_gib=64, vcpus=16)
    exchange = json.loads((EXCHANGES / "change_transfer.json").read_text())
    by_project = exchange["request"]["byProject"]
    create = {**exchange["request"], "byProject": {"source-project": {"byResource": {}}}}
    changeset = {
        "totalConfirmedBefore": 10,
        "totalConfirmedAfter": 14,
        "commitments": [
            by_project["target-project"]["byResource"]["hw_version_hana_fixed_ram"]["commitments"][
                0
            ]
        ],
    }
    create["byProject"]["source-project"]["byResource"] = {"hw_version_hana_fixed_ram": changeset}
    assert liquid.send("POST", liquid.change, create).json() == {}
    assert replay(liquid, "change_transfer")[0] == {}
    assert Commitment.objects.get().project_id == "target-project"
