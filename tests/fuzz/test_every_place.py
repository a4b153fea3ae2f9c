"""Every field of a request of every kind, with everything that could be wrong in it: no 500."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest

from tests.api.scheduler_client import NovaClient
from tests.examples import is_thorough
from tests.fuzz.conftest import rolled_back
from tests.fuzz.region import CORES, PROJECTS, RAM, ZONES, Known, body_of, current_version
from tests.fuzz.strategies import encoded, entry_of, places
from tests.fuzz.wsgi import Answer, call
from tests.ledger import assert_ledger_holds, fingerprint

pytestmark = pytest.mark.django_db(transaction=True)

METADATA = {"uuid": PROJECTS[0], "name": "Alpha", "domain": {"uuid": "d-1", "name": "D"}}
HOST = "az-a-h0"
PATHS = {
    "report-capacity": "/commitments/v1/report-capacity",
    "report-usage": "/commitments/v1/projects/alpha/report-usage",
    "quota": "/commitments/v1/projects/alpha/quota",
    "change-commitments": "/commitments/v1/change-commitments",
    "what-if": "/api/v1/commitments/what-if",
    "scheduler": "/scheduler/nova/external",
    "explain": "/api/v1/scheduling/explain",
}
REFUSALS = {
    "report-capacity": set(),
    "report-usage": {400},
    "quota": {400},
    "change-commitments": {400, 409, 422},
    "what-if": {400},
    "scheduler": {400, 404},
    "explain": {400, 404},
}
FAR = "9999-12-31T23:59:59Z"
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    2**63 - 1,
    2**63,
    10**40,
    1e300,
    float("nan"),
    "",
    "a\x00b",
    "\ud800",
    "x" * 70_000,
    FAR,
    "9999-12-31T23:59:59-12:00",
    "0001-01-01T00:00:00Z",
    [],
    {},
    [[None]],
    {"\x00": {"": None}},
)


def change_body(*, is_dry_run: bool = False) -> dict[str, Any]:
    fresh = {**entry_of("f7e5400d-0001", None, "confirmed", 2), "confirmBy": FAR}
    longer = entry_of("f7e5400d-0002", "pending", "confirmed", 1) | {"oldExpiresAt": FAR}
    return body_of({"alpha": {RAM: [fresh, longer], CORES: []}}, is_dry_run=is_dry_run)


def bodies() -> dict[str, Any]:
    """Return a request of every kind with every field there is."""
    nova = NovaClient((HOST, "az-a-h1")).body(
        hints={"_nova_check_type": ["resize"], "source_host": HOST, "domain_name": "d"},
        options={"max_candidates": 2, "ignored_reservation_types": ["failover"]},
        pipeline="",
    )
    return {
        "report-capacity": {
            "allAZs": list(ZONES),
            "demandByResource": {RAM: {"overcommitFactor": 1.5, "perAZ": {"az-a": {"usage": 1}}}},
        },
        "report-usage": {
            "allAZs": list(ZONES),
            "projectMetadata": METADATA,
            "serializedState": {"any": 1},
        },
        "quota": {
            "resources": {
                RAM: {"quota": 5, "perAZ": {zone: {"quota": 2} for zone in ZONES}},
                CORES: {"quota": 0},
            },
            "projectMetadata": METADATA,
        },
        "change-commitments": change_body(),
        "what-if": {
            "batch": change_body(),
            "at": "2035-01-01T00:00:00Z",
            "edit": {
                "hosts_added": [{"like": HOST, "count": 2}],
                "hosts_drained": [HOST],
                "hosts_failed": ["az-a-h1"],
                "commitments_added": body_of(
                    {"beta": {RAM: [entry_of("f7e5400d-0003", None, "confirmed", 1)]}}
                ),
                "commitments_expired": ["c0ffee00-0000-4000-8000-000000000003"],
            },
        },
        "scheduler": nova,
        "explain": {"explain_hosts": [HOST], **nova},
    }


def share_of(odd: Sequence[Any], number: int, kind: str) -> Sequence[Any]:
    """Return the odd things that are tried in one place: in turn, all of them when thorough.

    Nova's requests have so many places that each gets one. To explain is to ask the same with a
    field more, the first, and by a child process each: few places get any.
    """
    count = 1 if kind in {"scheduler", "explain"} else 2
    if is_thorough():
        return odd
    if kind == "explain" and number > 3 and number % 4:
        return []
    return [odd[(number * count + offset) % len(odd)] for offset in range(count)]


def send(kind: str, raw: bytes, headers: dict[str, str] | None = None) -> Answer:
    return call("PUT" if kind == "quota" else "POST", PATHS[kind], raw, headers)


def check(kind: str, answer: Answer, sent: object) -> None:
    shown = repr(sent)[:500]
    allowed = {204} if kind == "quota" else {200}
    assert answer.status in allowed | REFUSALS[kind], (answer.status, answer.body[:500], shown)
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("kind", PATHS)
def test_the_request_that_is_spoiled_is_a_good_one(region: tuple[Known, ...], kind: str) -> None:
    assert region
    with rolled_back():
        answer = send(kind, encoded(bodies()[kind]))
    assert answer.status in {200, 204}, answer
    if kind == "change-commitments":
        assert answer.json() == {}


@pytest.mark.parametrize("kind", PATHS)
def test_nothing_odd_in_any_place_is_a_500(region: tuple[Known, ...], kind: str) -> None:
    assert region
    good, before = bodies()[kind], fingerprint()
    for number, path in enumerate(places(good)):
        for odd in share_of(ODD, number, kind):
            body = deepcopy(good)
            parent: Any = body
            for step in path[:-1]:
                parent = parent[step]
            parent[path[-1]] = deepcopy(odd)
            with rolled_back():
                answer = send(kind, encoded(body))
                check(kind, answer, (path, odd))
                if answer.status >= 300:
                    assert fingerprint() == before
    assert_ledger_holds()


NAMES = ("\x00", "", "a\x00b", "\ud800", "x" * 70_000, "é" * 300, "\n", "__proto__", "0")


@pytest.mark.parametrize("kind", PATHS)
def test_no_name_of_a_field_is_a_500(region: tuple[Known, ...], kind: str) -> None:
    assert region
    good = bodies()[kind]
    named = [path for path in places(good) if isinstance(path[-1], str)]
    for number, path in enumerate(named):
        for name in share_of(NAMES, number, kind):
            body = deepcopy(good)
            parent: Any = body
            for step in path[:-1]:
                parent = parent[step]
            parent[name] = parent.pop(path[-1])
            with rolled_back():
                check(kind, send(kind, encoded(body)), (path, name))


RAW = {
    "nothing": b"",
    "a zero byte": b"\x00",
    "null": b"null",
    "a number": b"1",
    "a text": b'"az-a"',
    "a list": b"[[]]",
    "two documents": b"{}{}",
    "cut off": b'{"az": "az-a", "allAZs": [',
    "not UTF-8": b'{"az": "\xff\xfe", "allAZs": ["\xc3\x28"], "resources": {"\xed\xa0\x80": {}}}',
    "UTF-16": '{"az": "az-a"}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "NaN": b'{"az": NaN, "infoVersion": Infinity, "at": -Infinity}',
    "huge integers": b'{"infoVersion": ' + b"9" * 5000 + b', "dryRun": 1e999999}',
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"batch": ' * 50_000,
    "deep and closed": b'{"allAZs": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "deep metadata": b'{"resources": {}, "serializedState": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "repeated keys": b'{"az": 1, "az": "az-a", "resources": 1, "resources": {}, "spec": 1}',
    "one long text": b'{"az": "' + b"x" * 2_000_000 + b'"}',
    "many projects": b'{"az": "az-a", "byProject": {'
    + b",".join(b'"p%d": {}' % number for number in range(20_000))
    + b"}}",
    "a comment": b'{"az": "az-a" /* here */}',
    "an escaped zero": b'{"az": "\\u0000", "allAZs": ["\\u0000"], "resources": {"\\u0000": {}}}',
    "half a surrogate": b'{"az": "\\ud800", "allAZs": ["\\udfff"], "resources": {"\\ud83d": {}}}',
}


@pytest.mark.parametrize("raw", RAW.values(), ids=list(RAW))
@pytest.mark.parametrize("kind", PATHS)
def test_no_bytes_are_a_500(region: tuple[Known, ...], kind: str, raw: bytes) -> None:
    assert region
    with rolled_back():
        check(kind, send(kind, raw), raw)


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "multipart/form-data; boundary=x",
        "multipart/form-data; boundary=" + "x" * 500,
        "application/json; charset=utf-16",
        "application/json; charset=no-such-charset",
        "application/xml",
        "\x00",
        "x" * 5000,
        ";;;=",
    ],
)
@pytest.mark.parametrize("kind", PATHS)
def test_no_content_type_is_a_500(region: tuple[Known, ...], kind: str, content_type: str) -> None:
    assert region
    for raw in (encoded(bodies()[kind]), b"az=az-a&allAZs=%00", b"--x\r\n\r\n\x00\r\n--x--"):
        with rolled_back():
            check(kind, send(kind, raw, {"Content-Type": content_type}), content_type)


def test_a_request_of_another_version_is_refused_whatever_it_holds(
    region: tuple[Known, ...],
) -> None:
    assert region
    body = change_body() | {"infoVersion": current_version() + 1}
    for sent in (body, body | {"dryRun": True}):
        with rolled_back():
            assert send("change-commitments", encoded(sent)).status == 409
