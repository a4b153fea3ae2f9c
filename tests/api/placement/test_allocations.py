"""Allocations, usages of projects and the reshaper (spec placement, 4.8-4.10, 5.2, 5.5-5.8, 12)."""

from __future__ import annotations

from typing import Any

import pytest

from placement import metrics
from placement.models import AllocationEvent, Consumer
from tests.factories import make_commitment, make_host, make_reservation, make_slot
from tests.placement.client import PlacementClient, consumer_body, drift, uuid

pytestmark = pytest.mark.django_db

A, B, C = "a", "b", "c"


@pytest.mark.parametrize(
    ("capacity", "before", "after", "fits"),
    [
        pytest.param(10, {}, {A: 10}, True, id="all of it"),
        pytest.param(10, {}, {A: 11}, False, id="more than all"),
        pytest.param(10, {A: 7, B: 7}, {A: 6}, True, id="over capacity, shrinks"),
        pytest.param(10, {A: 7, B: 7}, {A: 7}, True, id="over capacity, stays"),
        pytest.param(10, {A: 7, B: 7}, {A: 8}, False, id="over capacity, grows"),
        pytest.param(10, {A: 7, B: 7}, {C: 1}, False, id="over capacity, one more"),
        pytest.param(10, {A: 7, B: 7}, {A: 6, B: 8}, True, id="over capacity, swap"),
        pytest.param(10, {A: 10}, {A: 0, B: 10}, True, id="move of a full provider"),
        pytest.param(10, {A: 10}, {B: 10}, False, id="full"),
    ],
)
def test_fit(
    placement: PlacementClient,
    capacity: int,
    before: dict[str, int],
    after: dict[str, int],
    fits: bool,
) -> None:
    provider = placement.make_provider(VCPU=100)
    consumers = {name: uuid() for name in (A, B, C)}
    for name, amount in before.items():
        assert placement.allocate(consumers[name], {provider: {"VCPU": amount}}).status == 204
    placement.set_inventory(provider, VCPU=capacity)
    body = {
        consumers[name]: consumer_body(
            {provider: {"VCPU": amount}} if amount else {},
            generation=1 if name in before else None,
        )
        for name, amount in after.items()
    }
    answer = placement.post("/allocations", body, version="1.28")
    assert answer.status == (204 if fits else 409), answer.content
    stored = {**before, **after} if fits else before
    assert placement.used(provider) == {"VCPU": sum(stored.values())}
    if not fits:
        assert "The requested amount would exceed the capacity" in answer.error["detail"]
        assert answer.error["code"] == "placement.undefined_code"
    assert drift() == []


@pytest.mark.sql(
    "placement_replace_allocations",
    "placement_delete_allocations",
    "placement_consumer_allocations",
    "placement_allocate_new",
)
def test_life_of_a_consumer(placement: PlacementClient) -> None:
    provider = placement.make_provider(VCPU=10)
    consumer = uuid()

    def put(amount: int, generation: int | None, version: str = "1.28") -> Any:
        held = {provider: {"VCPU": amount}} if amount else {}
        return placement.allocate(consumer, held, generation=generation, version=version)

    def stored() -> Any:
        return placement.get(f"/allocations/{consumer}").json.get("consumer_generation")

    assert put(1, None).status == 204
    assert stored() == 1
    refused = put(1, None)
    assert (refused.status, refused.error["code"]) == (409, "placement.concurrent_update")
    assert "expected 1 but got None" in refused.error["detail"]
    assert put(2, 1).status == 204
    assert stored() == 2
    assert put(0, 2).status == 204
    assert not Consumer.objects.exists()
    assert put(1, None).status == 204
    assert put(0, 1).status == 204
    assert put(0, None).status == 204, "nothing is left of an empty write"
    assert not Consumer.objects.exists()
    unknown = put(1, 5)
    assert "expected null but got 5" in unknown.error["detail"]
    assert put(11, None).status == 409
    assert not Consumer.objects.exists()
    assert put(1, None, "1.27").status == 204
    assert put(3, None, "1.27").status == 204
    assert stored() == 2
    for wrong in (0, -1, 1 << 40):
        assert f"expected 2 but got {wrong}" in put(1, wrong).error["detail"]
    assert placement.delete(f"/allocations/{consumer}").status == 204
    gone = placement.delete(f"/allocations/{consumer}")
    assert gone.status == 404
    assert f"No allocations for consumer '{consumer}'" in gone.error["detail"]


