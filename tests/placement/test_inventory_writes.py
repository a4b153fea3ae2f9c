"""Inventories written in one statement against those written step by step."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st

from placement.models import Change, Inventory, ResourceProvider
from tests.placement.client import Answer, PlacementClient, placement_settings, uuid

pytestmark = pytest.mark.django_db(transaction=True)

CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB", "CUSTOM_A", "CUSTOM_UNKNOWN")
FIELDS = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio", "used")
STEPS = 12


def random_body(random: Random, generation: int) -> dict[str, Any]:
    """Return a body that is mostly right."""
    names = random.sample(CLASSES[:4], random.randint(0, 4))
    if random.random() < 0.1:
        names.append(CLASSES[4])
    return {
        "resource_provider_generation": random.choice((*(generation,) * 9, generation + 1, 2**40)),
        "inventories": {
            name: {
                "total": random.randint(1, 5),
                "reserved": random.choice((0, 0, 1, 5)),
                "allocation_ratio": random.choice((1.0, 0.5, 16.0)),
                **random.choice(({}, {"min_unit": 2}, {"max_unit": 3, "step_size": 2})),
            }
            for name in names
        },
    }


def stored(provider: str) -> dict[str, Any]:
    rows = Inventory.objects.filter(provider__uuid=provider).order_by("resource_class__name")
    (one,) = ResourceProvider.objects.filter(uuid=provider)
    logged = Change.objects.filter(root_id=one.pk).count()
    return {"rows": list(rows.values("resource_class__name", *FIELDS)), "logged": logged}


def told(answer: Answer, provider: str) -> tuple[int, Any]:
    text = answer.content.decode().replace(provider, "P")
    return (answer.status, text) if answer.status == 200 else (answer.status, _detail(text))


def _detail(text: str) -> str:
    return text.partition('"request_id"')[0]


@pytest.mark.sql("placement_put_inventories")
@profile(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.integers(0, 2**64).map(Random))
def test_one_statement_writes_and_says_what_many_do(settings: Any, random: Random) -> None:
    placement_settings(settings)
    client = PlacementClient()
    client.put("/resource_classes/CUSTOM_A")
    pair = [client.make_provider() for _ in range(2)]
    for _ in range(STEPS):
        generations = {client.generation(provider) for provider in pair}
        assert len(generations) == 1
        if random.random() < 0.3:
            asked = {name: {name: 1} for name in CLASSES[:4]}[random.choice(CLASSES[:4])]
            claims = [client.allocate(uuid(), {one: asked}) for one in pair]
            assert claims[0].status == claims[1].status
            continue
        version = random.choice(("1.0", "1.25", "1.26", "1.39"))
        body = random_body(random, generations.pop())
        answers = []
        for provider, is_stepwise in zip(pair, (False, True), strict=True):
            path = f"/resource_providers/{provider}/inventories"
            if is_stepwise:
                with transaction.atomic():
                    answer = client.put(path, body, version=version)
            else:
                answer = client.put(path, body, version=version)
            answers.append(told(answer, provider))
        assert answers[0] == answers[1]
        assert stored(pair[0]) == stored(pair[1])


def test_a_write_is_one_statement(settings: Any) -> None:
    placement_settings(settings)
    client = PlacementClient()
    host = client.make_provider(VCPU=2)
    path = f"/resource_providers/{host}/inventories"
    body = {
        "resource_provider_generation": client.generation(host),
        "inventories": {"VCPU": {"total": 4}},
    }
    with CaptureQueriesContext(connection) as seen:
        assert client.put(path, body).status == 200
    assert len(seen) == 1


def test_a_missing_provider_is_said_before_a_wrong_body(settings: Any) -> None:
    placement_settings(settings)
    client = PlacementClient()
    path = f"/resource_providers/{UUID(int=5)}/inventories"
    assert client.put(path, {"inventories": 5}).status == 404
    assert client.put(path, b"{").status == 404
    host = client.make_provider()
    assert client.put(f"/resource_providers/{host}/inventories", b"{").status == 400
