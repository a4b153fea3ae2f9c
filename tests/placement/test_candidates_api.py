"""``GET /allocation_candidates`` over HTTP (spec placement, 6)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from journal.metrics import metrics_page
from placement.domain.microversion import MAX_MINOR
from placement.models import ResourceProvider
from tests.placement.client import PlacementClient, placement_settings, uuid
from tests.placement.rows import allocate, make_provider
from tests.process_tables import reset_snapshot

pytestmark = pytest.mark.django_db

PATH = "/allocation_candidates"
UUID_1 = "00000000-0000-0000-0000-000000000001"


@pytest.fixture
def client(settings: Any) -> PlacementClient:
    placement_settings(settings)
    return PlacementClient()


@pytest.fixture
def host() -> ResourceProvider:
    host = make_provider("host", inventories={"VCPU": 16}, traits=("CUSTOM_GOLD",))
    allocate(UUID(int=5), {host: {"VCPU": 4}})
    return host


def test_answer_lists_requests_and_summaries(client: PlacementClient, host: Any) -> None:
    uuid = str(host.uuid)
    answer = client.get(f"{PATH}?resources=VCPU:12")
    assert answer.status == 200
    assert answer.json == {
        "allocation_requests": [
            {
                "allocations": {uuid: {"resources": {"VCPU": 12}}},
                "mappings": {"": [uuid]},
            }
        ],
        "provider_summaries": {
            uuid: {
                "resources": {"VCPU": {"capacity": 16, "used": 4}},
                "traits": ["CUSTOM_GOLD"],
                "parent_provider_uuid": None,
                "root_provider_uuid": uuid,
            }
        },
    }


def test_nothing_that_fits_is_an_answer(client: PlacementClient, host: Any) -> None:
    assert host
    answer = client.get(f"{PATH}?resources=VCPU:13")
    assert answer.status == 200
    assert answer.json == {"allocation_requests": [], "provider_summaries": {}}


@pytest.mark.parametrize("minor", range(MAX_MINOR + 1))
def test_every_version_answers_in_its_form(client: PlacementClient, host: Any, minor: int) -> None:
    answer = client.get(f"{PATH}?resources=VCPU:1", version=f"1.{minor}")
    if minor < 10:
        assert answer.status == 404
        return
    assert answer.status == 200
    uuid = str(host.uuid)
    (request,) = answer.json["allocation_requests"]
    if minor < 12:
        assert request["allocations"] == [
            {"resource_provider": {"uuid": uuid}, "resources": {"VCPU": 1}}
        ]
    else:
        assert request["allocations"] == {uuid: {"resources": {"VCPU": 1}}}
    assert ("mappings" in request) == (minor >= 34)
    summary = answer.json["provider_summaries"][uuid]
    assert ("traits" in summary) == (minor >= 17)
    assert ("root_provider_uuid" in summary) == (minor >= 29)
    assert answer.headers["openstack-api-version"] == f"placement 1.{minor}"
    assert answer.headers["content-type"] == "application/json"
    assert ("last-modified" in answer.headers) == (minor >= 15)
    assert answer.headers.get("cache-control") == ("no-cache" if minor >= 15 else None)


BAD_TRAITS = "Conflicting required and forbidden traits found in "
REFUSED = (
    ("no resources", "1.10", "", "'resources' is a required property", None),
    ("limit too early", "1.15", "resources=VCPU:1&limit=1", "'limit' was unexpected", None),
    ("limit of nothing", "1.16", "resources=VCPU:1&limit=0", "'0' does not match", None),
    ("traits too early", "1.16", "resources=VCPU:1&required=T", "'required' was unexpected", None),
    ("groups too early", "1.24", "resources1=VCPU:1", "'resources1' was unexpected", None),
    (
        "words as suffix too early",
        "1.32",
        "resources_A=VCPU:1",
        "does not match any of the regexes",
        None,
    ),
    ("tree too early", "1.30", f"resources=VCPU:1&in_tree={UUID_1}", "'in_tree' does not", None),
    (
        "root traits too early",
        "1.34",
        "resources=VCPU:1&root_required=CUSTOM_GOLD",
        "'root_required' does not",
        None,
    ),
    (
        "subtrees too early",
        "1.35",
        "resources1=VCPU:1&same_subtree=1",
        "'same_subtree' does not",
        None,
    ),
    (
        "other policy",
        "1.25",
        "resources=VCPU:1&group_policy=bogus",
        "'bogus' is not one of ['none', 'isolate']",
        None,
    ),
    (
        "root traits twice",
        "1.35",
        "resources=VCPU:1&root_required=CUSTOM_GOLD&root_required=!CUSTOM_GOLD",
        "Query parameter 'root_required' may be specified only once.",
        "placement.query.duplicate_key",
    ),
    (
        "root traits that contradict",
        "1.35",
        "resources=VCPU:1&root_required=CUSTOM_GOLD,!CUSTOM_GOLD",
        f"{BAD_TRAITS}root_required: CUSTOM_GOLD",
        "placement.query.bad_value",
    ),
    (
        "any of root traits",
        "1.39",
        "resources=VCPU:1&root_required=in:CUSTOM_GOLD",
        "in:",
        None,
    ),
    (
        "no suffix in a subtree",
        "1.36",
        "resources1=VCPU:1&same_subtree=1,",
        "Empty string (unsuffixed group) can not be specified in `same_subtree`",
        "placement.query.bad_value",
    ),
    (
        "unknown suffix in a subtree",
        "1.36",
        "resources1=VCPU:1&same_subtree=1,2",
        "Real suffixes should be specified in `same_subtree`:",
        "placement.query.bad_value",
    ),
    (
        "a group without resources in no subtree",
        "1.36",
        "resources1=VCPU:1&required2=CUSTOM_GOLD&group_policy=none",
        "Resourceless suffixed group request should be specified in `same_subtree` query param",
        "placement.query.bad_value",
    ),
    (
        "no resources at all",
        "1.36",
        "required=CUSTOM_GOLD",
        "There must be at least one resources or resources[$S] parameter.",
        "placement.query.missing_value",
    ),
    (
        "no groups",
        "1.25",
        "limit=1",
        "At least one request group (`resources` or `resources{$S}`) is required.",
        None,
    ),
    (
        "traits without resources",
        "1.25",
        "resources=VCPU:1&required1=CUSTOM_GOLD&required2=CUSTOM_GOLD",
        (
            "All traits parameters must be associated with resources.  Found the following "
            "orphaned traits keys: required1, required2"
        ),
        None,
    ),
    (
        "aggregates without resources",
        "1.25",
        f"resources=VCPU:1&member_of1={UUID_1}",
        (
            "All member_of parameters must be associated with resources. Found the following "
            "orphaned member_of keys: member_of1"
        ),
        None,
    ),
    (
        "a tree without resources",
        "1.31",
        f"resources=VCPU:1&in_tree1={UUID_1}",
        "All request groups must specify resources.",
        None,
    ),
    (
        "required and forbidden",
        "1.25",
        "resources1=VCPU:1&required1=CUSTOM_GOLD,!CUSTOM_GOLD",
        f"{BAD_TRAITS}the following traits keys: required1: (CUSTOM_GOLD)",
        None,
    ),
    (
        "several groups without a policy",
        "1.25",
        "resources1=VCPU:1&resources2=VCPU:1",
        (
            'The "group_policy" parameter is required when specifying more than one "resources{N}" '
            "parameter."
        ),
        None,
    ),
    (
        "unknown trait",
        "1.17",
        "resources=VCPU:1&required=CUSTOM_BOGUS",
        "No such trait(s): CUSTOM_BOGUS.",
        None,
    ),
    (
        "unknown trait of the root",
        "1.35",
        "resources=VCPU:1&root_required=!CUSTOM_BOGUS",
        "No such trait(s): CUSTOM_BOGUS.",
        None,
    ),
    (
        "unknown class",
        "1.10",
        "resources=BOGUS:1",
        "Invalid resource class in resources parameter",
        None,
    ),
    (
        "no uuid of a tree",
        "1.31",
        "resources=VCPU:1&in_tree=bogus",
        "Expected 'in_tree' parameter to be a format of uuid",
        None,
    ),
    (
        "contradiction before an unknown name",
        "1.25",
        "resources=BOGUS:1&required=CUSTOM_GOLD,!CUSTOM_GOLD",
        BAD_TRAITS,
        None,
    ),
)


@pytest.mark.parametrize(
    ("version", "query", "told", "code"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED]
)
def test_query_that_breaks_a_rule_is_refused(
    client: PlacementClient, host: Any, *, version: str, query: str, told: str, code: str | None
) -> None:
    assert host
    answer = client.get(f"{PATH}?{query}", version=version)
    assert answer.status == 400
    assert told in answer.error["detail"]
    if code is not None:
        assert answer.error["code"] == code


@pytest.mark.parametrize(
    "query",
    [
        f"resources=VCPU:1&in_tree={UUID_1}",
        f"resources=VCPU:1&member_of={UUID_1}",
        "resources=VCPU:99999999999999999999",
    ],
)
def test_what_does_not_exist_or_cannot_be_matches_nothing(
    client: PlacementClient, host: Any, query: str
) -> None:
    assert host
    answer = client.get(f"{PATH}?{query}")
    assert answer.status == 200
    assert answer.json["allocation_requests"] == []


def test_other_methods_and_forms_are_refused(client: PlacementClient) -> None:
    answer = client.post(PATH, {})
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    assert client.get(f"{PATH}?resources=VCPU:1", Accept="text/plain").status == 406


def test_caller_without_the_role_is_refused(client: PlacementClient) -> None:
    client.token = "someone"  # noqa: S105 - a user name
    assert client.get(f"{PATH}?resources=VCPU:1").status == 403


def test_unknown_name_is_known_once_it_was_made(client: PlacementClient, host: Any) -> None:
    query = f"{PATH}?resources=VCPU:1&required=CUSTOM_NEW"
    assert client.get(query).status == 400
    assert client.put("/traits/CUSTOM_NEW").status == 201
    assert client.get(query).json["allocation_requests"] == []
    body = {"traits": ["CUSTOM_NEW"], "resource_provider_generation": 0}
    assert client.put(f"/resource_providers/{host.uuid}/traits", body).status == 200
    assert len(client.get(query).json["allocation_requests"]) == 1


@pytest.mark.parametrize("snapshot", ["process", "off"])
def test_both_kinds_of_snapshot_answer_alike(
    client: PlacementClient, host: Any, settings: Any, snapshot: str
) -> None:
    placement_settings(settings, snapshot=snapshot)
    reset_snapshot()
    assert host
    answer = client.get(f"{PATH}?resources=VCPU:1")
    assert len(answer.json["allocation_requests"]) == 1


def test_site_can_stop_searches_and_shuffle_them(client: PlacementClient, settings: Any) -> None:
    uuids = {str(make_provider(f"h{number}", inventories={"VCPU": 4}).uuid) for number in range(20)}
    placement_settings(settings, max_allocation_candidates=5)
    assert len(client.get(f"{PATH}?resources=VCPU:1").json["allocation_requests"]) == 5
    placement_settings(settings, randomize_allocation_candidates=True)
    seen: set[str] = set()
    for _ in range(200):
        (request,) = client.get(f"{PATH}?resources=VCPU:1&limit=1").json["allocation_requests"]
        seen |= set(request["allocations"])
        if seen == uuids:
            break
    assert seen == uuids


def test_more_candidates_than_anybody_can_read_are_refused(
    client: PlacementClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_provider("root")
    for number in range(8):
        make_provider(f"vf{number}", parent=root, inventories={"SRIOV_NET_VF": 9})

    def ask(groups: int, limit: str) -> Any:
        parts = "&".join(f"resources{number}=SRIOV_NET_VF:1" for number in range(groups))
        return client.get(f"{PATH}?{parts}&group_policy=none{limit}")

    assert ask(6, "").status == 400
    monkeypatch.setattr("placement.selectors.candidates.MOST_ANSWERED", 8**3)
    for limit in ("", "&limit=999999999999999999999999999999"):
        assert len(ask(3, limit).json["allocation_requests"]) == 8**3
        answer = ask(4, limit)
        assert answer.status == 400
        assert "give a smaller limit" in answer.error["detail"]


def test_strict_reference_is_a_setting(client: PlacementClient, settings: Any) -> None:
    make_provider("host", inventories={"VCPU": 4})
    make_provider("other", traits=("CUSTOM_X",))
    query = f"{PATH}?resources_A=VCPU:1&required_B=!CUSTOM_X&same_subtree=_A,_B&group_policy=none"
    assert len(client.get(query).json["allocation_requests"]) == 1
    placement_settings(settings, strict_reference=True)
    assert client.get(query).json["allocation_requests"] == []


def test_searches_are_counted(client: PlacementClient, host: Any) -> None:
    assert host

    def count() -> float:
        line = 'placement_candidates_seconds_count{groups="2",limited="true"} '
        found = [row for row in metrics_page().decode().splitlines() if row.startswith(line)]
        return float(found[0].removeprefix(line)) if found else 0.0

    before = count()
    answer = client.get(f"{PATH}?resources=VCPU:1&resources1=VCPU:1&limit=3")
    assert answer.status == 200
    assert count() == before + 1


def test_a_search_with_too_many_combinations_says_how_to_narrow_it(settings: Any) -> None:
    placement_settings(settings, max_candidate_combinations=1000)
    client = PlacementClient()
    root = make_provider("root")
    for number in range(6):
        make_provider(f"child {number}", parent=root, inventories={"VCPU": 3})
    groups = "&".join(f"resources_{number}=VCPU:2" for number in range(7))
    answer = client.get(f"{PATH}?{groups}&group_policy=none&limit=1")
    assert answer.status == 400
    assert (
        "among 1000 ways to combine the request groups there was no candidate"
        in (answer.error["detail"])
    )
    groups = "&".join(f"resources_{number}=VCPU:2" for number in range(3))
    assert len(client.get(f"{PATH}?{groups}&group_policy=none").json["allocation_requests"]) == 120


def test_an_answer_does_not_outlive_a_write(client: PlacementClient, host: Any) -> None:
    path = f"{PATH}?resources=VCPU:1"
    for used in (4, 5, 6):
        for _ in range(2):
            summary = client.get(path).json["provider_summaries"][str(host.uuid)]
            assert summary["resources"]["VCPU"]["used"] == used
        assert client.allocate(uuid(), {str(host.uuid): {"VCPU": 1}}).status == 204