@pytest.mark.parametrize("case", ["second over capacity", "second of another generation"])
def test_many_consumers_succeed_together_or_not_at_all(
    placement: PlacementClient, case: str
) -> None:
    provider = placement.make_provider(VCPU=10)
    first, second = uuid(), uuid()
    placement.allocate(second, {provider: {"VCPU": 1}})
    is_capacity = case == "second over capacity"
    body = {
        first: consumer_body({provider: {"VCPU": 1}}),
        second: consumer_body(
            {provider: {"VCPU": 10 if is_capacity else 1}}, generation=1 if is_capacity else 3
        ),
    }
    answer = placement.post("/allocations", body, version="1.28")
    assert answer.status == 409
    if not is_capacity:
        assert "expected 1 but got 3" in answer.error["detail"]
    assert placement.held(first) == {}
    assert placement.held(second) == {provider: {"VCPU": 1}}
    assert placement.generation(provider) == 2


def test_generations_of_providers(placement: PlacementClient) -> None:
    left, right = (placement.make_provider(VCPU=10) for _ in range(2))
    consumer = uuid()

    def generations() -> tuple[int, int]:
        return placement.generation(left), placement.generation(right)

    def put(held: dict[str, dict[str, int]]) -> None:
        assert placement.allocate(consumer, held, version="1.27").status == 204

    put({left: {"VCPU": 1}})
    assert generations() == (2, 1)
    put({left: {"VCPU": 1}, right: {"VCPU": 1}})
    assert generations() == (3, 2)
    put({right: {"VCPU": 1}})
    assert generations() == (3, 3), "a provider that is named no more keeps its generation"
    empty = placement.allocate(consumer, {}, generation=3)
    assert empty.status == 204
    assert generations() == (3, 4), "all given up raises it"
    put({left: {"VCPU": 1}})
    assert placement.delete(f"/allocations/{consumer}").status == 204
    assert generations() == (4, 4), "a deletion does not"


@pytest.mark.sql("placement_refuse_allocations")
@pytest.mark.parametrize(
    ("resources", "status", "fragment"),
    [
        ({"PCI_DEVICE": 1}, 409, "Inventory for 'PCI_DEVICE' on resource provider"),
        ({"NOPE": 1}, 400, "No such resource class NOPE."),
        ({"DISK_GB": 15}, 409, "would violate inventory constraints"),
        ({"DISK_GB": 5}, 409, "would violate inventory constraints"),
        ({"DISK_GB": 1010}, 409, "would violate inventory constraints"),
        ({"VCPU": 1 << 62}, 409, "would violate inventory constraints"),
        ({"VCPU": 11}, 409, "would exceed the capacity"),
    ],
)
def test_amounts_that_are_refused(
    placement: PlacementClient, resources: dict[str, int], status: int, fragment: str
) -> None:
    disk = {"total": 2048, "step_size": 10, "min_unit": 10, "max_unit": 1000}
    provider = placement.make_provider(VCPU=10, DISK_GB=disk)
    consumer = uuid()
    answer = placement.allocate(consumer, {provider: resources})
    assert answer.status == status
    assert "Unable to allocate inventory" in answer.error["detail"]
    assert fragment in answer.error["detail"]
    assert (f"for consumer {consumer}" in answer.error["detail"]) == (status == 400)


def test_a_conflict_of_generations_is_told_before_an_unknown_provider(
    placement: PlacementClient,
) -> None:
    provider, unknown, consumer = placement.make_provider(VCPU=1), uuid(), uuid()
    placement.allocate(consumer, {provider: {"VCPU": 1}})
    assert placement.allocate(consumer, {unknown: {"VCPU": 1}}).status == 409
    answer = placement.allocate(consumer, {unknown: {"VCPU": 1}}, generation=1)
    assert answer.status == 400
    wanted = f"Allocation for resource provider '{unknown}' that does not exist."
    assert wanted in answer.error["detail"]
    body = {consumer: consumer_body({unknown: {"VCPU": 1}})}
    assert placement.post("/allocations", body, version="1.28").status == 409


