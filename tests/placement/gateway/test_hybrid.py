"""Hybrid mode before a real openstack-placement: every row of spec placement, 8.2 and 8.5."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from journal.actors import Actor
from placement.gateway import hybrid_writes
from placement.gateway.asking import by_service_account
from placement.gateway.split import Part, heal, parts_of, write_both
from placement.gateway.upstream import UpstreamAnswer
from placement.models import (
    Allocation,
    Consumer,
    ResourceClass,
    ResourceProvider,
    SplitConsumer,
    SplitWrite,
    Trait,
)
from placement.services.allocations import AllocationRequest, ConsumerWrite
from placement.tasks import settle_split_writes
from tests.concurrency.test_change_races import on_own_connection
from tests.e2e.placement_peers import PlacementServer, Request
from tests.placement.client import PlacementClient, consumer_body, drift, uuid
from tests.placement.gateway.conftest import MakeGateway
from tests.placement.gateway.cutting import CutLink
from tests.placement.rows import make_provider

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
OURS, THEIRS = "m-ours", "n-theirs"


class Both:
    """A provider of each side, seen through the gateway and directly."""

    def __init__(self, client: PlacementClient, theirs: PlacementServer) -> None:
        self.client, self.direct = client, theirs
        self.ours = str(make_provider(OURS, inventories={"VCPU": 8}, traits=("CUSTOM_OURS",)).uuid)
        self.theirs = client.make_provider(THEIRS, VCPU=8)

    def there(self, path: str, minor: int = 39) -> Any:
        return self.direct.get(path, minor)

    def put(self, consumer: str, ours: int, theirs: int, **extra: Any) -> Any:
        amounts = {self.ours: ours, self.theirs: theirs}
        wanted = {key: {"VCPU": amount} for key, amount in amounts.items() if amount}
        return self.client.allocate(consumer, wanted, **extra)

    def used(self) -> tuple[int, int]:
        ours, theirs = (self.client.used(one)["VCPU"] for one in (self.ours, self.theirs))
        assert self.there(f"/resource_providers/{self.theirs}/usages")["usages"]["VCPU"] == theirs
        assert drift() == []
        return ours, theirs

    def held(self, consumer: str) -> tuple[int, int]:
        held = self.client.held(consumer)
        return tuple(held.get(one, {}).get("VCPU", 0) for one in (self.ours, self.theirs))  # type: ignore[return-value]

    def generation(self, consumer: str) -> int | None:
        found = self.client.get(f"/allocations/{consumer}").json.get("consumer_generation")
        return None if found is None else int(found)


@pytest.fixture
def both(gateway: MakeGateway, theirs: PlacementServer) -> Both:
    return Both(gateway(), theirs)


def listed(client: PlacementClient, query: str = "") -> list[str]:
    answer = client.get(f"/resource_providers{query}")
    assert answer.status == 200, answer.content
    return [one["name"] for one in answer.json["resource_providers"]]


def test_providers_that_nobody_here_manages_are_theirs(both: Both) -> None:
    client = both.client
    assert both.there(f"/resource_providers/{both.theirs}")["name"] == THEIRS
    assert not ResourceProvider.objects.filter(uuid=both.theirs).exists()
    path = f"/resource_providers/{both.theirs}"
    assert client.put(path, {"name": "p-renamed"}).status == 200
    assert both.there(path)["name"] == "p-renamed"
    aggregate = uuid()
    body = {
        "aggregates": [aggregate],
        "resource_provider_generation": client.generation(both.theirs),
    }
    assert client.put(f"{path}/aggregates", body).status == 200
    assert client.put("/traits/CUSTOM_THEIRS").status == 201
    body = {
        "traits": ["CUSTOM_THEIRS"],
        "resource_provider_generation": client.generation(both.theirs),
    }
    assert client.put(f"{path}/traits", body).status == 200
    assert both.there(f"{path}/traits")["traits"] == ["CUSTOM_THEIRS"]
    for part in ("inventories", "usages", "aggregates", "traits", "allocations"):
        assert client.get(f"{path}/{part}").json == both.there(f"{path}/{part}")
    assert client.put(f"{path}/inventories/VCPU", {"total": 4}).status == 400
    assert client.delete(path).status == 204
    assert client.get(path).status == 404


def test_providers_of_ours_are_ours(both: Both) -> None:
    client, path = both.client, f"/resource_providers/{both.ours}"
    child = {"name": "m-child", "uuid": uuid(), "parent_provider_uuid": both.ours}
    assert client.post("/resource_providers", child).status == 200
    assert ResourceProvider.objects.get(uuid=child["uuid"]).root.name == OURS
    assert client.put(path, {"name": "m-renamed"}).status == 200
    assert client.get(f"{path}/traits").json["traits"] == ["CUSTOM_OURS"]
    body = {"aggregates": [uuid()], "resource_provider_generation": client.generation(both.ours)}
    assert client.put(f"{path}/aggregates", body).status == 200
    client.set_inventory(both.ours, VCPU=9)
    assert client.get(f"{path}/inventories").json["inventories"]["VCPU"]["total"] == 9
    assert client.get(f"{path}/usages").json["usages"] == {"VCPU": 0}
    assert client.get(f"{path}/allocations").json["allocations"] == {}
    names = [one["name"] for one in both.there("/resource_providers")["resource_providers"]]
    assert names == [THEIRS]
    assert client.delete(f"/resource_providers/{child['uuid']}").status == 204
    assert client.get(f"{path.upper()}").status == 404


def test_no_shadow_of_a_provider_of_ours(both: Both) -> None:
    client = both.client
    for body in ({"name": OURS}, {"name": "other", "uuid": both.ours}):
        answer = client.post("/resource_providers", body)
        assert answer.status == 409
        assert answer.error["code"] == "placement.duplicate_name"
    assert client.put(f"/resource_providers/{both.theirs}", {"name": OURS}).status == 409
    names = [one["name"] for one in both.there("/resource_providers")["resource_providers"]]
    assert names == [THEIRS]


def test_lists_are_one_by_name_and_ours_win(both: Both) -> None:
    assert listed(both.client) == [OURS, THEIRS]
    shadows = ({"name": OURS}, {"name": "z", "uuid": both.ours})
    for body in shadows:
        reply = both.direct.send(
            Request(method="POST", path="/resource_providers", minor=39, body=body)
        )
        assert reply.status == 200
    assert listed(both.client) == [OURS, THEIRS]
    # Of ours that do not match, a shadow that does is not shown either.
    assert listed(both.client, f"?name={THEIRS}") == [THEIRS]
    assert listed(both.client, "?name=z") == []
    assert listed(both.client, f"?in_tree={both.theirs}") == [THEIRS]
    assert listed(both.client, "?resources=VCPU:1") == [OURS, THEIRS]
    assert both.client.put("/traits/CUSTOM_OURS").status == 201
    assert listed(both.client, "?required=CUSTOM_OURS") == [OURS]
    assert (
        both.direct.send(Request(method="PUT", path="/traits/CUSTOM_NEW", minor=39)).status == 201
    )
    assert listed(both.client, "?required=!CUSTOM_NEW") == [THEIRS]  # ours do not know it yet
    assert both.client.get("/resource_providers?required=CUSTOM_NOWHERE").status == 400


def test_names_are_theirs_and_copied_once_written(both: Both) -> None:
    client = both.client
    assert client.put("/traits/CUSTOM_T").status == 201
    assert client.put("/traits/CUSTOM_T").status == 204
    assert client.post("/resource_classes", {"name": "CUSTOM_C"}).status == 201
    assert client.put("/resource_classes/CUSTOM_D").status == 201
    assert client.get("/traits?name=startswith:CUSTOM_").json["traits"] == ["CUSTOM_T"]
    assert client.put("/traits/bad").status == 400
    assert Trait.objects.filter(name__in=["CUSTOM_T", "bad"]).count() == 1
    assert ResourceClass.objects.filter(name__in=["CUSTOM_C", "CUSTOM_D"]).count() == 2
    assert client.delete("/resource_classes/CUSTOM_C").status == 204
    assert client.delete("/traits/CUSTOM_T").status == 204
    assert client.get("/traits/CUSTOM_T").status == 404
    assert not Trait.objects.filter(name="CUSTOM_T").exists()
    assert not ResourceClass.objects.filter(name="CUSTOM_C").exists()


def test_versions_are_those_of_both(both: Both, gateway: MakeGateway) -> None:
    (version,) = both.client.get("/").json["versions"]
    assert (version["min_version"], version["max_version"]) == ("1.0", "1.39")
    assert both.client.get("/nowhere").status == 404
    assert both.client.get("/%E2%98%83").status == 404
    assert both.client.get("/traits", version="1.40").status == 406


def test_allocations_of_one_side(both: Both) -> None:
    mine, other = uuid(), uuid()
    assert both.put(mine, 2, 0).status == 204
    assert both.put(other, 0, 3).status == 204
    assert (both.held(mine), both.held(other), both.used()) == ((2, 0), (0, 3), (2, 3))
    assert both.put(mine, 9, 0, generation=1).status == 409
    assert both.put(other, 0, 9, generation=1).status == 409
    assert both.put(mine, 1, 0).status == 409
    usages = both.client.get("/usages?project_id=p").json["usages"]
    assert {kind: found["VCPU"] for kind, found in usages.items()} == {"unknown": 5}
    assert both.client.get("/usages?project_id=p", version="1.37").json == {"usages": {"VCPU": 5}}
    for consumer in (mine, other):
        assert both.client.delete(f"/allocations/{consumer}").status == 204
        assert both.client.delete(f"/allocations/{consumer}").status == 404
    assert both.used() == (0, 0)
    assert not SplitWrite.objects.exists()


def test_a_consumer_moves_between_the_sides_and_over_both(both: Both) -> None:
    consumer = uuid()
    seen = []
    for ours, theirs in ((0, 2), (3, 1), (1, 4), (5, 0), (0, 2), (2, 2)):
        given = both.generation(consumer)
        answer = both.put(consumer, ours, theirs, generation=given)
        assert answer.status == 204, answer.content
        assert both.put(consumer, 1, 1, generation=given).status == 409
        assert both.held(consumer) == both.used() == (ours, theirs)
        seen.append(both.generation(consumer))
    # Theirs count anew for a consumer that held nothing of theirs.
    assert seen == [1, 2, 3, 4, 1, 2]
    shown = both.client.get(f"/allocations/{consumer}").json
    assert (shown["project_id"], shown["user_id"]) == ("p", "u")
    answer = both.client.delete(f"/allocations/{consumer}")
    assert answer.status == 204, answer.content
    assert both.used() == (0, 0)
    assert not SplitWrite.objects.exists()
    assert not Consumer.objects.exists()


def test_a_migration_from_their_host_to_ours_is_one_post(both: Both) -> None:
    vm, migration = uuid(), uuid()
    assert both.put(vm, 0, 2).status == 204
    body = {
        vm: consumer_body({both.ours: {"VCPU": 2}}, generation=1),
        migration: consumer_body({both.theirs: {"VCPU": 2}}),
    }
    assert both.client.post("/allocations", body, version="1.28").status == 204
    assert (both.held(vm), both.held(migration), both.used()) == ((2, 0), (0, 2), (2, 2))
    assert both.client.delete(f"/allocations/{migration}").status == 204
    assert both.used() == (2, 0)


@pytest.mark.parametrize("minor", ["1.8", "1.12", "1.28", "1.34", "1.38", "1.39"])
def test_clients_of_any_version_write_both(both: Both, minor: str) -> None:
    consumer = uuid()
    amounts = {both.ours: {"VCPU": 1}, both.theirs: {"VCPU": 2}}
    body: dict[str, Any] = consumer_body(amounts, version=minor)
    if minor == "1.8":
        body["allocations"] = [
            {"resource_provider": {"uuid": key}, "resources": found}
            for key, found in amounts.items()
        ]
    if minor in {"1.38", "1.39"}:
        body["consumer_type"] = "INSTANCE"
    if minor in {"1.34", "1.38", "1.39"}:
        body["mappings"] = {"": [both.ours, both.theirs]}
    answer = both.client.put(f"/allocations/{consumer}", body, version=minor)
    assert answer.status == 204, answer.content
    assert both.held(consumer) == (1, 2)
    kind = both.client.get(f"/allocations/{consumer}").json["consumer_type"]
    assert kind == ("INSTANCE" if minor in {"1.38", "1.39"} else "unknown")


@pytest.mark.parametrize("amounts", [(9, 1), (1, 9)])
def test_what_one_side_refuses_is_on_neither(both: Both, amounts: tuple[int, int]) -> None:
    consumer = uuid()
    assert both.put(consumer, *amounts).status == 409
    assert (both.used(), both.generation(consumer)) == ((0, 0), None)
    assert both.put(consumer, 2, 2).status == 204
    assert both.put(consumer, *amounts, generation=1).status == 409
    assert (both.used(), both.generation(consumer)) == ((2, 2), 1)
    assert both.put(consumer, 3, 3, generation=1).status == 204
    assert not SplitWrite.objects.exists()


def test_what_never_arrived_is_on_neither_side_once_it_is_healed(both: Both, cut: CutLink) -> None:
    consumer = uuid()
    assert both.put(consumer, 2, 2).status == 204
    cut.cuts["POST"] = "lost"
    assert both.put(consumer, 4, 1, generation=1).status == 502
    cut.cuts.clear()
    # Nobody knows yet: both outcomes are held here, and nobody else writes.
    assert both.used() == (4, 2)
    refused = both.put(consumer, 1, 1, generation=1)
    assert refused.status == 409
    assert "still under way" in refused.error["detail"]
    assert heal_later() == {"settled": 1, "left": 0}
    assert (both.used(), both.generation(consumer)) == ((2, 2), 1)
    assert not SplitConsumer.objects.exists()


def test_a_write_that_cannot_be_given_back_now_holds_up_no_other(both: Both, cut: CutLink) -> None:
    first, second = uuid(), uuid()
    assert both.put(first, 1, 1).status == 204
    assert both.put(second, 2, 1).status == 204
    cut.cuts["POST"] = "lost"
    for consumer in (first, second):
        assert both.put(consumer, 3, 2, generation=1).status == 502
    cut.cuts.clear()
    both.client.set_inventory(both.ours, VCPU={"total": 8, "min_unit": 2})
    assert heal_later() == {"settled": 1, "left": 1}
    (row,) = SplitWrite.objects.all()
    assert (set(row.theirs), "min_unit" in row.error) == ({first}, True)
    assert both.held(second) == (2, 1)
    both.client.set_inventory(both.ours, VCPU=8)
    assert heal_later() == {"settled": 1, "left": 0}
    assert (both.held(first), both.used()) == ((1, 1), (3, 2))


def heal_later() -> dict[str, int]:
    """Heal when any request has ended."""
    SplitWrite.objects.update(ends_at=F("created_at") - timedelta(seconds=1))
    return heal(by_service_account())


def test_what_was_done_unheard_is_on_both_sides(both: Both, cut: CutLink) -> None:
    consumer = uuid()
    assert both.put(consumer, 2, 2).status == 204
    cut.cuts["POST"] = "unheard"
    # The answer is lost, but their generation tells.
    assert both.put(consumer, 4, 1, generation=1).status == 204
    assert (both.used(), both.generation(consumer)) == ((4, 1), 2)
    assert not SplitWrite.objects.exists()


@pytest.mark.parametrize("has_arrived", [False, True])
def test_a_process_that_dies_in_between_leaves_what_is_healed(
    both: Both, has_arrived: bool
) -> None:
    consumer, account = uuid(), by_service_account()

    def dying(method: str, target: str, minor: int, body: bytes = b"") -> UpstreamAnswer:
        if method == "POST":
            if has_arrived:
                assert account(method, target, minor, body).status == 204
            raise KeyboardInterrupt
        return account(method, target, minor, body)

    write = ConsumerWrite(
        uuid=consumer,
        project_id="p",
        user_id="u",
        resources={both.ours: {"VCPU": 1}, both.theirs: {"VCPU": 2}},
    )
    parts = parts_of(
        AllocationRequest(consumers=[write], checks_generations=True),
        owned=frozenset({both.ours}),
        holding=frozenset(),
        ask=dying,
    )
    with pytest.raises(KeyboardInterrupt):
        write_both(parts, minor=36, ask=dying, actor=Actor(name="nova"), request_id="req-1")
    assert settle_split_writes() == {"settled": 0, "left": 1}  # it may be under way still
    assert heal_later() == {"settled": 1, "left": 0}
    assert both.used() == ((1, 2) if has_arrived else (0, 0))
    assert both.generation(consumer) == (1 if has_arrived else None)


def test_a_late_write_is_not_given_up_and_the_client_does_not_wait(
    both: Both, gateway: MakeGateway, cut: CutLink
) -> None:
    gateway(timeout_seconds=1)
    consumer = uuid()
    cut.cuts["POST"] = "late"
    assert both.put(consumer, 2, 3).status == 504
    (row,) = SplitWrite.objects.all()
    assert row.error
    cut.let_through.set()
    cut.late_done.wait()
    cut.cuts.clear()
    # The next write of the same consumer finds it done.
    assert both.put(consumer, 1, 1).status == 409
    assert not SplitWrite.objects.exists()
    assert (both.used(), both.generation(consumer)) == ((2, 3), 1)


def test_without_the_other_side_nothing_is_written(
    both: Both, gateway: MakeGateway, cut: CutLink
) -> None:
    consumer = uuid()
    cut.cuts.update(dict.fromkeys(("GET", "PUT", "POST", "DELETE"), "lost"))
    paths = (
        "/resource_providers",
        "/usages?project_id=p",
        f"/allocations/{consumer}",
        "/allocation_candidates?resources=VCPU:1",
        f"/resource_providers/{both.theirs}",
        "/traits",
        "/",
    )
    assert {both.client.get(path).status for path in paths} == {502}
    assert both.put(consumer, 1, 1).status == 502
    assert both.client.get(f"/resource_providers/{both.ours}").status == 200
    assert not SplitWrite.objects.exists()
    assert not Allocation.objects.exists()
    client = gateway(candidates_degrade=True)
    found = client.get("/allocation_candidates?resources=VCPU:1").json
    assert list(found["provider_summaries"]) == [both.ours]


@pytest.mark.parametrize("path", ["/resource_providers", "/allocation_candidates"])
def test_what_only_they_know_is_answered_as_they_answer(both: Both, path: str) -> None:
    query = f"{path}?resources=VCPU:1&required=!CUSTOM_THEIRS"
    request = Request(method="PUT", path="/traits/CUSTOM_THEIRS", minor=39)
    assert both.direct.send(request).status == 201
    answer = both.client.get(query)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert both.theirs.encode() in answer.content
    assert both.ours.encode() not in answer.content
    known = both.client.get(f"{path}?resources=VCPU:1").headers
    assert known.keys() <= answer.headers.keys()
    assert answer.headers["openstack-api-version"] == known["openstack-api-version"]


@pytest.mark.parametrize("version", ["1.10", "1.12", "1.36"])
def test_candidates_of_both_ours_first(both: Both, version: str) -> None:
    def found(query: str) -> tuple[list[str], set[str]]:
        document = both.client.get(f"/allocation_candidates?{query}", version=version).json
        used = []
        for one in document["allocation_requests"]:
            held = one["allocations"]
            used += (
                list(held)
                if isinstance(held, dict)
                else [part["resource_provider"]["uuid"] for part in held]
            )
        return used, set(document["provider_summaries"])

    everything = [both.ours, both.theirs]
    assert found("resources=VCPU:1") == (everything, set(everything))
    body = {"name": "shadow", "uuid": both.ours}
    both.direct.send(Request(method="POST", path="/resource_providers", minor=39, body=body))
    both.direct.send(
        Request(
            method="POST",
            path=f"/resource_providers/{both.ours}/inventories",
            minor=39,
            body={"resource_class": "VCPU", "total": 99},
        )
    )
    assert found("resources=VCPU:1") == (everything, set(everything))
    assert found("resources=VCPU:20") == ([], set())
    if version != "1.10":
        assert both.client.get("/allocation_candidates?resources=VCPU:x").status == 400
    if version == "1.36":
        assert found("resources=VCPU:1&limit=1") == ([both.ours], {both.ours})
        # A trait that they do not know is our own business.
        only_ours = both.client.get("/allocation_candidates?resources=VCPU:1&required=CUSTOM_OURS")
        assert only_ours.status == 400
        assert both.client.put("/traits/CUSTOM_OURS").status == 201
        assert found("resources=VCPU:1&required=CUSTOM_OURS") == ([both.ours], {both.ours})


def elsewhere(work: Callable[[PlacementClient], Any]) -> Any:
    """Return what work returns in a session of its own, with a client of its own."""
    client = PlacementClient(X_Roles="admin,service")
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(on_own_connection, lambda: work(client)).result()


@pytest.mark.parametrize("kind", ["PUT", "POST", "DELETE"])
def test_a_write_of_ours_that_one_of_both_sides_overtakes_is_refused(
    both: Both, cut: CutLink, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    consumer = uuid()
    amounts = {both.ours: {"VCPU": 3}, both.theirs: {"VCPU": 1}}
    one_less = {both.ours: {"VCPU": 1}}
    assert both.put(consumer, 2, 0).status == 204

    def overtaken(*given: Any, **named: Any) -> list[Part]:
        """Begin a write whose outcome nobody knows between the look and the write."""
        found = parts_of(*given, **named)
        monkeypatch.setattr(hybrid_writes, "parts_of", parts_of)
        cut.cuts["POST"] = "lost"
        spanning = elsewhere(lambda mine: mine.allocate(consumer, amounts, version="1.12"))
        assert spanning.status == 502, spanning.content
        cut.cuts.clear()
        return found

    monkeypatch.setattr(hybrid_writes, "parts_of", overtaken)
    if kind == "PUT":
        answer = both.client.allocate(consumer, one_less, version="1.12")
    elif kind == "POST":
        body = {consumer: consumer_body(one_less, version="1.13")}
        answer = both.client.post("/allocations", body, version="1.13")
    else:
        answer = both.client.delete(f"/allocations/{consumer}")
    assert answer.status == 409, answer.content
    assert "under way" in answer.error["detail"]
    assert heal_later() == {"settled": 1, "left": 0}
    assert both.held(consumer) == both.used() == (2, 0)


def test_a_write_of_both_sides_that_one_of_ours_overtakes_is_refused(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    spanning, other = uuid(), uuid()

    def overtaken(parts: list[Part], **named: Any) -> UpstreamAnswer | None:
        taken = elsewhere(lambda mine: mine.allocate(other, {both.ours: {"VCPU": 1}}))
        assert taken.status == 204, taken.content
        return write_both(parts, **named)

    monkeypatch.setattr(hybrid_writes, "write_both", overtaken)
    body = {
        spanning: consumer_body({both.ours: {"VCPU": 1}, both.theirs: {"VCPU": 1}}),
        other: consumer_body({both.theirs: {"VCPU": 1}}),
    }
    assert both.client.post("/allocations", body, version="1.28").status == 409
    assert (both.held(spanning), both.held(other), both.used()) == ((0, 0), (1, 0), (1, 0))
    assert not SplitWrite.objects.exists()


def reshape(both: Both, *providers: str, consumers: dict[str, Any] | None = None) -> Any:
    body = {
        "inventories": {
            one: {
                "resource_provider_generation": both.client.generation(one),
                "inventories": {"VCPU": {"total": 6}},
            }
            for one in providers
        },
        "allocations": consumers or {},
    }
    return both.client.post("/reshaper", body, version="1.37")


def test_a_reshape_is_of_one_side(both: Both) -> None:
    assert reshape(both, both.ours).status == 204
    assert reshape(both, both.theirs).status == 204
    for one in (both.ours, both.theirs):
        shown = both.client.get(f"/resource_providers/{one}/inventories").json["inventories"]
        assert shown["VCPU"]["total"] == 6
    mixed = reshape(both, both.ours, both.theirs)
    assert mixed.status == 409
    assert "one request for each side" in mixed.error["detail"]
    consumer = uuid()
    assert both.put(consumer, 1, 1).status == 204
    held = {consumer: consumer_body({both.ours: {"VCPU": 2}}, generation=1)}
    assert reshape(both, both.ours, consumers=held).status == 409
    assert both.used() == (1, 1)


def test_who_may_not_write_writes_nothing(both: Both) -> None:
    nobody = PlacementClient(token="nobody:p", X_Roles="reader")
    body = consumer_body({both.ours: {"VCPU": 1}, both.theirs: {"VCPU": 1}})
    assert nobody.put(f"/allocations/{uuid()}", body, version="1.28").status == 403
    unknown = PlacementClient(token="")
    assert unknown.put(f"/allocations/{uuid()}", body, version="1.28").status == 401
    assert unknown.post("/resource_providers", {"name": OURS}).status == 401
    assert both.used() == (0, 0)
