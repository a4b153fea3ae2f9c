"""Lists of providers from the memory of a process against those read from the rows."""

from __future__ import annotations

from random import Random
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st

from placement.services.providers import create_provider
from tests.placement.client import PlacementClient, placement_settings
from tests.placement.provider_moves import CLASSES, MOVES, TRAITS, seed, uuid_of
from tests.placement.test_snapshot_property import empty_tables
from tests.process_tables import reset_snapshot

pytestmark = pytest.mark.django_db(transaction=True)

AGGREGATES = [str(UUID(int=0xA0 + place)) for place in range(3)]
VERSIONS = ("1.0", "1.5", "1.6", "1.11", "1.14", "1.39")
ROUNDS, CHANGES = 4, 12


def random_query(random: Random) -> str:
    """Return filters, most of which some provider passes, and sometimes one for an unknown name."""
    pairs = [
        ("required", "in:" + ",".join(random.sample(TRAITS, 2)))
        for _ in range(random.randint(0, 2))
    ]
    if random.random() < 0.3:
        pairs.append(("required", f"!{random.choice((*TRAITS, 'CUSTOM_NOBODY'))}"))
    if random.random() < 0.3:
        pairs.append(("member_of", "in:" + ",".join(random.sample(AGGREGATES, 2))))
    if random.random() < 0.3:
        pairs.append(("member_of", f"!{random.choice(AGGREGATES)}"))
    if random.random() < 0.5:
        names = random.sample((*CLASSES, "CUSTOM_NOTHING"), random.randint(1, 2))
        amounts = ",".join(f"{name}:{random.choice((1, 2, 5, 2**40))}" for name in names)
        pairs.append(("resources", amounts))
    if random.random() < 0.2:
        pairs.append(("in_tree", uuid_of(random.randint(0, 12))))
    return urlencode(pairs)


def answered(client: PlacementClient, path: str, version: str) -> tuple[object, ...]:
    answer = client.get(path, version=version)
    if answer.status != 200:
        return answer.status, answer.error["detail"]
    newest = answer.headers.get("last-modified") if answer.json["resource_providers"] else None
    return answer.status, answer.content, newest


@profile(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.integers(0, 2**64).map(Random))
def test_a_kept_list_is_the_one_read_from_the_rows_to_the_byte(
    settings: Any, random: Random
) -> None:
    empty_tables()
    reset_snapshot()
    seed()
    create_provider(name='"ßtrange* \\name"', uuid=str(UUID(int=0xFF)), parent_uuid=None)
    client = PlacementClient()
    for _ in range(ROUNDS):
        for _ in range(CHANGES):
            random.choice(MOVES)(random.randint(0, 2**12))
        asked = [("/resource_providers", version) for version in VERSIONS]
        asked += [(f"/resource_providers?{random_query(random)}", "1.39") for _ in range(6)]
        seen = []
        for kept in ("process", "off"):
            placement_settings(settings, snapshot=kept)
            seen.append([answered(client, *one) for one in asked])
        assert seen[0] == seen[1]


def test_a_list_shows_a_claim_and_a_new_name_right_after_them(settings: Any) -> None:
    placement_settings(settings)
    client = PlacementClient()
    reset_snapshot()
    host = client.make_provider("before", VCPU=2)
    free = "/resource_providers?resources=VCPU:2"
    assert [one["name"] for one in client.get(free).json["resource_providers"]] == ["before"]
    generation = client.generation(host)
    assert client.allocate(str(UUID(int=1)), {host: {"VCPU": 1}}).status == 204
    assert client.get(free).json["resource_providers"] == []
    (shown,) = client.get("/resource_providers").json["resource_providers"]
    assert shown["generation"] == generation + 1
    assert client.put(f"/resource_providers/{host}", {"name": "after"}).status == 200
    (shown,) = client.get("/resource_providers").json["resource_providers"]
    assert shown["name"] == "after"