def test_old_bodies_are_lists_and_name_no_owner(placement: PlacementClient) -> None:
    provider, consumer = placement.make_provider(VCPU=9), uuid()
    entry = {"resource_provider": {"uuid": provider}, "resources": {"VCPU": 1}}
    twice = [entry, {**entry, "resources": {"VCPU": 2}}]
    path = f"/allocations/{consumer.replace('-', '').upper()}"
    assert placement.put(path, {"allocations": twice}, version="1.0").status == 204
    shown = placement.get(f"/allocations/{consumer}").json
    assert shown == {
        "allocations": {provider: {"resources": {"VCPU": 2}, "generation": 2}},
        "project_id": "00000000-0000-0000-0000-000000000000",
        "user_id": "00000000-0000-0000-0000-000000000000",
        "consumer_generation": 1,
        "consumer_type": "unknown",
    }


@pytest.mark.sql("placement_provider_allocations")
@pytest.mark.parametrize(
    ("version", "keys"),
    [
        ("1.11", set()),
        ("1.12", {"project_id", "user_id"}),
        ("1.28", {"project_id", "user_id", "consumer_generation"}),
        ("1.38", {"project_id", "user_id", "consumer_generation", "consumer_type"}),
    ],
)
def test_what_is_shown_of_a_consumer(
    placement: PlacementClient, version: str, keys: set[str]
) -> None:
    provider, consumer = placement.make_provider(VCPU=9), uuid()
    nobody = placement.get(f"/allocations/{uuid()}", version=version)
    assert (nobody.status, nobody.json) == (200, {"allocations": {}})
    placement.allocate(consumer, {provider: {"VCPU": 1}})
    shown = placement.get(f"/allocations/{consumer}", version=version).json
    assert shown.keys() == {"allocations", *keys}
    held = placement.get(f"/resource_providers/{provider}/allocations", version=version).json
    assert ("consumer_generation" in held["allocations"][consumer]) == (version >= "1.28")


def test_owner_and_type_follow_the_last_write(placement: PlacementClient) -> None:
    provider, consumer = placement.make_provider(VCPU=9), uuid()
    held = {provider: {"VCPU": 1}}

    def shown() -> tuple[str, str, str]:
        body = placement.get(f"/allocations/{consumer}").json
        return body["project_id"], body["user_id"], body["consumer_type"]

    placement.allocate(consumer, held, version="1.38", consumer_type="INSTANCE")
    assert shown() == ("p", "u", "INSTANCE")
    placement.allocate(consumer, held, generation=1, project_id="q")
    assert shown() == ("q", "u", "INSTANCE"), "older versions keep the type"
    extra = {"consumer_type": "MIGRATION", "user_id": "v"}
    placement.allocate(consumer, held, generation=2, version="1.38", **extra)
    assert shown() == ("p", "v", "MIGRATION")
    refused = {"consumer_type": "OTHER", "project_id": "z"}
    full = {provider: {"VCPU": 10}}
    assert placement.allocate(consumer, full, generation=3, version="1.38", **refused).status == 409
    assert shown() == ("p", "v", "MIGRATION"), "a refusal changes nothing"


