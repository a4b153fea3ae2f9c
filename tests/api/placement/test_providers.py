"""Providers, trees, and the names tied to them (spec placement, 4.2, 4.4-4.7, 5.2, 5.4)."""

from __future__ import annotations

from typing import Any

import pytest

from placement.models import Change, ResourceProvider
from tests.placement.client import PlacementClient, uuid

pytestmark = pytest.mark.django_db

AGGREGATE = "d76d4330-f144-4bea-b0c1-1fdecb91ce37"
OTHER = "87b0b125-ec1d-4da0-a6eb-8c9ebd69fe29"
UNKNOWN = "4ef30651-9e01-4f9c-a3f5-9362fdb3c5de"


def names(answer: Any) -> list[str]:
    assert answer.status == 200, answer.content
    return [provider["name"] for provider in answer.json["resource_providers"]]


@pytest.mark.parametrize(
    ("version", "rels"),
    [
        ("1.0", ["self", "inventories", "usages"]),
        ("1.1", ["self", "inventories", "usages", "aggregates"]),
        ("1.6", ["self", "inventories", "usages", "aggregates", "traits"]),
        ("1.11", ["self", "inventories", "usages", "aggregates", "traits", "allocations"]),
    ],
)
def test_links_of_a_provider_by_version(
    placement: PlacementClient, version: str, rels: list[str]
) -> None:
    provider = placement.make_provider("a")
    shown = placement.get(f"/resource_providers/{provider}", version=version).json
    listed = placement.get("/resource_providers", version=version).json
    assert listed == {"resource_providers": [shown]}
    base = f"/placement/resource_providers/{provider}"
    hrefs = [base, *(f"{base}/{rel}" for rel in rels[1:])]
    assert shown["links"] == [
        {"rel": rel, "href": href} for rel, href in zip(rels, hrefs, strict=True)
    ]
    assert "parent_provider_uuid" not in shown


def test_a_created_provider_is_shown_since_1_20(placement: PlacementClient) -> None:
    old = placement.post("/resource_providers", {"name": "old"}, version="1.19")
    assert (old.status, old.content) == (201, b"")
    new = placement.post("/resource_providers", {"name": "new"}, version="1.20")
    assert new.status == 200
    assert new.headers["location"].endswith(f"/resource_providers/{new.json['uuid']}")
    assert new.json["generation"] == 0
    assert new.json["root_provider_uuid"] == new.json["uuid"]
    assert new.json["parent_provider_uuid"] is None


def test_a_given_uuid_is_stored_canonical(placement: PlacementClient) -> None:
    given = uuid()
    body = {"name": "n", "uuid": given.replace("-", "").upper()}
    assert placement.post("/resource_providers", body).json["uuid"] == given
    for spelling in (given.upper(), given.replace("-", "")):
        assert placement.get(f"/resource_providers/{spelling}").status == 404


@pytest.mark.parametrize("taken", ["name", "uuid"])
def test_names_and_uuids_are_unique(placement: PlacementClient, taken: str) -> None:
    given = {"name": "n", "uuid": uuid()}
    placement.post("/resource_providers", given)
    again = {"name": "m", "uuid": uuid(), taken: given[taken]}
    answer = placement.post("/resource_providers", again)
    assert answer.status == 409
    assert answer.error["code"] == "placement.duplicate_name"
    wanted = f"Conflicting resource provider {taken}: {given[taken]} already exists"
    assert wanted in answer.error["detail"]


@pytest.mark.parametrize(
    ("body", "fragment"),
    [
        ({"name": ""}, "name is required"),
        ({}, "'name' is a required property"),
        ({"name": "n", "parent_provider_uuid": OTHER}, "parent provider UUID does not exist"),
        (
            {"name": "n", "uuid": OTHER, "parent_provider_uuid": OTHER},
            "parent provider UUID cannot be same as UUID",
        ),
        ({"name": "n", "uuid": "bogus"}, "is not a 'uuid'"),
    ],
)
def test_providers_that_are_refused(
    placement: PlacementClient, body: dict[str, str], fragment: str
) -> None:
    answer = placement.post("/resource_providers", body)
    assert answer.status == 400
    assert fragment in answer.error["detail"]
    assert not ResourceProvider.objects.exists()


