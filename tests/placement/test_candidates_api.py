"""``GET /allocation_candidates`` over HTTP (spec placement, 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from django.test import Client

from tests.placement.rows import allocate, make_provider

pytestmark = pytest.mark.django_db


def get(query: str, version: str = "1.39", headers: Mapping[str, str] | None = None) -> Any:
    return Client().get(
        f"/placement/allocation_candidates?{query}",
        headers={
            "X-Auth-Token": "admin",
            "OpenStack-API-Version": f"placement {version}",
            **(headers or {}),
        },
    )


def test_smoke() -> None:
    host = make_provider("host", inventories={"VCPU": 16}, traits=("CUSTOM_GOLD",))
    allocate(UUID(int=5), {host: {"VCPU": 4}})
    answer = get("resources=VCPU:12")
    assert answer.status_code == 200, answer.content
    assert answer.json() == {
        "allocation_requests": [
            {
                "allocations": {str(host.uuid): {"resources": {"VCPU": 12}}},
                "mappings": {"": [str(host.uuid)]},
            }
        ],
        "provider_summaries": {
            str(host.uuid): {
                "resources": {"VCPU": {"capacity": 16, "used": 4}},
                "traits": ["CUSTOM_GOLD"],
                "parent_provider_uuid": None,
                "root_provider_uuid": str(host.uuid),
            }
        },
    }
    assert get("resources=VCPU:13").json()["allocation_requests"] == []