@pytest.mark.parametrize(
    ("version", "query", "usages"),
    [
        ("1.37", "", {"VCPU": 3, "MEMORY_MB": 512, "DISK_GB": 10}),
        (
            "1.38",
            "",
            {
                "INSTANCE": {"VCPU": 3, "MEMORY_MB": 512, "consumer_count": 2},
                "unknown": {"DISK_GB": 10, "consumer_count": 1},
            },
        ),
        (
            "1.38",
            "&consumer_type=all",
            {"all": {"VCPU": 3, "MEMORY_MB": 512, "DISK_GB": 10, "consumer_count": 3}},
        ),
        ("1.38", "&consumer_type=unknown", {"unknown": {"DISK_GB": 10, "consumer_count": 1}}),
        (
            "1.38",
            "&consumer_type=INSTANCE",
            {"INSTANCE": {"VCPU": 3, "MEMORY_MB": 512, "consumer_count": 2}},
        ),
        ("1.38", "&consumer_type=MIGRATION", {}),
        ("1.38", "&user_id=nobody", {}),
        ("1.9", "&user_id=nobody", {}),
    ],
)
def test_usages_of_a_project(
    placement: PlacementClient, version: str, query: str, usages: dict[str, Any]
) -> None:
    provider = placement.make_provider(VCPU=9, MEMORY_MB=4096, DISK_GB=100)
    typed: dict[str, Any] = {"version": "1.38", "consumer_type": "INSTANCE"}
    placement.allocate(uuid(), {provider: {"VCPU": 2, "MEMORY_MB": 512}}, **typed)
    placement.allocate(uuid(), {provider: {"VCPU": 1}}, **typed)
    placement.allocate(uuid(), {provider: {"DISK_GB": 10}})
    placement.allocate(uuid(), {provider: {"DISK_GB": 10}}, project_id="other")
    shown = placement.get(f"/usages?project_id=p{query}", version=version)
    assert shown.json == {"usages": usages}
    assert placement.get("/usages", version=version).status == 400


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        pytest.param("", {"INSTANCE", "COMMITMENT", "FAILOVER"}, id="every type"),
        pytest.param("&consumer_type=COMMITMENT", {"COMMITMENT"}, id="commitments"),
        pytest.param("&consumer_type=FAILOVER", {"FAILOVER"}, id="failover"),
        pytest.param("&consumer_type=INSTANCE", {"INSTANCE"}, id="VMs"),
        pytest.param("&consumer_type=all", {"all"}, id="all added up counts VMs once"),
        pytest.param("&user_id=u", {"INSTANCE"}, id="reservations have no user"),
    ],
)
def test_usages_show_what_is_sold_and_held_beside_what_is_used(
    placement: PlacementClient, query: str, shown: set[str]
) -> None:
    host = make_host("h1", zone="az-a")
    commitment = make_commitment(project_id="p", zone="az-a")
    make_slot(commitment, host, memory_gib=4, vcpus=1)
    make_slot(commitment, host, memory_gib=4, vcpus=2)
    make_slot(commitment, None)
    make_reservation(host, memory_gib=2, vcpus=1, project_id="p")
    make_reservation(host, memory_gib=2, vcpus=1, project_id="other")
    provider = placement.make_provider(VCPU=9, MEMORY_MB=4096)
    placement.allocate(uuid(), {provider: {"VCPU": 2}}, version="1.38", consumer_type="INSTANCE")
    whole = {
        "INSTANCE": {"VCPU": 2, "consumer_count": 1},
        "all": {"VCPU": 2, "consumer_count": 1},
        "COMMITMENT": {"VCPU": 3, "MEMORY_MB": 8192, "consumer_count": 2},
        "FAILOVER": {"VCPU": 1, "MEMORY_MB": 2048, "consumer_count": 1},
    }
    answer = placement.get(f"/usages?project_id=p{query}", version="1.38")
    assert answer.json == {"usages": {kind: whole[kind] for kind in shown}}
    older = placement.get("/usages?project_id=p", version="1.37")
    assert older.json == {"usages": {"VCPU": 2}}


def test_a_type_that_clients_write_is_theirs_whatever_reservations_hold(
    placement: PlacementClient,
) -> None:
    make_slot(make_commitment(project_id="p", zone="az-a"), make_host("h1", zone="az-a"))
    provider = placement.make_provider(VCPU=9)
    placement.allocate(uuid(), {provider: {"VCPU": 2}}, version="1.38", consumer_type="COMMITMENT")
    answer = placement.get("/usages?project_id=p", version="1.38")
    assert answer.json == {"usages": {"COMMITMENT": {"VCPU": 2, "consumer_count": 1}}}


def test_usages_of_the_reference_know_no_reservations(
    placement: PlacementClient, settings: Any
) -> None:
    make_slot(make_commitment(project_id="p", zone="az-a"), make_host("h1", zone="az-a"))
    strict = settings.HEADROOM.placement.model_copy(update={"strict_reference": True})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"placement": strict})
    assert placement.get("/usages?project_id=p", version="1.38").json == {"usages": {}}


