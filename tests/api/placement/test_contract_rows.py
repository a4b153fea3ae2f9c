"""Rows of the contract that need no story (spec placement, 2-5, 7.3)."""

from __future__ import annotations

from typing import Any

import os_resource_classes
import os_traits
import pytest

from placement.models import ResourceClass, Trait
from tests.placement.client import PlacementClient, consumer_body, placement_settings, uuid

pytestmark = pytest.mark.django_db

U = "00000000-0000-4000-8000-000000000001"
PROVIDER = f"/resource_providers/{U}"
# Path, minor version since which it answers, and whether the version is looked at first.
SHOWN = (
    ("/resource_providers", 0, True),
    (PROVIDER, 0, True),
    (f"{PROVIDER}/inventories", 0, True),
    (f"{PROVIDER}/inventories/VCPU", 0, True),
    (f"{PROVIDER}/usages", 0, True),
    (f"{PROVIDER}/allocations", 0, True),
    (f"{PROVIDER}/aggregates", 1, False),
    (f"{PROVIDER}/traits", 6, True),
    ("/traits", 6, True),
    ("/resource_classes", 2, True),
    ("/resource_classes/VCPU", 2, True),
    ("/usages", 9, True),
    (f"/allocations/{U}", 0, True),
    ("/allocation_candidates", 10, True),
)
READ = (
    ("POST", "/resource_providers", 0, True),
    ("PUT", PROVIDER, 0, True),
    ("POST", f"{PROVIDER}/inventories", 0, True),
    ("PUT", f"{PROVIDER}/inventories", 0, True),
    ("PUT", f"{PROVIDER}/inventories/VCPU", 0, True),
    ("PUT", f"{PROVIDER}/aggregates", 1, False),
    ("PUT", f"{PROVIDER}/traits", 6, True),
    ("POST", "/resource_classes", 2, True),
    ("PUT", "/resource_classes/VCPU", 2, True),
    ("PUT", f"/allocations/{U}", 0, True),
    ("POST", "/allocations", 13, True),
    ("POST", "/reshaper", 30, True),
)


@pytest.mark.parametrize(("path", "since", "is_version_first"), SHOWN)
def test_answers_are_json_or_nothing(
    placement: PlacementClient, path: str, since: int, is_version_first: bool
) -> None:
    version = f"1.{since}"
    refused = placement.get(path, version=version, Accept="text/plain")
    assert refused.status == 406
    assert b"Only application/json is provided" in refused.content
    taken = placement.get(path, version=version, Accept="application/*;q=0.1, text/plain")
    assert taken.status in {200, 400, 404}
    if since:
        early = placement.get(path, version=f"1.{since - 1}", Accept="text/plain")
        assert early.status == (404 if is_version_first else 406)


@pytest.mark.parametrize(("method", "path", "since", "is_version_first"), READ)
@pytest.mark.parametrize("content_type", ["text/plain", "application/xml; q=application/json"])
def test_bodies_are_json_or_refused(  # noqa: PLR0917 - the columns of the table
    placement: PlacementClient,
    method: str,
    path: str,
    since: int,
    is_version_first: bool,
    content_type: str,
) -> None:
    def send(minor: int) -> Any:
        headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": f"placement 1.{minor}"}
        return placement.client.generic(
            method, f"/placement{path}", b"{}", content_type=content_type, headers=headers
        )

    refused = send(since)
    assert refused.status_code == 415
    shown = content_type.partition(";")[0]
    assert f"The media type {shown} is not supported, use application/json" in str(refused.content)
    if since:
        assert send(since - 1).status_code == (404 if is_version_first else 415)


@pytest.mark.parametrize(
    ("header", "shown"),
    [
        ("placement latest", "placement 1.39"),
        ("compute 2.6, placement 1.5", "placement 1.5"),
        ("placement 1.5, placement 1.7", "placement 1.7"),
        ("compute 2.6", "placement 1.0"),
    ],
)
def test_the_version_in_force_is_told(placement: PlacementClient, header: str, shown: str) -> None:
    answer = placement.get("/resource_providers", OpenStack_API_Version=header)
    assert answer.headers["openstack-api-version"] == shown