@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [
        pytest.param(None, "P", 200, 200, id="none to P"),
        pytest.param("P", "P", 200, 200, id="P to same"),
        pytest.param("P", "Q", 400, 200, id="P to Q"),
        pytest.param("P", None, 400, 200, id="P to none"),
        pytest.param(None, None, 200, 200, id="none to none"),
    ],
)
@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_changes_of_the_parent(  # noqa: PLR0917 - the columns of the table
    placement: PlacementClient,
    before: str | None,
    after: str | None,
    old: int,
    new: int,
    version: str,
) -> None:
    known = {"P": placement.make_provider("P"), "Q": placement.make_provider("Q"), None: None}
    child = placement.make_provider("child", parent=known[before])
    grandchild = placement.make_provider("grandchild", parent=child)
    body = {"name": "child", "parent_provider_uuid": known[after]}
    answer = placement.put(f"/resource_providers/{child}", body, version=version)
    assert answer.status == (old if version == "1.36" else new)
    parent = known[after] if answer.status == 200 else known[before]
    for node in (child, grandchild):
        shown = placement.get(f"/resource_providers/{node}").json
        assert shown["root_provider_uuid"] == (parent or child)
        assert shown["generation"] == 0
    if answer.status == 400:
        word = "re-parenting" if after else "un-parenting"
        assert f"{word} a provider is not currently allowed" in answer.error["detail"]


@pytest.mark.parametrize("target", ["itself", "its grandchild"])
def test_loops_are_refused(placement: PlacementClient, target: str) -> None:
    top = placement.make_provider("top")
    child = placement.make_provider("child", parent=top)
    low = placement.make_provider("low", parent=child)
    body = {"name": "top", "parent_provider_uuid": top if target == "itself" else low}
    answer = placement.put(f"/resource_providers/{top}", body)
    assert answer.status == 400
    assert "creating loop in the provider tree is not allowed." in answer.error["detail"]


def test_a_rename_keeps_the_parent_and_tells_both_trees(placement: PlacementClient) -> None:
    top = placement.make_provider("top")
    child = placement.make_provider("child", parent=top)
    answer = placement.put(f"/resource_providers/{child}", {"name": "renamed"})
    assert answer.json["parent_provider_uuid"] == top
    other = placement.make_provider("other")
    Change.objects.all().delete()
    body = {"name": "renamed", "parent_provider_uuid": other}
    placement.put(f"/resource_providers/{child}", body)
    roots = {ResourceProvider.objects.get(uuid=node).pk for node in (top, other)}
    assert set(Change.objects.values_list("root_id", flat=True)) == roots


def test_a_name_in_use_is_refused(placement: PlacementClient) -> None:
    placement.make_provider("taken")
    provider = placement.make_provider("free")
    answer = placement.put(f"/resource_providers/{provider}", {"name": "taken"})
    assert (answer.status, answer.error["code"]) == (409, "placement.duplicate_name")
    assert placement.put(f"/resource_providers/{provider}", {"name": ""}).status == 400
    assert placement.put(f"/resource_providers/{uuid()}", {"name": "x"}).status == 404


def test_what_keeps_a_provider_from_deletion(placement: PlacementClient) -> None:
    top = placement.make_provider("top", VCPU=4)
    child = placement.make_provider("child", parent=top)
    consumer = uuid()
    placement.allocate(consumer, {top: {"VCPU": 1}})
    answer = placement.delete(f"/resource_providers/{top}")
    assert answer.error["code"] == "placement.resource_provider.cannot_delete_parent"
    assert placement.delete(f"/resource_providers/{child}").status == 204
    answer = placement.delete(f"/resource_providers/{top}")
    assert answer.error["code"] == "placement.resource_provider.inuse"
    placement.delete(f"/allocations/{consumer}")
    body = {"traits": ["HW_CPU_X86_SSE"], "resource_provider_generation": 2}
    assert placement.put(f"/resource_providers/{top}/traits", body).status == 200
    assert placement.delete(f"/resource_providers/{top}").status == 204
    answer = placement.delete(f"/resource_providers/{top}")
    assert answer.status == 404
    assert f"No resource provider with uuid {top} found for delete" in answer.error["detail"]