def reshape(placement: PlacementClient, inventories: Any, allocations: Any = None) -> Any:
    body = {
        "inventories": {
            provider: {
                "resource_provider_generation": generation,
                "inventories": {name: {"total": total} for name, total in classes.items()},
            }
            for provider, (generation, classes) in inventories.items()
        },
        "allocations": allocations or {},
    }
    return placement.post("/reshaper", body, X_Roles="service", version="1.30")


def test_a_class_moves_to_a_child_and_back(placement: PlacementClient) -> None:
    parent = placement.make_provider(VCPU=8, DISK_GB=8)
    child, consumer = placement.make_provider(parent=parent), uuid()
    placement.allocate(consumer, {parent: {"VCPU": 1, "DISK_GB": 1}})
    for _ in range(3):
        placement.set_inventory(parent, VCPU=8, DISK_GB=8)
    assert placement.generation(parent) == 5
    moved = {consumer: consumer_body({parent: {"VCPU": 1}, child: {"DISK_GB": 1}}, generation=1)}
    assert (
        reshape(placement, {parent: (5, {"VCPU": 8}), child: (0, {"DISK_GB": 8})}, moved).status
        == 204
    )
    assert placement.generation(parent) == 8
    assert placement.generation(child) == 3
    assert placement.held(consumer) == {parent: {"VCPU": 1}, child: {"DISK_GB": 1}}
    again = reshape(placement, {parent: (5, {"VCPU": 8}), child: (0, {"DISK_GB": 8})}, moved)
    assert (again.status, again.error["code"]) == (409, "placement.concurrent_update")
    assert f"for provider {parent}: actual: 8, given: 5" in again.error["detail"]
    back = {
        consumer: consumer_body(
            {parent: {"VCPU": 1, "DISK_GB": 1}, child: {"DISK_GB": 1}}, generation=2
        )
    }
    assert (
        reshape(placement, {parent: (8, {"VCPU": 8, "DISK_GB": 8}), child: (3, {})}, back).status
        == 409
    )
    back[consumer]["allocations"].pop(child)
    assert (
        reshape(placement, {parent: (8, {"VCPU": 8, "DISK_GB": 8}), child: (3, {})}, back).status
        == 204
    )
    assert placement.generation(parent) == 11
    assert placement.used(child) == {}
    assert drift() == []


def test_reshapes_that_are_refused_change_nothing(placement: PlacementClient) -> None:
    provider, consumer = placement.make_provider(VCPU=8), uuid()
    placement.allocate(consumer, {provider: {"VCPU": 4}})
    held = {consumer: consumer_body({provider: {"VCPU": 4}}, generation=1)}
    stale = {consumer: consumer_body({provider: {"VCPU": 4}}, generation=7)}
    elsewhere = {consumer: consumer_body({uuid(): {"VCPU": 4}}, generation=1)}
    cases = [
        (reshape(placement, {provider: (2, {})}), 409, "placement.inventory.inuse"),
        (reshape(placement, {provider: (1, {"VCPU": 8})}), 409, "placement.concurrent_update"),
        (reshape(placement, {provider: (2, {"VCPU": 3})}, {
            uuid(): consumer_body({provider: {"VCPU": 1}})}), 409, "placement.undefined_code"),
        (reshape(placement, {provider: (2, {"VCPU": 8})}, stale), 409,
         "placement.concurrent_update"),
        (reshape(placement, {provider: (2, {"NOPE": 8})}), 400, "placement.undefined_code"),
        (reshape(placement, {uuid(): (2, {})}), 400, "placement.resource_provider.not_found"),
        (reshape(placement, {provider: (2, {"VCPU": 8})}, elsewhere), 400,
         "placement.undefined_code"),
        (reshape(placement, {}, held), 400, "placement.undefined_code"),
    ]  # fmt: skip
    for answer, status, code in cases:
        assert (answer.status, answer.error["code"]) == (status, code)
    assert placement.generation(provider) == 2
    assert placement.held(consumer) == {provider: {"VCPU": 4}}
    assert reshape(placement, {provider: (2, {"VCPU": 9})}).status == 204
    assert drift() == []


