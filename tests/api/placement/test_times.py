"""``last-modified`` is the newest change of what an answer shows, else now (spec placement, 4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any

import pytest
from django.db import models
from django.utils import timezone

from placement.models import (
    Allocation,
    Inventory,
    ResourceClass,
    ResourceProvider,
    Trait,
)
from tests.placement.client import Answer, PlacementClient, uuid

pytestmark = pytest.mark.django_db

OLD, NEW = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(2002, 3, 4, 5, 6, 7, tzinfo=UTC)
CONSUMER = "00000000-0000-4000-8000-00000000000c"


def dated(answer: Answer, when: datetime) -> bool:
    assert answer.headers["cache-control"] == "no-cache"
    return bool(answer.headers["last-modified"] == format_datetime(when, usegmt=True))


def is_of_now(answer: Answer) -> bool:
    shown = parsedate_to_datetime(answer.headers["last-modified"])
    return bool(timezone.now() - shown < timedelta(minutes=5))


def age(model: type[models.Model], when: datetime, **chosen: Any) -> None:
    """Say that rows were made and changed at a time."""
    fields = {field.name for field in model._meta.get_fields()}
    times = {name: when for name in ("created_at", "updated_at") if name in fields}
    assert model._default_manager.filter(**chosen).update(**times)


@pytest.fixture
def provider(placement: PlacementClient) -> str:
    made = placement.make_provider("old", VCPU=8, DISK_GB=8)
    placement.put("/traits/CUSTOM_OLD")
    placement.put("/traits/CUSTOM_NEW")
    body = {"traits": ["CUSTOM_OLD", "CUSTOM_NEW"], "resource_provider_generation": 1}
    assert placement.put(f"/resource_providers/{made}/traits", body).status == 200
    assert placement.allocate(CONSUMER, {made: {"VCPU": 1, "DISK_GB": 1}}).status == 204
    placement.put("/resource_classes/CUSTOM_OLD")
    placement.make_provider("new")
    for model in (ResourceProvider, Inventory, Trait, ResourceClass):
        age(model, OLD)
    age(Allocation, OLD)
    age(ResourceProvider, NEW, name="new")
    age(Inventory, NEW, resource_class__name="DISK_GB")
    age(Trait, NEW, name="CUSTOM_NEW")
    age(Allocation, NEW, resource_class__name="DISK_GB")
    return made


@pytest.mark.parametrize(
    ("path", "when"),
    [
        ("/resource_providers", NEW),
        ("/resource_providers?name=old", OLD),
        ("/resource_providers/{}", OLD),
        ("/resource_providers/{}/inventories", NEW),
        ("/resource_providers/{}/inventories/VCPU", OLD),
        ("/resource_providers/{}/inventories/DISK_GB", NEW),
        ("/resource_providers/{}/traits", NEW),
        ("/resource_providers/{}/allocations", NEW),
        ("/allocations/" + CONSUMER, NEW),
        ("/traits", NEW),
        ("/traits?name=in:CUSTOM_OLD", OLD),
        ("/traits/CUSTOM_OLD", OLD),
        ("/resource_classes", OLD),
        ("/resource_classes/CUSTOM_OLD", OLD),
    ],
)
def test_answers_are_as_old_as_the_newest_thing_they_show(
    placement: PlacementClient, provider: str, path: str, when: datetime
) -> None:
    answer = placement.get(path.format(provider))
    assert answer.status in {200, 204}
    assert dated(answer, when)
    assert "last-modified" not in placement.get(path.format(provider), version="1.14").headers


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/resource_providers?name=nobody",
        "/resource_providers/{}/usages",
        "/resource_providers/{}/aggregates",
        "/usages?project_id=p",
        "/traits?name=in:CUSTOM_NOBODY",
        "/resource_classes/VCPU",
        "/allocations/00000000-0000-4000-8000-0000000000ff",
        "/allocation_candidates?resources=VCPU:1",
    ],
)
def test_other_answers_are_of_now(placement: PlacementClient, provider: str, path: str) -> None:
    answer = placement.get(path.format(provider))
    assert answer.status == 200
    assert is_of_now(answer)


def test_what_is_empty_is_as_old_as_its_provider_or_of_now(placement: PlacementClient) -> None:
    empty = placement.make_provider()
    age(ResourceProvider, OLD)
    assert dated(placement.get(f"/resource_providers/{empty}/inventories"), OLD)
    for part in ("traits", "allocations"):
        assert is_of_now(placement.get(f"/resource_providers/{empty}/{part}"))


def test_writes_that_show_what_they_wrote_are_of_now(placement: PlacementClient) -> None:
    provider = placement.make_provider(VCPU=8)
    age(ResourceProvider, OLD)
    age(Inventory, OLD)
    path = f"/resource_providers/{provider}"
    changed = {"total": 9, "resource_provider_generation": 1}
    assert is_of_now(placement.put(f"{path}/inventories/VCPU", changed))
    replaced = {"inventories": {"VCPU": {"total": 9}}, "resource_provider_generation": 2}
    assert is_of_now(placement.put(f"{path}/inventories", replaced))
    added = {"resource_class": "DISK_GB", "total": 9}
    assert is_of_now(placement.post(f"{path}/inventories", added))
    assert is_of_now(placement.put(path, {"name": "renamed"}))
    assert is_of_now(placement.post("/resource_providers", {"name": uuid()}))
    assert is_of_now(placement.put("/traits/CUSTOM_A"))
    aggregates = {"aggregates": [uuid()], "resource_provider_generation": 4}
    assert is_of_now(placement.put(f"{path}/aggregates", aggregates))
    assert "last-modified" not in placement.post("/resource_classes", {"name": "CUSTOM_A"}).headers
