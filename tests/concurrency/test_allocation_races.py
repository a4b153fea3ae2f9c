"""Sixteen connections on the Placement API: the properties of spec placement, 9.3 and 9.6."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.concurrency.at_once import CONNECTIONS, all_at_once
from tests.placement.client import (
    Answer,
    PlacementClient,
    consumer_body,
    drift,
    placement_settings,
    uuid,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _open_server(settings: Any) -> None:
    placement_settings(settings, enforce_new_defaults=False)


@pytest.fixture
def placement() -> PlacementClient:
    return PlacementClient()


def statuses(answers: list[Any]) -> Counter[Any]:
    return Counter(
        answer.status if isinstance(answer, Answer) else repr(answer) for answer in answers
    )


def test_the_last_slots_go_to_as_many_writers_as_there_are_slots(
    placement: PlacementClient,
) -> None:
    provider = placement.make_provider(VCPU=40)

    def take(_: int) -> list[int]:
        client = PlacementClient()
        return [client.allocate(uuid(), {provider: {"VCPU": 1}}).status for _ in range(4)]

    counted = Counter(status for listed in all_at_once(take) for status in listed)
    assert counted == {204: 40, 409: 24}
    assert placement.used(provider) == {"VCPU": 40}
    assert drift() == []


def test_one_of_many_creators_of_a_consumer_succeeds(placement: PlacementClient) -> None:
    provider = placement.make_provider(VCPU=1000)
    consumers = [uuid() for _ in range(5)]
    for consumer in consumers:

        def create(number: int, consumer: str = consumer) -> Answer:
            return PlacementClient().allocate(consumer, {provider: {"VCPU": number + 1}})

        answers = all_at_once(create)
        assert statuses(answers) == {204: 1, 409: CONNECTIONS - 1}
        refused = [answer for answer in answers if answer.status == 409]
        assert all("expected 1 but got None" in answer.error["detail"] for answer in refused)
    assert drift() == []


def test_one_of_many_writers_with_the_same_generation_succeeds(
    placement: PlacementClient,
) -> None:
    provider = placement.make_provider(VCPU=1000)
    consumer = uuid()
    placement.allocate(consumer, {provider: {"VCPU": 1}})
    answers = all_at_once(
        lambda number: PlacementClient().allocate(
            consumer, {provider: {"VCPU": number + 2}}, generation=1
        )
    )
    assert statuses(answers) == {204: 1, 409: CONNECTIONS - 1}
    assert placement.get(f"/allocations/{consumer}").json["consumer_generation"] == 2
    assert drift() == []


def test_a_consumer_that_is_deleted_while_others_write_it_is_whole_afterwards(
    placement: PlacementClient,
) -> None:
    provider = placement.make_provider(VCPU=1000)
    consumer = uuid()

    def write(number: int) -> list[int]:
        client = PlacementClient()
        if number % 2:
            return [client.delete(f"/allocations/{consumer}").status for _ in range(6)]
        return [
            client.allocate(consumer, {provider: {"VCPU": 1}}, version="1.27").status
            for _ in range(6)
        ]

    counted = Counter(status for listed in all_at_once(write) for status in listed)
    assert set(counted) <= {204, 404}
    assert drift() == []
    held = placement.held(consumer)
    assert placement.used(provider)["VCPU"] == held.get(provider, {}).get("VCPU", 0)


def test_swaps_in_opposite_order_do_not_deadlock(placement: PlacementClient) -> None:
    providers = [placement.make_provider(VCPU=100) for _ in range(2)]
    consumers = [uuid() for _ in range(2)]

    def swap(number: int) -> list[Answer]:
        client = PlacementClient(version="1.27")
        order = (0, 1) if number % 2 else (1, 0)
        answers = []
        for turn in range(6):
            body = {
                consumers[index]: consumer_body(
                    {providers[(index + turn) % 2]: {"VCPU": 1 + index}}, version="1.27"
                )
                for index in order
            }
            answers.append(client.post("/allocations", body))
        return answers

    answers = [answer for listed in all_at_once(swap) for answer in listed]
    assert statuses(answers) == {204: CONNECTIONS * 6}
    assert drift() == []


def test_inventory_is_deleted_or_allocated_but_not_both(placement: PlacementClient) -> None:
    for _ in range(4):
        provider = placement.make_provider(VCPU=10, MEMORY_MB=10)

        def act(number: int, provider: str = provider) -> Answer:
            client = PlacementClient()
            if number % 2:
                return client.delete(f"/resource_providers/{provider}/inventories/VCPU")
            return client.allocate(uuid(), {provider: {"VCPU": 1}})

        answers = all_at_once(act)
        assert set(statuses(answers)) <= {204, 404, 409}
        usages = placement.used(provider)
        allocated = sum(answer.status == 204 for answer in answers[::2])
        assert usages.get("VCPU", 0) == allocated
        assert (allocated == 0) == ("VCPU" not in usages)
    assert drift() == []


def test_a_provider_is_deleted_or_allocated_but_not_both(placement: PlacementClient) -> None:
    for _ in range(4):
        provider = placement.make_provider(VCPU=100)

        def act(number: int, provider: str = provider) -> Answer:
            client = PlacementClient()
            if number % 2:
                return client.delete(f"/resource_providers/{provider}")
            return client.allocate(uuid(), {provider: {"VCPU": 1}})

        answers = all_at_once(act)
        assert set(statuses(answers)) <= {204, 400, 404, 409}
        allocated = any(answer.status == 204 for answer in answers[::2])
        is_there = placement.get(f"/resource_providers/{provider}").status == 200
        assert is_there == allocated
    assert drift() == []


def test_a_parent_is_deleted_or_gets_a_child_but_not_both(placement: PlacementClient) -> None:
    for _ in range(4):
        parent = placement.make_provider()

        def act(number: int, parent: str = parent) -> Answer:
            client = PlacementClient()
            if number % 2:
                return client.delete(f"/resource_providers/{parent}")
            child = {"name": uuid(), "parent_provider_uuid": parent}
            return client.post("/resource_providers", child)

        answers = all_at_once(act)
        assert set(statuses(answers)) <= {200, 204, 400, 404, 409}
        has_child = any(answer.status == 200 for answer in answers[::2])
        is_there = placement.get(f"/resource_providers/{parent}").status == 200
        assert is_there == has_child


def test_moves_that_would_form_a_loop_together_do_not(placement: PlacementClient) -> None:
    nodes = [placement.make_provider(name=f"node-{index}") for index in range(CONNECTIONS)]

    def move(number: int) -> Answer:
        body = {
            "name": f"node-{number}",
            "parent_provider_uuid": nodes[(number + 1) % CONNECTIONS],
        }
        return PlacementClient().put(f"/resource_providers/{nodes[number]}", body)

    answers = all_at_once(move)
    assert statuses(answers) == {200: CONNECTIONS - 1, 400: 1}
    (refused,) = [index for index, answer in enumerate(answers) if answer.status == 400]
    shown = [placement.get(f"/resource_providers/{node}").json for node in nodes]
    assert {node["root_provider_uuid"] for node in shown} == {nodes[refused]}


def test_children_made_while_their_tree_moves_have_its_new_root(
    placement: PlacementClient,
) -> None:
    roots = [placement.make_provider() for _ in range(2)]
    middle = placement.make_provider(name="middle", parent=roots[0])

    def act(number: int) -> list[Answer]:
        client = PlacementClient()
        if number % 2:
            body = [
                {"name": "middle", "parent_provider_uuid": roots[turn % 2]} for turn in range(4)
            ]
            return [client.put(f"/resource_providers/{middle}", each) for each in body]
        return [
            client.post("/resource_providers", {"name": uuid(), "parent_provider_uuid": middle})
            for _ in range(4)
        ]

    answers = [answer for listed in all_at_once(act) for answer in listed]
    assert statuses(answers) == {200: CONNECTIONS * 4}
    root = placement.get(f"/resource_providers/{middle}").json["root_provider_uuid"]
    tree = placement.get(f"/resource_providers?in_tree={middle}").json["resource_providers"]
    assert len(tree) == 2 + CONNECTIONS * 2
    assert {node["root_provider_uuid"] for node in tree} == {root}


@pytest.mark.parametrize("what", ["aggregate", "class", "trait", "project"])
def test_names_made_at_once_are_made_once(placement: PlacementClient, what: str) -> None:
    shared = uuid()
    providers = [placement.make_provider(VCPU=10) for _ in range(CONNECTIONS)]

    def make(number: int) -> Answer:
        client = PlacementClient()
        if what == "aggregate":
            body = {"aggregates": [shared], "resource_provider_generation": 1}
            return client.put(f"/resource_providers/{providers[number]}/aggregates", body)
        if what == "class":
            return client.put("/resource_classes/CUSTOM_RACED")
        if what == "trait":
            return client.put("/traits/CUSTOM_RACED")
        return client.allocate(uuid(), {providers[number]: {"VCPU": 1}}, project_id=shared)

    answers = statuses(all_at_once(make))
    expected = {"aggregate": {200: 16}, "project": {204: 16}}.get(what, {201: 1, 204: 15})
    assert answers == expected


def test_traits_written_with_one_generation_are_those_of_one_writer(
    placement: PlacementClient,
) -> None:
    provider = placement.make_provider()
    names = sorted(placement.get("/traits?name=startswith:HW_CPU_X86").json["traits"])

    def write(number: int) -> Answer:
        body = {"traits": [names[number]], "resource_provider_generation": 0}
        return PlacementClient().put(f"/resource_providers/{provider}/traits", body)

    assert statuses(all_at_once(write)) == {200: 1, 409: CONNECTIONS - 1}
    assert placement.generation(provider) == 1


class Chaos:
    """One client that does everything at random, and remembers nothing."""

    def __init__(self, seed: int, providers: list[str], consumers: list[str]) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a test
        self.providers = providers
        self.consumers = consumers
        self.client = PlacementClient(version="1.27")
        self.answers: Counter[tuple[str, int]] = Counter()

    def amounts(self) -> dict[str, dict[str, int]]:
        chosen = self.random.sample(self.providers, self.random.randint(1, 3))
        return {provider: {"VCPU": self.random.randint(1, 9)} for provider in chosen}

    def step(self) -> None:
        action = self.random.choice(
            [self.put, self.put, self.post, self.delete, self.resize, self.reshape]
        )
        answer = action()
        self.answers[(action.__name__, answer.status)] += 1

    def put(self) -> Answer:
        return self.client.allocate(
            self.random.choice(self.consumers), self.amounts(), version="1.27"
        )

    def post(self) -> Answer:
        chosen = self.random.sample(self.consumers, 2)
        first = consumer_body({}, version="1.27")
        second = consumer_body(self.amounts(), version="1.27")
        return self.client.post("/allocations", {chosen[0]: first, chosen[1]: second})

    def delete(self) -> Answer:
        return self.client.delete(f"/allocations/{self.random.choice(self.consumers)}")

    def resize(self) -> Answer:
        provider = self.random.choice(self.providers)
        body = {
            "resource_provider_generation": self.client.generation(provider),
            "total": self.random.randint(20, 40),
        }
        return self.client.put(f"/resource_providers/{provider}/inventories/VCPU", body)

    def reshape(self) -> Answer:
        provider = self.random.choice(self.providers)
        shown = self.client.get(f"/resource_providers/{provider}/inventories").json
        inventories = shown["inventories"]
        if self.random.random() < 0.5:
            inventories["CUSTOM_RESHAPED"] = {"total": self.random.randint(1, 9)}
        else:
            inventories.pop("CUSTOM_RESHAPED", None)
        consumer = self.random.choice(self.consumers)
        held = self.client.get(f"/allocations/{consumer}", version="1.39").json
        body = {
            "inventories": {
                provider: {
                    "resource_provider_generation": shown["resource_provider_generation"],
                    "inventories": inventories,
                }
            },
            "allocations": {
                consumer: consumer_body(
                    self.amounts(), version="1.30", generation=held.get("consumer_generation")
                )
            },
        }
        return self.client.post("/reshaper", body, version="1.30")


def test_everything_at_once_keeps_usage_exact_and_deadlocks_from_clients(
    placement: PlacementClient,
) -> None:
    placement.put("/resource_classes/CUSTOM_RESHAPED")
    providers = [placement.make_provider(VCPU=30) for _ in range(6)]
    consumers = [uuid() for _ in range(24)]
    chaos = [Chaos(seed, providers, consumers) for seed in range(CONNECTIONS)]

    def run(number: int) -> None:
        for _ in range(25):
            chaos[number].step()

    assert all_at_once(run) == [None] * CONNECTIONS
    counted: Counter[tuple[str, int]] = sum((each.answers for each in chaos), Counter())
    assert {status for _, status in counted} <= {200, 204, 404, 409}
    for action in ("put", "post", "delete", "resize", "reshape"):
        assert sum(n for (name, status), n in counted.items() if name == action and status < 300)
    assert drift() == []


def test_without_resizes_nothing_is_ever_overcommitted(placement: PlacementClient) -> None:
    providers = [placement.make_provider(VCPU=15) for _ in range(3)]
    consumers = [uuid() for _ in range(12)]
    chaos = [Chaos(100 + seed, providers, consumers) for seed in range(CONNECTIONS)]
    seen: list[int] = []

    def run(number: int) -> None:
        for _ in range(20):
            each = chaos[number]
            each.random.choice([each.put, each.post, each.delete])()
            seen.append(max(each.client.used(provider)["VCPU"] for provider in providers))

    assert all_at_once(run) == [None] * CONNECTIONS
    assert 10 < max(seen) <= 15
    assert drift() == []