def test_the_old_version_header_is_not_honoured(placement: PlacementClient) -> None:
    headers = {"X-Auth-Token": "admin", "X-OpenStack-Placement-API-Version": "placement 1.39"}
    answer = placement.client.get("/placement/resource_providers", headers=headers)
    assert answer.headers["openstack-api-version"] == "placement 1.0"


@pytest.mark.parametrize(
    ("method", "path", "extra", "status", "title"),
    [
        ("GET", "/traits?bogus=1", {}, 400, "Bad Request"),
        ("GET", "/traits", {"X_Roles": "nobody"}, 403, "Forbidden"),
        ("GET", PROVIDER, {}, 404, "Not Found"),
        ("PATCH", "/traits", {}, 405, "Method Not Allowed"),
        ("GET", "/traits", {"Accept": "image/png"}, 406, "Not Acceptable"),
        ("POST", "/resource_classes", {}, 409, "Conflict"),
    ],
)
def test_titles_are_the_reasons_of_statuses(  # noqa: PLR0917 - the columns of the table
    placement: PlacementClient,
    method: str,
    path: str,
    extra: dict[str, str],
    status: int,
    title: str,
) -> None:
    placement.put("/resource_classes/CUSTOM_A")
    body = {"name": "CUSTOM_A"} if method == "POST" else None
    answer = placement.call(method, path, body, **extra)
    assert (answer.status, answer.error["title"], answer.error["status"]) == (status, title, status)
    assert answer.error["code"] == "placement.undefined_code"


def test_names_have_at_most_200_characters(placement: PlacementClient) -> None:
    assert placement.post("/resource_providers", {"name": "n" * 200}).status == 200
    assert placement.post("/resource_providers", {"name": "n" * 201}).status == 400


def test_a_name_and_a_uuid_that_are_both_taken(placement: PlacementClient) -> None:
    body = {"name": "n", "uuid": U}
    assert placement.post("/resource_providers", body).status == 200
    answer = placement.post("/resource_providers", body)
    assert (answer.status, answer.error["code"]) == (409, "placement.duplicate_name")


def test_lists_are_in_order_of_creation_and_the_last_of_a_repeated_key_counts(
    placement: PlacementClient,
) -> None:
    for name in ("c", "a", "b"):
        placement.make_provider(name)
    for query, found in (("", ["c", "a", "b"]), ("?name=a&name=b", ["b"])):
        listed = placement.get(f"/resource_providers{query}").json["resource_providers"]
        assert [provider["name"] for provider in listed] == found


def test_items_of_a_path_are_decoded(placement: PlacementClient) -> None:
    assert placement.put("/traits/CUSTOM%5FA").status == 201
    assert placement.get("/traits/CUSTOM_A").status == 204


def test_an_added_inventory_names_a_generation_in_vain(placement: PlacementClient) -> None:
    provider = placement.make_provider()
    body = {"resource_class": "VCPU", "total": 1, "resource_provider_generation": 99}
    assert placement.post(f"/resource_providers/{provider}/inventories", body).status == 201


def test_an_unknown_class_among_inventories(placement: PlacementClient) -> None:
    provider = placement.make_provider()
    body = {"inventories": {"CUSTOM_X": {"total": 1}}, "resource_provider_generation": 0}
    answer = placement.put(f"/resource_providers/{provider}/inventories", body)
    assert answer.status == 400
    assert "Unknown resource class in inventory" in answer.error["detail"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("project_id=", 400),
        ("project_id=" + "p" * 255, 200),
        ("project_id=" + "p" * 256, 400),
        ("project_id=p&user_id=", 400),
        ("project_id=p&user_id=" + "u" * 255, 200),
        ("project_id=p&user_id=" + "u" * 256, 400),
        ("project_id=p&consumer_type=" + "A" * 255, 200),
        ("project_id=p&consumer_type=" + "A" * 256, 400),
    ],
)
def test_lengths_in_queries_of_usages(placement: PlacementClient, query: str, status: int) -> None:
    assert placement.get(f"/usages?{query}").status == status


