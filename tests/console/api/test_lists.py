"""Lists of operators: pages, filters, orders, refusals, and what they cost."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode as b64encode
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.dateparse import parse_datetime
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from console.api.filters import BeforeFilter, FlagFilter, SinceFilter
from console.api.paging import DEFAULT_LIMIT, MOST_ROWS
from console.api.urls import LISTS
from console.api.views import ReadViewSet
from hosts.models import Host
from journal.metrics import metric_name
from tests.admin.conftest import grow_region
from tests.api.liquid_client import MEMBER
from tests.console.api.conftest import ask, key_field, page, problem, walked
from tests.examples import few
from tests.factories import (
    make_allocation,
    make_commitment,
    make_host,
    make_hosts,
    make_project,
    make_reservation,
    make_slot,
    make_vm,
)

pytestmark = pytest.mark.django_db

each_list = pytest.mark.parametrize("view", LISTS, ids=lambda view: view.path_label)
HOSTS = "/api/v1/hosts"
VALUES_TRIED = 4


def orders(view: type[ReadViewSet]) -> list[str]:
    return [sign + name for name in view.orderings for sign in ("", "-")]


def listed(view: type[ReadViewSet], **parameters: str) -> list[dict[str, Any]]:
    return walked(f"{view.path_label}?{urlencode({'limit': MOST_ROWS, **parameters})}")


@each_list
def test_every_row_of_a_list_is_told_alike_by_its_own_path(
    region: None, view: type[ReadViewSet]
) -> None:
    rows = page(view.path_label)["items"]
    assert rows
    for row in rows[:3]:
        path = f"{view.path_label}/{quote(str(row[key_field(view)]), safe='')}"
        assert page(path) == row


@each_list
def test_pages_of_one_row_are_the_whole_list_in_order(
    region: None, view: type[ReadViewSet]
) -> None:
    for ordering in orders(view):
        check_pages(view, ordering)


def check_pages(view: type[ReadViewSet], ordering: str) -> None:
    rows = walked(f"{view.path_label}?limit=1&ordering={ordering}")
    key = key_field(view)
    at_once = listed(view, ordering=ordering)
    assert [row[key] for row in rows] == [row[key] for row in at_once]
    assert len({row[key] for row in rows}) == len(rows) == view.queryset.count()  # type: ignore[union-attr]
    backwards = ordering.removeprefix("-") if ordering.startswith("-") else f"-{ordering}"
    assert listed(view, ordering=backwards) == at_once[::-1]


def test_page_costs_as_many_statements_whatever_its_size(region: None) -> None:
    counts = []
    for grown in (0, 5):
        grow_region(grown)
        counts.append({view.path_label: statements_of(view) for view in LISTS})
    assert counts[0] == counts[1]
    assert max(counts[0].values()) <= 2


def statements_of(view: type[ReadViewSet]) -> int:
    with CaptureQueriesContext(connection) as asked:
        page(view.path_label)
    return len(asked)


def statement_of_a_page(path: str) -> str:
    """Return the statement that reads the rows of a page."""
    with CaptureQueriesContext(connection) as asked:
        page(path)
    return str(asked[0]["sql"])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


@each_list
def test_page_is_read_along_an_index(region: None, view: type[ReadViewSet]) -> None:
    for ordering in orders(view):
        check_plan(view, ordering)


def check_plan(view: type[ReadViewSet], ordering: str) -> None:
    first = f"{view.path_label}?limit=1&ordering={ordering}"
    further = page(first)["next"] or first
    table = view.queryset.model._meta.db_table  # type: ignore[union-attr]
    for path in (first, further):
        statement = statement_of_a_page(path)
        assert "COUNT(" not in statement
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute("SET LOCAL enable_bitmapscan = off")
            cursor.execute("SET LOCAL enable_sort = off")
            cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}")
            answered = cursor.fetchone()[0]
            cursor.execute("RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_sort")
        plan = (json.loads(answered) if isinstance(answered, str) else answered)[0]["Plan"]
        types = [node["Node Type"] for node in nodes(plan)]
        assert not {"Sort", "Incremental Sort"} & set(types), plan
        mine = [node for node in nodes(plan) if node.get("Relation Name") == table]
        assert {node["Node Type"] for node in mine} <= {"Index Scan", "Index Only Scan"}, plan
        if path == further != first:
            assert any("Index Cond" in node for node in mine), plan


def test_rows_that_come_and_go_between_pages_shift_nothing(db: None) -> None:
    make_hosts(6)
    first = page(f"{HOSTS}?limit=2")
    make_host("h0")
    Host.objects.get(name="h2").room.delete()
    Host.objects.get(name="h2").delete()
    assert [row["name"] for row in walked(first["next"])] == ["h3", "h4", "h5", "h6"]


TOLD_OTHERWISE: dict[tuple[str, str], Callable[[dict[str, Any], str], bool]] = {
    ("/api/v1/reservations", "host_name"): lambda row, value: (
        value in {row["target_host_name"], row["confirmed_host_name"]}
    ),
    ("/api/v1/hosts", "is_ready"): lambda row, value: row["is_ready"] is (value == "true"),
    ("/api/v1/hosts", "trait"): lambda row, value: value in row["traits"],
    ("/api/v1/reservations", "vm_uuid"): lambda row, value: (
        row["vm_uuid"] == value or value in {vm["vm_uuid"] for vm in row["vms"]}
    ),
    ("/api/v1/refusals", "commitment_uuid"): lambda row, value: (
        value in {asked["commitment"] for asked in row["asked"]}
    ),
    ("/api/v1/refusals", "project_id"): lambda row, value: (
        value in {asked["project"] for asked in row["asked"]}
    ),
    ("/api/v1/failover-reservations", "vm_uuid"): lambda row, value: value in row["vm_uuids"],
}


def passes(view: type[ReadViewSet], name: str) -> Callable[[dict[str, Any], str], bool]:
    """Return the slow, obvious version of a filter over rows as they are told."""
    otherwise = TOLD_OTHERWISE.get((view.path_label, name))
    if otherwise is not None:
        return otherwise
    kind = view.filterset_class.base_filters[name]
    source = kind.field_name
    fields = view.serializer_class().fields
    told = name if name in fields else next(
        known for known, field in fields.items() if field.source == source
    )  # fmt: skip

    def passed(row: dict[str, Any], value: str) -> bool:
        if isinstance(kind, SinceFilter | BeforeFilter):
            if row[told] is None:
                return False
            at, limit = parse_datetime(row[told]), parse_datetime(value)
            assert at is not None
            assert limit is not None
            return at >= limit if isinstance(kind, SinceFilter) else at < limit
        if isinstance(kind, FlagFilter):
            return bool(row[told] is (value == "true"))
        return bool(row[told] == value)

    return passed


def tried_values(view: type[ReadViewSet], name: str, rows: list[dict[str, Any]]) -> set[str]:
    """Return values that rows have, and one that none has."""
    kind = view.filterset_class.base_filters[name]
    if isinstance(kind, FlagFilter):
        return {"true", "false"}
    if "choices" in kind.extra:
        return {value for value, _ in kind.extra["choices"]}
    if isinstance(kind, SinceFilter | BeforeFilter):
        field = kind.field_name
        fields = view.serializer_class().fields
        told = next(known for known, known_as in fields.items() if known_as.source == field)
        return {row[told] for row in rows if row[told]} | {"2020-01-01T00:00:00Z"}
    if name == "uuid" and view.lookup_field == "uuid":
        return {row["uuid"] for row in rows} | {"00000000-0000-4000-8000-ffffffffffff"}
    texts = {
        "host_name": ("host_name", "target_host_name"),
        "commitment_uuid": ("commitment_uuid",),
    }.get(name, (name,))
    found = {str(row[text]) for row in rows for text in texts if row.get(text)}
    found |= {
        asked[key]
        for row in rows
        for asked in row.get("asked", ())
        for key in ("commitment", "project")
    }
    found |= {vm["vm_uuid"] for row in rows for vm in row.get("vms", ())}
    found |= set(rows[0].get("vm_uuids", ()))
    return found | {"of nobody"}


def some_of(values: set[str]) -> list[str]:
    """Return a few of the values: the first, the last, and others at even steps between them."""
    found, last = sorted(values), VALUES_TRIED - 1
    places = {step * (len(found) - 1) // last for step in range(VALUES_TRIED)}
    return [found[place] for place in sorted(places)]


@each_list
def test_filters_keep_the_rows_that_have_the_value(region: None, view: type[ReadViewSet]) -> None:
    rows = listed(view)
    for name in view.filterset_class.base_filters:
        passed = passes(view, name)
        for value in some_of(tried_values(view, name, rows)):
            expected = [row for row in rows if passed(row, value)]
            assert listed(view, **{name: value}) == expected, (name, value)


def test_names_stand_beside_ids_and_amounts_in_the_field_of_their_unit(region: None) -> None:
    host = make_host("hx", memory_gib=8)
    make_project("project-1", name="customer")
    commitment = make_commitment(project_id="project-1", flavor_group="hana_1")
    slot = make_slot(commitment, host, memory_gib=4)
    vm = make_vm(host=host, slot=slot, project_id="project-1")
    told = page(f"/api/v1/commitments/{commitment.commitment_uuid}")
    assert told["requested_memory_bytes"] == commitment.requested_amount
    assert told["requested_vcpus"] is None
    assert told["project_name"] == "customer"
    held = page(f"/api/v1/reservations/{slot.uuid}")
    assert (held["commitment_uuid"], held["target_host_name"]) == (commitment.commitment_uuid, "hx")
    assert [found["vm_uuid"] for found in held["vms"]] == [vm.openstack_id]
    room = page("/api/v1/hosts/hx")["room"]
    assert room["effective_memory_bytes"] == 8 << 30
    assert page(f"/api/v1/vms/{vm.openstack_id}")["host_name"] == "hx"


def test_failover_reservation_names_its_host_and_vms(region: None) -> None:
    spare = make_host("spare-x")
    vm = make_vm(host=make_host("hy"))
    slot = make_reservation(spare)
    make_allocation(slot, vm)
    found = listed_by("/api/v1/reservations", vm_uuid=vm.openstack_id)
    assert [row["uuid"] for row in found] == [str(slot.uuid)]


def listed_by(path: str, **parameters: str) -> list[dict[str, Any]]:
    return walked(f"{path}?{urlencode(parameters)}")


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("colour=red", "colour", "known are agent_mode, building_block"),
        ("zone=az-a&zone=az-b", "zone", "2 times"),
        ("zone=", "zone", "must not be empty"),
        ("state=sleepy", "state", "up, down, unknown"),
        ("updated_since=yesterday", "updated_since", "date/time"),
        ("updated_since=0001-01-01T00:00:00%2B01:00", "updated_since", "date/time"),
        ("updated_since=9999-12-31T23:59:59-01:00", "updated_since", "date/time"),
        ("name=a%00b", "name", "Null characters"),
        ("name=" + "x" * 256, "name", "at most 255"),
        ("limit=0", "limit", "from 1 to 1000"),
        ("limit=1001", "limit", "from 1 to 1000"),
        ("limit=x", "limit", "from 1 to 1000"),
        ("limit=%C2%B2", "limit", "from 1 to 1000"),
        ("ordering=state", "ordering", "none of name, zone"),
        ("ordering=--name", "ordering", "none of name, zone"),
        ("cursor=x", "cursor", "begin without one"),
    ],
)
def test_parameter_that_cannot_be_used_is_named(
    db: None, query: str, field: str, words: str
) -> None:
    refused = problem(ask(f"{HOSTS}?{query}"), 400)
    assert (refused["field"], refused["code"]) == (field, "invalid_input")
    assert words in refused["detail"]


def test_offset_that_the_database_does_not_know_is_a_time_all_the_same(db: None) -> None:
    make_host("h1")
    assert len(page(f"{HOSTS}?updated_since=2020-01-01T00:00:00%2B23:59")["items"]) == 1
    assert page(f"{HOSTS}?updated_since=4000-01-01T00:00:00-22:07")["items"] == []


def test_refusal_is_counted_as_what_it_is(db: None) -> None:
    counted = {"method": "GET", "path": HOSTS, "status": "400"}
    series = metric_name("scheduler_api_request_duration_seconds_count")

    def count(error: str) -> float:
        return REGISTRY.get_sample_value(series, {**counted, "error": error}) or 0.0

    before = count("failed to process request")
    problem(ask(f"{HOSTS}?limit=0"), 400)
    assert count("failed to process request") == before + 1
    assert count("failed to process scheduling decision") == 0


def test_cursor_of_another_order_is_refused(db: None) -> None:
    make_hosts(2)
    cursor = page(f"{HOSTS}?limit=1")["next"].partition("cursor=")[2]
    assert problem(ask(f"{HOSTS}?ordering=zone&cursor={cursor}"), 400)["field"] == "cursor"


@pytest.mark.parametrize(
    ("at", "status"),
    [
        ("2026-03-01T00:00:00+23:59", 200),
        ("2026-03-01T00:00:00", 200),
        ("0001-01-01T00:00:00+01:00", 400),
        ("yesterday", 400),
    ],
)
def test_time_in_a_cursor_is_understood_or_refused(db: None, at: str, status: int) -> None:
    cursor = b64encode(json.dumps(["zone", "az-a", "", "day", at]).encode()).decode().rstrip("=")
    assert ask(f"/api/v1/capacity-history?cursor={cursor}").status_code == status


@few(25)
@given(cursor=st.text(min_size=1, max_size=40))
@example("WyJuYW1lIiwiXHVkODAwIl0")
@example("WyJuYW1lIiwiYVx1MDAwMGIiXQ")
@example("WyJuYW1lIl0")
@example("bnVsbA")
@example("WyItY3JlYXRlZCIsICI5OTk5OTk5OTk5OTk5OTk5OTk5OTk5Il0")
@example("WyItY3JlYXRlZCIsIHt9XQ")
def test_any_cursor_is_refused_or_leads_on(cursor: str) -> None:
    for path in (HOSTS, "/api/v1/decisions"):
        response = ask(f"{path}?{urlencode({'cursor': cursor})}")
        assert response.status_code in {200, 400}, response.content


@few(40)
@given(
    view=st.sampled_from(LISTS),
    key=st.text(min_size=1, max_size=300).filter(lambda text: "/" not in text),
)
@example(view=LISTS[0], key="\x00")
@example(view=LISTS[-1], key="9" * 40)
def test_any_key_is_found_or_not(view: type[ReadViewSet], key: str) -> None:
    response = ask(f"{view.path_label}/{quote(key, safe='')}")
    assert response.status_code in {200, 404}, response.content
    if response.status_code == 200:  # every installation begins with some entries of the audit
        assert response.json() in page(view.path_label)["items"]


def test_default_page_is_bounded(db: None) -> None:
    make_hosts(DEFAULT_LIMIT + 1)
    first = page(HOSTS)
    assert len(first["items"]) == DEFAULT_LIMIT
    assert len(page(first["next"])["items"]) == 1


@each_list
def test_readers_alone_are_let_in(db: None, view: type[ReadViewSet]) -> None:
    for path in (view.path_label, f"{view.path_label}/1"):
        anonymous = ask(path, token="")
        assert problem(anonymous, 401)["code"] == "unauthenticated"
        assert anonymous["WWW-Authenticate"]
        assert problem(ask(path, token=MEMBER), 403)["code"] == "forbidden"
    assert ask(view.path_label).status_code == 200


def test_single_row_takes_no_parameters(db: None) -> None:
    make_host("h1")
    assert problem(ask(f"{HOSTS}/h1?zone=az-a"), 400)["field"] == "zone"


def test_who_has_the_answer_already_gets_no_body(db: None) -> None:
    make_host("h1")
    for path in (HOSTS, f"{HOSTS}/h1"):
        first = ask(path)
        tag = first["ETag"]
        assert tag.startswith('W/"')
        for known in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
            again = ask(path, **{"If-None-Match": known})
            assert (again.status_code, again.content, again["ETag"]) == (304, b"", tag)
        assert ask(path, **{"If-None-Match": '"x"'}).content == first.content
        Host.objects.update(disabled_reason="moved on")
        changed = ask(path, **{"If-None-Match": tag})
        assert changed.status_code == 200
        assert changed["ETag"] != tag
        Host.objects.update(disabled_reason="")


def test_head_is_a_get_without_its_body(db: None) -> None:
    answer = ask(HOSTS, method="HEAD")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer["ETag"] == ask(HOSTS)["ETag"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
def test_other_methods_are_refused(db: None, method: str) -> None:
    refused = ask(HOSTS, method=method)
    assert problem(refused, 405)["code"] == "request_refused"
    assert refused["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "BREW"])
@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/",
        "/api/v1",
        "/api/v1/",
        "/api/v2/hosts",
        "/api/v1/hosts/",
        "/api/v1/hosts/a/b",
        "/api/v1/reservations/7",
        "/api/v1/decisions/seven",
        "/api/v1/failover",
        "/api/v1/commitments/what-if/",
        "/api/v1/\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ],
)
def test_path_that_leads_nowhere_is_a_problem(db: None, method: str, path: str) -> None:
    answer = ask(quote(path), method=method)
    assert answer.status_code == 404
    if method != "HEAD":
        assert problem(answer, 404)["code"] == "not_found"
    assert problem(ask(quote(path), token=""), 401)["code"] == "unauthenticated"


def test_paths_that_were_there_answer_as_before(db: None) -> None:
    assert problem(ask("/api/v1/commitments/what-if"), 405)["code"] == "request_refused"
    assert ask("/api/v1/failover/drills").status_code == 200