@pytest.fixture
def zoo(placement: PlacementClient) -> PlacementClient:
    """Three providers: big and small in aggregates, child below big."""
    big = placement.make_provider("big", VCPU=16, DISK_GB={"total": 100, "step_size": 10})
    small = placement.make_provider("small", VCPU={"total": 4, "max_unit": 2})
    placement.put("/resource_classes/CUSTOM_X")
    placement.make_provider("child", parent=big, CUSTOM_X=1)
    for provider, aggregates in ((big, [AGGREGATE]), (small, [AGGREGATE, OTHER])):
        placement.put(f"/resource_providers/{provider}/aggregates", aggregates, version="1.1")
    body = {"traits": ["HW_CPU_X86_SSE", "HW_CPU_X86_AVX"], "resource_provider_generation": 1}
    assert placement.put(f"/resource_providers/{big}/traits", body).status == 200
    return placement


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["big", "small", "child"]),
        ("name=small", ["small"]),
        ("name=", ["big", "small", "child"]),
        (f"uuid={UNKNOWN}", []),
        (f"in_tree={UNKNOWN}", []),
        (f"member_of={AGGREGATE}", ["big", "small"]),
        (f"member_of={AGGREGATE}&member_of={OTHER}", ["small"]),
        (f"member_of=in:{OTHER},{UNKNOWN}", ["small"]),
        (f"member_of=!{OTHER}", ["big", "child"]),
        (f"member_of=!in:{OTHER},{AGGREGATE}", ["child"]),
        ("resources=VCPU:2", ["big", "small"]),
        ("resources=VCPU:3", ["big"]),
        ("resources=VCPU:1,DISK_GB:10", ["big"]),
        ("resources=DISK_GB:15", []),
        ("resources=VCPU:99999999999", []),
        ("resources=CUSTOM_X:1", ["child"]),
        ("required=HW_CPU_X86_SSE", ["big"]),
        ("required=!HW_CPU_X86_SSE", ["small", "child"]),
        ("required=in:HW_CPU_X86_SSE,HW_CPU_X86_MMX&required=HW_CPU_X86_AVX", ["big"]),
        ("required=HW_CPU_X86_SSE,HW_CPU_X86_MMX", []),
    ],
)
def test_filters_of_the_provider_list(zoo: PlacementClient, query: str, found: list[str]) -> None:
    assert names(zoo.get(f"/resource_providers?{query}")) == found


def test_a_tree_is_found_by_any_of_its_members(zoo: PlacementClient) -> None:
    for name in ("big", "child"):
        (found,) = zoo.get(f"/resource_providers?name={name}").json["resource_providers"]
        tree = zoo.get(f"/resource_providers?in_tree={found['uuid']}")
        assert names(tree) == ["big", "child"]


@pytest.mark.parametrize(
    ("query", "fragment"),
    [
        ("bogus=1", "'bogus' was unexpected"),
        ("uuid=bogus", "is not a 'uuid'"),
        ("resources=NOPE:1", "Invalid resource class in resources parameter"),
        ("required=BOGUS_TRAIT", "No such trait(s): BOGUS_TRAIT."),
        ("resources=", "Got: empty string."),
    ],
)
def test_queries_that_are_refused(placement: PlacementClient, query: str, fragment: str) -> None:
    answer = placement.get(f"/resource_providers?{query}")
    assert answer.status == 400
    assert fragment in answer.error["detail"]


def test_aggregates_are_checked_since_1_19(placement: PlacementClient) -> None:
    provider = placement.make_provider()
    path = f"/resource_providers/{provider}/aggregates"
    old = placement.put(path, [AGGREGATE], version="1.18")
    assert old.json == {"aggregates": [AGGREGATE]}
    assert placement.generation(provider) == 0
    body = {"aggregates": [OTHER.upper()], "resource_provider_generation": 0}
    assert placement.put(path, body).json == {
        "aggregates": [OTHER],
        "resource_provider_generation": 1,
    }
    stale = placement.put(path, body)
    assert (stale.status, stale.error["code"]) == (409, "placement.concurrent_update")
    same = placement.put(path, {**body, "resource_provider_generation": 1})
    assert same.json["resource_provider_generation"] == 2
    assert placement.get(path).json["aggregates"] == [OTHER]


def test_traits_raise_the_generation_only_when_they_change(placement: PlacementClient) -> None:
    provider = placement.make_provider()
    path = f"/resource_providers/{provider}/traits"
    body: dict[str, Any] = {"traits": ["HW_CPU_X86_SSE"] * 2, "resource_provider_generation": 0}
    written = {"traits": ["HW_CPU_X86_SSE"], "resource_provider_generation": 1}
    assert placement.put(path, body).json == written
    stale = placement.put(path, body)
    assert stale.status == 409
    assert "generation already changed" in stale.error["detail"]
    assert placement.put(path, {**body, "resource_provider_generation": 1}).json == written
    unknown = {"traits": ["CUSTOM_A", "CUSTOM_B"], "resource_provider_generation": 1}
    answer = placement.put(path, unknown)
    assert answer.status == 400
    assert "No such trait CUSTOM_A, CUSTOM_B" in answer.error["detail"]
    assert placement.delete(path).status == 204
    assert placement.delete(path).status == 204
    assert placement.get(path).json == {"traits": [], "resource_provider_generation": 2}