@pytest.mark.parametrize("name", ["bogus", "-" * 36, U[:-1], f"{U}0"])
def test_consumers_that_are_no_uuid(placement: PlacementClient, name: str) -> None:
    provider = placement.make_provider(VCPU=1)
    refused = placement.allocate(name, {provider: {"VCPU": 1}})
    assert refused.status == 400
    assert f"Malformed consumer_uuid: {name}" in refused.error["detail"]
    assert placement.get(f"/allocations/{name}").json == {"allocations": {}}
    gone = placement.delete(f"/allocations/{name}")
    assert gone.status == 404
    assert f"No allocations for consumer '{name}'" in gone.error["detail"]


def test_a_consumer_is_written_in_any_spelling_and_read_in_one(placement: PlacementClient) -> None:
    provider = placement.make_provider(VCPU=1)
    assert placement.allocate(U.upper(), {provider: {"VCPU": 1}}).status == 204
    assert placement.held(U) == {provider: {"VCPU": 1}}
    for spelling in (U.replace("-", ""), f"{{{U}}}"):
        assert placement.held(spelling) == {}
        assert placement.delete(f"/allocations/{spelling}").status == 404


def test_a_move_as_nova_sends_it(placement: PlacementClient) -> None:
    provider, other = placement.make_provider(VCPU=1), placement.make_provider(VCPU=1)
    instance, migration = uuid(), uuid()
    assert placement.allocate(instance, {provider: {"VCPU": 1}}).status == 204
    stale = {provider: {"resources": {"VCPU": 1}, "generation": 17}}
    body = {
        instance: consumer_body({}, generation=1),
        migration: {**consumer_body({}), "allocations": stale},
    }
    assert placement.post("/allocations", body, version="1.28").status == 204
    assert (placement.held(instance), placement.held(migration)) == ({}, {provider: {"VCPU": 1}})
    placed = {**consumer_body({other: {"VCPU": 1}}), "mappings": {"": [other]}}
    assert placement.put(f"/allocations/{instance}", placed, version="1.36").status == 204
    assert placement.held(instance) == {other: {"VCPU": 1}}


def test_more_reserved_than_there_is_is_refused_by_the_reshaper_too(
    placement: PlacementClient, settings: Any
) -> None:
    placement_settings(settings, enforce_new_defaults=False)
    provider = placement.make_provider()
    new = {"VCPU": {"total": 4, "reserved": 5}}
    body = {
        "inventories": {provider: {"resource_provider_generation": 0, "inventories": new}},
        "allocations": {},
    }
    answer = placement.post("/reshaper", body)
    assert answer.status == 400
    assert "greater than total" in answer.error["detail"]
    new["VCPU"]["reserved"] = 4
    assert placement.post("/reshaper", body).status == 204


def test_standard_names_are_those_of_the_packages() -> None:
    classes = list(ResourceClass.objects.filter(pk__lt=10_000).values_list("pk", "name"))
    assert classes == list(enumerate(os_resource_classes.STANDARDS))
    assert len(classes) == 21
    assert set(Trait.objects.values_list("name", flat=True)) >= set(os_traits.get_traits())


def test_custom_classes_have_ids_from_10000(placement: PlacementClient) -> None:
    placement.put("/resource_classes/CUSTOM_A")
    assert ResourceClass.objects.get(name="CUSTOM_A").pk >= 10_000


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        pytest.param("u:own", {}, 200, id="project of the token"),
        pytest.param("own", {}, 200, id="the user is the project"),
        pytest.param("u:other", {"X_Project_Id": "own"}, 200, id="a header replaces it"),
        pytest.param("u:own", {"X_Project_Id": "other"}, 403, id="also to the worse"),
        pytest.param("u:", {}, 403, id="an empty project"),
    ],
)
def test_whose_project_it_is_on_an_open_server(
    placement: PlacementClient, token: str, headers: dict[str, str], status: int
) -> None:
    placement.token = token
    answer = placement.get("/usages?project_id=own", X_Roles="reader", **headers)
    assert answer.status == status


def test_unknown_origins_get_an_answer_without_permission(
    placement: PlacementClient, settings: Any
) -> None:
    placement_settings(settings, cors_allowed_origin=("http://valid.example.com",))
    answer = placement.get("/traits", Origin="http://evil.example.com")
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]
