"""What clients ask of hosts is announced; what hosts change is looked at soon (spec 8.4)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from hosts.region.registry import Phase, registry
from hosts.region.run import ImportOptions, ImportRun
from journal.actors import Actor
from journal.models import Outbox
from placement.region_providers import STEP
from placement.services import nudges
from placement.services.links import HOST_GROUPS
from placement.tasks import reconcile_hosts
from tests.factories import make_host
from tests.placement.client import PlacementClient, placement_settings, uuid

pytestmark = pytest.mark.django_db(transaction=True)

AGGREGATE, OTHER = uuid(), uuid()


@pytest.fixture
def placement(settings: Any) -> PlacementClient:
    placement_settings(settings, enforce_new_defaults=False)
    return PlacementClient()


def announced() -> list[tuple[str, dict[str, Any]]]:
    rows = Outbox.objects.filter(topic=HOST_GROUPS).order_by("id")
    return [(row.object_id, row.payload) for row in rows]


def put_traits(client: PlacementClient, provider: str, *traits: str, stale: bool = False) -> int:
    body = {
        "traits": list(traits),
        "resource_provider_generation": client.generation(provider) - stale,
    }
    return client.put(f"/resource_providers/{provider}/traits", body).status


def put_aggregates(client: PlacementClient, provider: str, *aggregates: str) -> int:
    body = {
        "aggregates": list(aggregates),
        "resource_provider_generation": client.generation(provider),
    }
    return client.put(f"/resource_providers/{provider}/aggregates", body).status


def test_traits_that_clients_ask_of_a_host_are_announced_with_the_write(
    placement: PlacementClient,
) -> None:
    host = make_host("h1", traits=["HW_CPU_X86_AVX"])
    reconcile_hosts()
    assert announced() == []
    assert put_traits(placement, host.openstack_id, "HW_CPU_X86_SSE", "HW_CPU_X86_AVX") == 200
    first = {
        "provider_uuid": host.openstack_id,
        "traits": ["HW_CPU_X86_AVX", "HW_CPU_X86_SSE"],
    }
    assert announced() == [("h1", first)]
    assert put_traits(placement, host.openstack_id, "HW_CPU_X86_AVX", "HW_CPU_X86_SSE") == 200
    assert put_traits(placement, host.openstack_id, "HW_CPU_X86_AVX", stale=True) == 409
    assert put_traits(placement, host.openstack_id, "CUSTOM_UNKNOWN") == 400
    assert announced() == [("h1", first)]
    assert placement.delete(f"/resource_providers/{host.openstack_id}/traits").status == 204
    assert announced()[1:] == [("h1", {**first, "traits": []})]


def test_aggregates_that_clients_ask_of_a_host_are_announced_with_their_names(
    placement: PlacementClient,
) -> None:
    from hosts.models import Aggregate  # noqa: PLC0415 - same name as ours

    Aggregate.objects.create(uuid=AGGREGATE, name="rack 1")
    host = make_host("h1", aggregate_uuids=[AGGREGATE])
    reconcile_hosts()
    assert put_aggregates(placement, host.openstack_id, AGGREGATE) == 200
    assert announced() == []
    assert put_aggregates(placement, host.openstack_id, AGGREGATE, OTHER) == 200
    groups = [{"uuid": AGGREGATE, "name": "rack 1"}, {"uuid": OTHER, "name": ""}]
    told = {
        "provider_uuid": host.openstack_id,
        "aggregates": sorted(groups, key=lambda group: group["uuid"]),
    }
    assert announced() == [("h1", told)]


def test_other_providers_and_what_hosts_change_themselves_are_not_announced(
    placement: PlacementClient,
) -> None:
    provider = placement.make_provider("not a host")
    assert put_traits(placement, provider, "HW_CPU_X86_AVX") == 200
    assert put_aggregates(placement, provider, AGGREGATE) == 200
    host = make_host("h1", traits=["HW_CPU_X86_AVX"], aggregate_uuids=[AGGREGATE])
    reconcile_hosts()
    host.traits, host.aggregate_uuids = ["HW_CPU_X86_SSE"], [OTHER]
    host.save()
    assert reconcile_hosts()["updated"] == 1
    assert announced() == []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    tasks: list[str] = []

    monkeypatch.setattr(nudges, "hint_worker", tasks.append)
    return tasks


def test_an_import_of_hosts_nudges_the_worker_once_it_is_committed(sent: list[str]) -> None:
    (step,) = [step for step in registry.steps(Phase.FINISH) if step.name == STEP]
    with transaction.atomic():
        step.run(
            ImportRun(
                actor=Actor(name="test"),
                request_id="import",
                now=timezone.now(),
                options=ImportOptions(),
            )
        )
        assert sent == []
    assert sent == ["placement.reconcile_hosts"]


@pytest.mark.parametrize(
    ("providers", "capacity", "is_nudged"),
    [(True, False, True), (False, True, True), (False, False, False)],
)
def test_the_worker_is_nudged_only_where_there_is_something_to_do(
    settings: Any, sent: list[str], providers: bool, capacity: bool, is_nudged: bool
) -> None:
    placement_settings(settings, host_providers=providers, host_capacity=capacity)
    nudges.reconcile_soon()
    assert bool(sent) is is_nudged
