"""Odd requests at every endpoint of Placement: no 500, and usage stays the sum of allocations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings as django_settings
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from placement.api import operator_urls, urls
from placement.api.base import METHODS
from tests.fuzz.conftest import bounded, rolled_back, without_closing_connections
from tests.fuzz.placement_strategies import (
    AGGREGATE,
    CHILD,
    ENDPOINTS,
    HELD,
    KEYS,
    LISTS,
    ODD_HEADERS,
    ODD_TEXTS,
    QUERY_VALUES,
    RAW_BYTES,
    ROOT,
    SHARED,
    VERSIONS,
    WITH_BODY,
    WITH_NAME,
    Endpoint,
    damaged,
    query_strings,
    spoiled,
)
from tests.fuzz.strategies import encoded
from tests.fuzz.wsgi import Answer, call
from tests.placement.client import drift
from tests.placement.rows import allocate, make_class, make_provider

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("providers")]

OUR_ID = re.compile(r"req-[0-9a-f-]{36}")
ADMIN = {"X-Auth-Token": "admin", "X-Roles": "admin,service"}


@pytest.fixture(scope="module")
def providers(django_db_setup: None, django_db_blocker: Any, noauth: None) -> Iterator[None]:
    """A tree, a shared disk and a consumer; every test undoes what it writes."""
    del django_db_setup, noauth
    environment = django_settings.HEADROOM
    changed = environment.placement.model_copy(
        update={"snapshot": "off", "cors_allowed_origin": ("http://valid.example.com",)}
    )
    open_server = environment.model_copy(update={"auth": "noauth", "placement": changed})
    with (
        override_settings(HEADROOM=open_server),
        django_db_blocker.unblock(),
        without_closing_connections(),
        rolled_back(),
    ):
        root = make_provider(
            "root",
            uuid=UUID(ROOT),
            inventories={"VCPU": 64, "MEMORY_MB": 4096},
            traits=("HW_CPU_X86_AVX",),
            aggregates=(UUID(AGGREGATE),),
        )
        make_provider("child", uuid=UUID(CHILD), parent=root, inventories={"PCPU": 8})
        make_provider(
            "shared",
            uuid=UUID(SHARED),
            inventories={"DISK_GB": 100},
            traits=("MISC_SHARES_VIA_AGGREGATE", "CUSTOM_FUZZ"),
            aggregates=(UUID(AGGREGATE),),
        )
        make_class("CUSTOM_FUZZ")
        allocate(UUID(HELD), {root: {"VCPU": 2}}, type_name="INSTANCE")
        yield


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path} {endpoint.version}"


def send(
    endpoint: Endpoint,
    *,
    name: bytes | str = "",
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    query: str = "",
) -> Answer:
    """Send a request, look at the answer and at the rows, and undo what it wrote."""
    given_name = name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")
    path = endpoint.path.encode().replace(b"{}", given_name)
    sent = {**ADMIN, "OpenStack-API-Version": f"placement {endpoint.version}", **(headers or {})}
    with rolled_back():
        answer = call(endpoint.method, path, body, sent, query)
        assert answer.status < 500, (name_of(endpoint), answer)
        if answer.status < 400:
            assert drift() == []
    assert not any("\n" in text or "\r" in text for text in answer.headers.values())
    if path.startswith(b"/placement"):
        assert OUR_ID.fullmatch(answer.headers["x-openstack-request-id"])
    return answer


def test_every_path_and_method_is_fuzzed() -> None:
    patterns = {
        (name.upper(), view.pattern)
        for url in (*urls.urlpatterns[:-1], *operator_urls.urlpatterns)
        if (view := getattr(url.callback, "view_class", None))
        for name in METHODS
        if hasattr(view, name)
    }
    fuzzed = {
        (endpoint.method, re.sub(r"\{\w*\}|[0-9a-f]{8}-[0-9a-f-]{27}", "{}", endpoint.path))
        for endpoint in ENDPOINTS
    }
    wanted = {
        (
            method,
            re.sub(r"\{\w+\}", "{}", path if path.startswith("/api/") else f"/placement{path}"),
        )
        for method, path in patterns
    }
    assert fuzzed == {(method, path.removesuffix("/")) for method, path in wanted}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
def test_requests_that_are_spoiled_lead_somewhere_when_they_are_not(endpoint: Endpoint) -> None:
    body = b"" if endpoint.body is None else encoded(endpoint.body)
    query = {
        "/placement/usages": "project_id=project-1",
        "/placement/allocation_candidates": "resources=VCPU:1",
        "/api/v1/placement/explain": "resources=VCPU:1",
    }.get(endpoint.path, "")
    statuses = {
        send(endpoint, name=name, body=body, query=query).status for name in endpoint.known or ("",)
    }
    assert statuses <= {200, 201, 204, 400, 404, 409}
    # A root that has allocations and children, a standard class, a known consumer ... may refuse.
    assert statuses & {200, 201, 204, 409}


@bounded(75)
@given(data=st.data())
def test_no_body_is_a_500(data: st.DataObject) -> None:
    endpoint = data.draw(st.sampled_from(WITH_BODY))
    body = data.draw(spoiled(endpoint.body))
    name = data.draw(st.sampled_from(endpoint.known or ("",)))
    versions = st.one_of(st.just(f"placement {endpoint.version}"), st.sampled_from(VERSIONS))
    headers = {"OpenStack-API-Version": data.draw(versions)}
    send(endpoint, name=name, body=encoded(body), headers=headers)


@bounded(50)
@given(data=st.data())
def test_no_bytes_of_a_body_are_a_500(data: st.DataObject) -> None:
    endpoint = data.draw(st.sampled_from(WITH_BODY))
    name = data.draw(st.sampled_from(endpoint.known or ("",)))
    send(endpoint, name=name, body=data.draw(damaged(endpoint.body)))


@bounded(50)
@given(data=st.data())
def test_no_name_in_a_path_is_a_500(data: st.DataObject) -> None:
    endpoint = data.draw(st.sampled_from(WITH_NAME))
    names = st.one_of(
        st.sampled_from([text.encode() for text in ODD_TEXTS]),
        st.sampled_from(RAW_BYTES),
        st.binary(max_size=40),
    )
    body = b"" if endpoint.body is None else encoded(endpoint.body)
    send(endpoint, name=data.draw(names), body=body)


@bounded(100)
@given(
    endpoint=st.sampled_from(LISTS),
    query=query_strings(),
    version=st.one_of(st.just("placement 1.39"), st.sampled_from(VERSIONS)),
)
def test_no_query_is_a_500(endpoint: Endpoint, query: str, version: str) -> None:
    send(endpoint, query=query, headers={"OpenStack-API-Version": version})


@pytest.mark.parametrize(("path", "key"), [(path, key) for path in KEYS for key in KEYS[path]])
def test_no_value_of_a_query_parameter_is_a_500(path: str, key: str) -> None:
    for value in QUERY_VALUES:
        raw = f"{key}={value}".encode("utf-8", "replace").decode("latin-1")
        rest = "&resources=VCPU:1" if path.endswith("candidates") else ""
        send(Endpoint("GET", path), query=f"{raw}{rest}")


@bounded(60)
@given(data=st.data())
def test_no_header_is_a_500(data: st.DataObject) -> None:
    endpoint = data.draw(st.sampled_from(ENDPOINTS))
    chosen = data.draw(st.lists(st.sampled_from(sorted(ODD_HEADERS)), max_size=3, unique=True))
    headers = {name: data.draw(st.sampled_from(ODD_HEADERS[name])) for name in chosen}
    body = b"" if endpoint.body is None else encoded(endpoint.body)
    if endpoint.path.startswith("/api/"):  # a library reads it there; web servers refuse odd ones
        headers.pop("Content-Length", None)
    send(endpoint, name=(endpoint.known or ("",))[0], body=body, headers=headers)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"])
@pytest.mark.parametrize("path", sorted({endpoint.path for endpoint in ENDPOINTS}))
def test_no_method_is_a_500(path: str, method: str) -> None:
    send(Endpoint(method, path), name=ROOT, body=b"{}")


@pytest.mark.parametrize(
    ("endpoint", "name", "headers", "query", "status"),
    [
        pytest.param(
            Endpoint("DELETE", "/placement/allocations/{}"),
            HELD,
            {"If-Match": "9" * 5000},
            "",
            409,
            id="a generation of 5000 digits",
        ),
        pytest.param(
            Endpoint("GET", "/placement/allocation_candidates"),
            "",
            {},
            "resources=VCPU:1&limit=x&limit=1",
            400,
            id="a first limit that is no number",
        ),
        pytest.param(
            Endpoint("GET", "/placement/allocation_candidates"),
            "",
            {},
            "resources=VCPU:1&limit=" + "9" * 5000,
            200,
            id="a limit of 5000 digits",
        ),
        pytest.param(
            Endpoint("PUT", "/placement/traits/{}"), "CUSTOM_X\n", {}, "", 400, id="a line break"
        ),
    ],
)
def test_what_was_a_500_once(
    endpoint: Endpoint, name: str, headers: dict[str, str], query: str, status: int
) -> None:
    assert send(endpoint, name=name, headers=headers, query=query).status == status


@pytest.mark.parametrize(
    ("endpoint", "body", "told"),
    [
        pytest.param(
            Endpoint("POST", "/placement/resource_classes"),
            b'{"name": "CUSTOM_X\\n"}',
            "Failed validating 'pattern'",
            id="a class with a line break",
        ),
        pytest.param(
            Endpoint("POST", "/placement/resource_classes"),
            b"[" * 100_000,
            "Malformed JSON",
            id="deep nesting",
        ),
    ],
)
def test_bodies_that_were_a_500_once(endpoint: Endpoint, body: bytes, told: str) -> None:
    answer = send(endpoint, body=body)
    assert answer.status == 400
    assert told in answer.json()["errors"][0]["detail"]