@pytest.mark.parametrize(
    ("if_match", "status"),
    [(None, 204), ("1", 204), ('"1"', 204), ("2", 409), ("bogus", 400)],
)
def test_a_deletion_may_name_the_generation_it_means(
    placement: PlacementClient, if_match: str | None, status: int
) -> None:
    provider, consumer = placement.make_provider(VCPU=8), uuid()
    placement.allocate(consumer, {provider: {"VCPU": 4}})
    headers = {"If_Match": if_match} if if_match else {}
    assert placement.delete(f"/allocations/{consumer}", **headers).status == status
    assert bool(placement.held(consumer)) == (status != 204)


def test_history_tells_who_held_what(placement: PlacementClient) -> None:
    provider, first, second = placement.make_provider(VCPU=8, DISK_GB=8), uuid(), uuid()
    placement.allocate(first, {provider: {"VCPU": 4, "DISK_GB": 1}})
    placement.allocate(first, {provider: {"VCPU": 4}}, generation=1)
    placement.post(
        "/allocations",
        {
            first: consumer_body({}, generation=2),
            second: consumer_body({provider: {"VCPU": 5}}),
        },
        version="1.28",
    )
    answer = placement.delete(f"/allocations/{second}")
    told = [
        (str(event.consumer_uuid), event.resource_class, event.previous, event.amount)
        for event in AllocationEvent.objects.order_by("id")
    ]
    assert sorted(told[:2]) == [(first, "DISK_GB", 0, 1), (first, "VCPU", 0, 4)]
    assert told[2] == (first, "DISK_GB", 1, 0)
    assert sorted(told[3:5]) == sorted([(first, "VCPU", 4, 0), (second, "VCPU", 0, 5)])
    assert told[5:] == [(second, "VCPU", 5, 0)]
    last = AllocationEvent.objects.latest("id")
    assert (last.actor, last.request_id) == ("admin", answer.headers["x-openstack-request-id"])
    assert str(last.provider_uuid) == provider


@pytest.mark.parametrize(
    "text",
    ["a,b", 'quo"te', "back\\slash", "{brace}", "NULL", "null", " space ", "é\u2028", "'", "\\"],
)
def test_names_come_back_as_they_were_sent(placement: PlacementClient, text: str) -> None:
    provider, consumer = placement.make_provider(VCPU=8), uuid()
    owner: dict[str, Any] = {"project_id": text, "user_id": f"{text}{text}"}
    held = {provider: {"VCPU": 1}}
    assert placement.allocate(consumer, held, **owner).status == 204
    shown = placement.get(f"/allocations/{consumer}").json
    assert {key: shown[key] for key in owner} == owner
    listed = placement.allocate(uuid(), held, **owner, version="1.12")
    assert listed.status == 204


def test_writes_and_their_refusals_are_counted(placement: PlacementClient) -> None:
    def count(kind: str, result: str) -> float:
        (family,) = metrics.WRITE_SECONDS.labels(kind=kind, result=result).collect()
        return next(float(s.value) for s in family.samples if s.name.endswith("_count"))

    def refused(reason: str) -> float:
        return float(metrics.CONFLICTS.labels(reason=reason)._value.get())

    provider, consumer = placement.make_provider(VCPU=8), uuid()
    before = {kind: count(kind, "ok") for kind in ("put", "post", "delete", "reshape")}
    full = refused("capacity")
    placement.allocate(consumer, {provider: {"VCPU": 4}})
    placement.allocate(uuid(), {provider: {"VCPU": 5}})
    body = {consumer: consumer_body({provider: {"VCPU": 1}}, generation=1)}
    placement.post("/allocations", body, version="1.28")
    reshape(placement, {provider: (3, {"VCPU": 9})})
    placement.delete(f"/allocations/{consumer}")
    assert {kind: count(kind, "ok") - before[kind] for kind in before} == dict.fromkeys(before, 1)
    assert refused("capacity") == full + 1
