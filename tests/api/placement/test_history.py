"""History and pages of providers (spec placement, 12)."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.placement.client import PlacementClient, uuid

pytestmark = pytest.mark.django_db


def get(path: str, token: str = "admin") -> Any:  # noqa: S107 - of an open server
    return Client().get(f"/api/v1/placement/{path}", headers={"X-Auth-Token": token})


def test_history_of_a_consumer_and_of_a_provider(placement: PlacementClient) -> None:
    left, right = (placement.make_provider(VCPU=8) for _ in range(2))
    first, second = uuid(), uuid()
    placement.allocate(first, {left: {"VCPU": 1}})
    placement.allocate(first, {left: {"VCPU": 2}, right: {"VCPU": 3}}, generation=1)
    placement.allocate(second, {right: {"VCPU": 4}})
    placement.delete(f"/allocations/{first}")

    def told(query: str) -> list[tuple[str, str, int, int]]:
        events = get(f"history?{query}").json()["events"]
        return [
            (event["consumer_uuid"], event["provider_uuid"], event["previous"], event["amount"])
            for event in events
        ]

    assert sorted(told(f"consumer={first}")[:2]) == sorted(
        [(first, left, 2, 0), (first, right, 3, 0)]
    )
    assert len(told(f"consumer={first}")) == 5
    assert told(f"provider={right}") == [
        (first, right, 3, 0),
        (second, right, 0, 4),
        (first, right, 0, 3),
    ]
    assert told(f"consumer={second}&provider={left}") == []
    assert len(told("")) == 6


def test_history_is_read_page_by_page(placement: PlacementClient) -> None:
    provider = placement.make_provider(VCPU=8)
    consumers = [uuid() for _ in range(5)]
    for consumer in consumers:
        placement.allocate(consumer, {provider: {"VCPU": 1}})
    seen: list[str] = []
    marker = ""
    for _ in range(4):
        page = get(f"history?limit=2{marker}").json()
        seen += [event["consumer_uuid"] for event in page["events"]]
        marker = f"&marker={page['next_marker']}"
        if page["next_marker"] is None:
            break
    assert seen == consumers[::-1]


def test_providers_are_read_page_by_page(placement: PlacementClient) -> None:
    names = [f"p{number}" for number in range(5)]
    for name in names:
        placement.make_provider(name)
    first = get("providers?limit=3").json()
    second = get(f"providers?limit=3&marker={first['next_marker']}").json()
    listed = first["resource_providers"] + second["resource_providers"]
    assert [provider["name"] for provider in listed] == names
    assert second["next_marker"] is None
    assert listed[0]["origin"] == "api"
    assert listed[0]["last_change"] < listed[1]["last_change"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("history?limit=0", 400),
        ("history?limit=9999", 200),
        ("history?marker=x", 400),
        ("history?consumer=x", 400),
        ("history?bogus=1", 400),
        ("providers?marker=4ef30651-9e01-4f9c-a3f5-9362fdb3c5de", 400),
        ("providers?limit=-1", 400),
    ],
)
def test_bad_pages(placement: PlacementClient, path: str, status: int) -> None:
    answer = get(path)
    assert answer.status_code == status
    if status == 400:
        assert answer["Content-Type"] == "application/problem+json"
        assert answer.json()["status"] == 400


@pytest.mark.parametrize("path", ["history", "providers"])
def test_who_may_read_them(placement: PlacementClient, path: str) -> None:
    assert get(path, token="").status_code == 401
    assert get(path, token="nobody").status_code == 403
    assert Client().post(f"/api/v1/placement/{path}").status_code == 401