def test_a_trait_from_birth_to_death(placement: PlacementClient) -> None:
    path = "/traits/CUSTOM_A"
    assert placement.get(path).status == 404
    assert placement.put(path).status == 201
    assert placement.put(path).status == 204
    assert placement.get(path).status == 204
    provider = placement.make_provider()
    body = {"traits": ["CUSTOM_A"], "resource_provider_generation": 0}
    placement.put(f"/resource_providers/{provider}/traits", body)
    assert placement.get("/traits?name=startswith:CUSTOM_&associated=TRUE").json == {
        "traits": ["CUSTOM_A"]
    }
    in_use = placement.delete(path)
    assert in_use.status == 409
    assert "The trait CUSTOM_A is in use by a resource provider." in in_use.error["detail"]
    placement.delete(f"/resource_providers/{provider}/traits")
    assert placement.delete(path).status == 204
    assert placement.delete(path).status == 404
    assert placement.delete("/traits/HW_CPU_X86_SSE").status == 400


@pytest.mark.parametrize("name", ["CUSTOM_a", "HW_X", "CUSTOM_", f"CUSTOM_{'A' * 249}"])
def test_traits_with_bad_names(placement: PlacementClient, name: str) -> None:
    answer = placement.put(f"/traits/{name}")
    assert answer.status == 400
    assert "The trait is invalid" in answer.error["detail"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("name=in:HW_CPU_X86_SSE,BOGUS", 200),
        ("name=in_abc", 400),
        ("name=bogus:abc", 400),
        ("associated=maybe", 400),
        ("bogus=1", 400),
    ],
)
def test_filters_of_the_trait_list(placement: PlacementClient, query: str, status: int) -> None:
    answer = placement.get(f"/traits?{query}")
    assert answer.status == status
    if status == 200:
        assert answer.json == {"traits": ["HW_CPU_X86_SSE"]}


def test_standard_classes_come_first_in_their_order(placement: PlacementClient) -> None:
    placement.put("/resource_classes/CUSTOM_A")
    listed = placement.get("/resource_classes").json["resource_classes"]
    found = [known["name"] for known in listed]
    assert found[:4] == ["VCPU", "MEMORY_MB", "DISK_GB", "PCI_DEVICE"]
    assert len(found) == 22
    assert found[-1] == "CUSTOM_A"
    links = [{"rel": "self", "href": "/placement/resource_classes/VCPU"}]
    assert listed[0]["links"] == links


def test_a_class_from_birth_to_death(placement: PlacementClient) -> None:
    body = {"name": "CUSTOM_A"}
    created = placement.post("/resource_classes", body)
    assert (created.status, created.content) == (201, b"")
    again = placement.post("/resource_classes", body)
    assert again.status == 409
    assert "Conflicting resource class already exists" in again.error["detail"]
    assert placement.put("/resource_classes/CUSTOM_A").status == 204
    renamed = placement.put("/resource_classes/CUSTOM_A", {"name": "CUSTOM_B"}, version="1.6")
    assert renamed.json["name"] == "CUSTOM_B"
    assert placement.get("/resource_classes/CUSTOM_A").status == 404
    provider = placement.make_provider(CUSTOM_B=1)
    in_use = placement.delete("/resource_classes/CUSTOM_B")
    assert in_use.status == 409
    assert "Class is in use in inventory" in in_use.error["detail"]
    placement.delete(f"/resource_providers/{provider}/inventories")
    assert placement.delete("/resource_classes/CUSTOM_B").status == 204
    assert placement.delete("/resource_classes/CUSTOM_B").status == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "version", "status", "fragment"),
    [
        ("PUT", "/VCPU", {"name": "CUSTOM_B"}, "1.6", 400, "Cannot update standard resource class"),
        ("PUT", "/CUSTOM_C", {"name": "CUSTOM_B"}, "1.6", 404, "No such resource class CUSTOM_C."),
        ("PUT", "/CUSTOM_A", {"name": "CUSTOM_T"}, "1.6", 409, "Resource class already exists"),
        ("PUT", "/CUSTOM_A", b"{", "1.6", 400, "Malformed JSON:"),
        ("PUT", "/VCPU", None, "1.7", 400, "Failed validating 'pattern'"),
        ("PUT", f"/CUSTOM_{'A' * 249}", None, "1.7", 400, "Failed validating 'maxLength'"),
        ("DELETE", "/VCPU", None, "1.7", 400, "Cannot delete standard resource class"),
        ("POST", "", {"name": "X"}, "1.2", 400, "Failed validating 'pattern'"),
    ],
)  # fmt: skip
def test_classes_that_are_refused(  # noqa: PLR0917 - the columns of the table
    placement: PlacementClient,
    method: str,
    path: str,
    body: object,
    version: str,
    status: int,
    fragment: str,
) -> None:
    for name in ("CUSTOM_A", "CUSTOM_T"):
        placement.put(f"/resource_classes/{name}")
    answer = placement.call(method, f"/resource_classes{path}", body, version=version)
    assert answer.status == status
    assert fragment in answer.error["detail"]
