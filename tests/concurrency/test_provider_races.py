"""More of the races of spec placement, 9.6, on sixteen connections."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from capacity.ledger.allocated import drift_from
from capacity.ledger.rooms import move_blocks, rebuild_host_capacity
from capacity.models import HostCapacity, ReservationKind
from placement.models import Aggregate, Inventory, ProviderTrait, ResourceProvider
from placement.tasks import reconcile_hosts
from scheduling.resources import ResourceVector
from tests.concurrency.at_once import CONNECTIONS, all_at_once, wait_for_a_blocked_session
from tests.concurrency.test_allocation_races import statuses
from tests.factories import make_host
from tests.placement.client import Answer, PlacementClient, drift, placement_settings, uuid

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _open_server(settings: Any) -> None:
    placement_settings(settings, enforce_new_defaults=False)


@pytest.fixture
def placement() -> PlacementClient:
    return PlacementClient()


def test_what_comes_after_a_shrink_never_exceeds_the_new_capacity(
    placement: PlacementClient,
) -> None:
    provider = placement.make_provider(VCPU=2000000000)
    is_small = threading.Event()
    put_before: list[int] = []
    put_after: list[int] = []

    def shrink(client: PlacementClient) -> None:
        path = f"/resource_providers/{provider}/inventories/VCPU"
        while not is_small.is_set():
            body = {
                "resource_provider_generation": client.generation(provider),
                "total": 8,
                "reserved": 8,
            }
            if client.put(path, body).status == 200:
                is_small.set()

    def act(number: int) -> None:
        client = PlacementClient()
        if number % 2:
            shrink(client)
            return
        late = 0
        while late < 3:
            is_late = is_small.is_set()
            late += is_late
            status = client.allocate(uuid(), {provider: {"VCPU": 1}}).status
            (put_after if is_late else put_before).append(status)

    assert all_at_once(act) == [None] * CONNECTIONS
    assert set(put_before) <= {204, 409}
    assert put_after == [409] * (CONNECTIONS // 2 * 3)
    assert placement.used(provider) == {"VCPU": put_before.count(204)}
    assert drift() == []


def test_a_trait_is_deleted_or_used_but_not_both(placement: PlacementClient) -> None:
    for round_number in range(4):
        name = f"CUSTOM_RACED_{round_number}"
        placement.put(f"/traits/{name}")
        providers = [placement.make_provider() for _ in range(CONNECTIONS)]

        def act(number: int, name: str = name, providers: list[str] = providers) -> Answer:
            client = PlacementClient()
            if number % 2:
                return client.delete(f"/traits/{name}")
            body = {"traits": [name], "resource_provider_generation": 0}
            return client.put(f"/resource_providers/{providers[number]}/traits", body)

        answers = all_at_once(act)
        assert set(statuses(answers)) <= {200, 204, 400, 404, 409}
        users = sum(answer.status == 200 for answer in answers[::2])
        deletions = sum(answer.status == 204 for answer in answers[1::2])
        assert ProviderTrait.objects.filter(trait__name=name).count() == users
        assert (deletions, bool(users)) in {(1, False), (0, True)}
        assert (placement.get(f"/traits/{name}").status == 204) == bool(users)


def test_a_class_is_deleted_or_used_but_not_both(placement: PlacementClient) -> None:
    for round_number in range(4):
        name = f"CUSTOM_RACED_{round_number}"
        placement.put(f"/resource_classes/{name}")
        providers = [placement.make_provider() for _ in range(CONNECTIONS)]

        def act(number: int, name: str = name, providers: list[str] = providers) -> Answer:
            client = PlacementClient()
            if number % 2:
                return client.delete(f"/resource_classes/{name}")
            body = {"resource_class": name, "total": 1}
            return client.post(f"/resource_providers/{providers[number]}/inventories", body)

        answers = all_at_once(act)
        assert set(statuses(answers)) <= {201, 204, 400, 404, 409}
        users = sum(answer.status == 201 for answer in answers[::2])
        deletions = sum(answer.status == 204 for answer in answers[1::2])
        assert Inventory.objects.filter(resource_class__name=name).count() == users
        assert (deletions, bool(users)) in {(1, False), (0, True)}


def test_a_name_goes_to_one_of_many_renames(placement: PlacementClient) -> None:
    providers = [placement.make_provider() for _ in range(CONNECTIONS)]

    def rename(number: int) -> Answer:
        return PlacementClient().put(f"/resource_providers/{providers[number]}", {"name": "wanted"})

    answers = all_at_once(rename)
    assert statuses(answers) == {200: 1, 409: CONNECTIONS - 1}
    codes = {answer.error["code"] for answer in answers if answer.status == 409}
    assert codes == {"placement.duplicate_name"}
    assert ResourceProvider.objects.filter(name="wanted").count() == 1


def test_traits_and_allocations_of_one_provider_hold_each_other_up_at_most(
    placement: PlacementClient,
) -> None:
    provider = placement.make_provider(VCPU=1000)

    def act(number: int) -> list[Answer]:
        client = PlacementClient()
        if number % 4:
            return [client.allocate(uuid(), {provider: {"VCPU": 1}}) for _ in range(6)]
        answers = []
        for turn in range(6):
            body = {
                "traits": ["HW_CPU_X86_SSE"] if turn % 2 else [],
                "resource_provider_generation": client.generation(provider),
            }
            answers.append(client.put(f"/resource_providers/{provider}/traits", body))
        return answers

    answers = all_at_once(act)
    traits = [answer for listed in answers[::4] for answer in listed]
    assert set(statuses(traits)) <= {200, 409}
    allocations = [
        answer for number, listed in enumerate(answers) if number % 4 for answer in listed
    ]
    assert statuses(allocations) == {204: 12 * 6}
    assert placement.used(provider) == {"VCPU": 12 * 6}


def test_an_aggregate_that_is_deleted_meanwhile_is_made_anew(placement: PlacementClient) -> None:
    provider, aggregate = placement.make_provider(), uuid()
    Aggregate.objects.create(uuid=aggregate)
    answers: list[Answer] = []

    def put() -> None:
        body = {"aggregates": [aggregate], "resource_provider_generation": 0}
        path = f"/resource_providers/{provider}/aggregates"
        answers.append(PlacementClient().put(path, body))
        connection.close()

    writer = threading.Thread(target=put)
    with transaction.atomic():
        assert Aggregate.objects.filter(uuid=aggregate).delete()[0] == 1
        writer.start()
        wait_for_a_blocked_session()
    writer.join(timeout=60)
    assert [answer.status for answer in answers] == [200]
    shown = placement.get(f"/resource_providers/{provider}/aggregates").json
    assert shown["aggregates"] == [aggregate]


def test_rooms_are_exact_while_allocations_and_planners_change_them(settings: Any) -> None:
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": "placement"})
    hosts = [make_host(f"h{number}", memory_gib=64, vcpus=64) for number in range(4)]
    rebuild_host_capacity()
    reconcile_hosts()
    one = ResourceVector(memory_bytes=GIB, vcpus=1)

    def act(number: int) -> list[int]:
        client = PlacementClient(X_Roles="admin,service")
        statuses_seen: list[int] = []
        consumer = uuid()
        for turn in range(10):
            here, there = hosts[(number + turn) % 4], hosts[(number + turn + 1) % 4]
            if number % 4 == 0:
                with transaction.atomic():
                    refused = move_blocks(ReservationKind.FAILOVER, {here.pk: one, there.pk: one})
                    transaction.set_rollback(bool(refused))
                with transaction.atomic():
                    gone = ResourceVector(memory_bytes=-GIB, vcpus=-1)
                    if not refused:
                        move_blocks(ReservationKind.FAILOVER, {here.pk: gone, there.pk: gone})
                continue
            held = {here.openstack_id: {"VCPU": 1, "MEMORY_MB": 1024}}
            if turn % 5 == 4:
                statuses_seen.append(client.delete(f"/allocations/{consumer}").status)
            else:
                statuses_seen.append(client.allocate(consumer, held, version="1.27").status)
        return statuses_seen

    counted = [status for listed in all_at_once(act) for status in listed]
    assert set(counted) == {204}
    assert drift_from("placement") == []
    assert drift() == []
    rooms = HostCapacity.objects.all()
    assert {room.failover_memory_bytes for room in rooms} == {0}
    assert sum(room.allocated_vcpus for room in rooms) == 0
