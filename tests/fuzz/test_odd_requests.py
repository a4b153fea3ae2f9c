"""Odd paths, methods, headers and bodies at every endpoint: no 500, and always a request id."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.api.parsing import MAX_PROJECT_ID_LENGTH
from tests.fuzz.conftest import bounded, rolled_back
from tests.fuzz.region import RESOURCES, ZONES
from tests.fuzz.strategies import JUNK, encoded
from tests.fuzz.wsgi import Answer, call
from tests.ledger import assert_ledger_holds

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("region")]

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get")
ENDPOINTS = {
    "info": "/commitments/v1/info",
    "report-capacity": "/commitments/v1/report-capacity",
    "report-usage": "/commitments/v1/projects/alpha/report-usage",
    "quota": "/commitments/v1/projects/alpha/quota",
    "change-commitments": "/commitments/v1/change-commitments",
    "what-if": "/api/v1/commitments/what-if",
    "scheduler": "/scheduler/nova/external",
    "explain": "/api/v1/scheduling/explain",
    "livez": "/livez",
    "healthz": "/healthz",
    "readyz": "/readyz",
    "statusz": "/statusz",
    "metrics": "/metrics",
    "login": "/admin/login/",
}
SEGMENTS = (
    "alpha",
    "",
    ".",
    "..",
    "\x00",
    "%00",
    "%2e%2e",
    "проект",
    "\ud83d".encode("utf-8", "surrogatepass").decode("latin-1"),
    "a b",
    "a\nb",
    "a\r\nX-Injected: 1",
    "v1",
    "info",
    "projects",
    "quota",
    "report-usage",
    "'",
    "x" * 64,
    "x" * 65,
    "x" * 5000,
    "\u202e",
    ";",
    "?",
    "#",
)


def check(answer: Answer) -> None:
    assert answer.status < 500, answer
    assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])
    assert answer.headers["x-openstack-request-id"] == answer.headers["x-request-id"]


def is_ready_page(path: str) -> bool:
    return path == "/readyz"  # 503 is its way to say no


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_no_method_is_a_500(endpoint: str, method: str) -> None:
    path = ENDPOINTS[endpoint]
    with rolled_back():
        answer = call(method, path, b"{}")
    if is_ready_page(path) and answer.status == 503:
        assert answer.is_json or method == "HEAD"
    else:
        check(answer)


@bounded(40)
@given(
    start=st.sampled_from(
        ("/commitments", "/commitments/v1/projects", "", "/admin", "/scheduler/nova", "/api/v1")
    ),
    segments=st.lists(st.sampled_from(SEGMENTS), max_size=4),
    method=st.sampled_from(METHODS),
)
def test_no_path_is_a_500(start: str, segments: list[str], method: str) -> None:
    path = "/".join([start, *segments]) or "/"
    with rolled_back():
        answer = call(method, path.encode(), b"{}")
    check(answer)
    if path.startswith("/commitments"):
        assert "location" not in answer.headers


@bounded(30)
@given(
    raw=st.binary(max_size=80).filter(lambda raw: b"/" not in raw),
    method=st.sampled_from(("POST", "PUT")),
)
def test_project_id_of_any_bytes_is_never_a_500(raw: bytes, method: str) -> None:
    name = b"report-usage" if method == "POST" else b"quota"
    with rolled_back():
        answer = call(method, b"/commitments/v1/projects/" + raw + b"/" + name, b"{}")
        assert_ledger_holds()
    check(answer)
    assert answer.status in {200, 204, 400, 404}
    if not raw or b"\x00" in raw or len(raw.decode(errors="replace")) > MAX_PROJECT_ID_LENGTH:
        assert answer.status in {400, 404}


HEADER_TEXTS = st.one_of(
    st.text(st.characters(max_codepoint=255), max_size=40),
    st.sampled_from(
        ("", "a\nb", "a\r\nX-Evil: 1", "x" * 129, "x" * 20_000, "..", "\x00", "ä", "\xff\xfe", "-1")
    ),
)
HEADERS = (
    "X-Request-ID",
    "X-OpenStack-Request-ID",
    "X-Auth-Token",
    "Authorization",
    "Accept",
    "Accept-Encoding",
    "Accept-Language",
    "Content-Type",
    "Cookie",
    "If-Modified-Since",
    "If-None-Match",
    "Range",
    "Referer",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-HTTP-Method-Override",
    "X-Requested-With",
    "Transfer-Encoding",
)


@bounded(50)
@given(
    path=st.sampled_from([path for path in ENDPOINTS.values() if not is_ready_page(path)]),
    headers=st.dictionaries(st.sampled_from(HEADERS), HEADER_TEXTS, max_size=4),
    method=st.sampled_from(("GET", "POST", "PUT")),
)
def test_no_header_is_a_500(path: str, headers: dict[str, str], method: str) -> None:
    with rolled_back():
        check(call(method, path, b"{}", headers))


@pytest.mark.parametrize("length", ["", "0", "1", "99999"])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_content_length_that_lies_is_never_a_500(endpoint: str, length: str) -> None:
    if endpoint == "readyz":
        return
    method = {"quota": "PUT", "info": "GET"}.get(endpoint, "POST")
    with rolled_back():
        check(call(method, ENDPOINTS[endpoint], b"{}", {"Content-Length": length}))


@pytest.mark.parametrize(
    "query", ["a=%00", "%", "a=%ff%fe", "&&&=", "a[]=1", "format=xml", "_method=GET", "x" * 9000]
)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_query_string_is_never_a_500(endpoint: str, query: str) -> None:
    posted = ("report-capacity", "report-usage", "what-if", "scheduler", "explain")
    method = {"quota": "PUT", **dict.fromkeys(posted, "POST")}.get(endpoint, "GET")
    with rolled_back():
        answer = call(method, ENDPOINTS[endpoint], b"{}", query=query)
    if not is_ready_page(ENDPOINTS[endpoint]):
        check(answer)


zone_lists = st.lists(
    st.one_of(st.sampled_from((*ZONES, "", "any", "unknown", "зона", "x" * 300)), st.text()),
    max_size=5,
)
quotas = st.one_of(st.integers(-1, 100), st.sampled_from((2**63 - 1, 2**63, 2**64, 1.5, None)))
quota_bodies = st.fixed_dictionaries(
    {
        "resources": st.dictionaries(
            st.sampled_from((*RESOURCES, "hw_version_hana_1_instances", "other", "", "x" * 300)),
            st.fixed_dictionaries(
                {"quota": quotas},
                optional={
                    "perAZ": st.dictionaries(
                        st.sampled_from((*ZONES, "any", "", "зона")),
                        st.fixed_dictionaries({"quota": quotas}),
                        max_size=3,
                    )
                },
            ),
            max_size=4,
        )
    },
    optional={
        "projectMetadata": st.one_of(
            st.just({"uuid": "alpha", "name": "Alpha", "domain": {"uuid": "d", "name": "D"}}),
            st.sampled_from(JUNK),
        )
    },
)


@bounded(40)
@given(body=quota_bodies)
def test_quota_is_stored_as_a_whole_or_refused(body: dict[str, Any]) -> None:
    with rolled_back():
        answer = call("PUT", ENDPOINTS["quota"], encoded(body))
        check(answer)
        assert answer.status in {204, 400}
        assert_ledger_holds()
        if answer.status == 204:
            zones = json.dumps({"allAZs": list(ZONES)}).encode()
            assert call("POST", ENDPOINTS["report-usage"], zones).status == 200


@bounded(40)
@given(body=st.one_of(st.fixed_dictionaries({"allAZs": zone_lists}), st.sampled_from(JUNK)))
def test_reports_take_any_zones(body: Any) -> None:
    with rolled_back():
        capacity = call("POST", ENDPOINTS["report-capacity"], encoded(body))
        usage = call("POST", ENDPOINTS["report-usage"], encoded(body))
    check(capacity)
    assert capacity.status == 200
    check(usage)
    assert usage.status in {200, 400}
    if usage.status == 200 and isinstance(body, dict) and body.get("allAZs"):
        for resource in usage.json()["resources"].values():
            assert set(resource["perAZ"]) == set(body["allAZs"])
