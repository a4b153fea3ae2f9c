"""The tables of spec placement, 8, row by row, before a real openstack-placement.

Rows of 8.2 (what each group does in each mode): :func:`test_who_answers_what`, a line of ``ROWS``
for each request, in all three modes; that passthrough answers what is answered there is
``tests/e2e/test_gateway.py``, what local answers are the public tests (``./run conformance``).

8.3 (ownership): ``host`` and ``api`` :func:`test_who_answers_what`; ``upstream``
:func:`test_a_copy_is_theirs` and ``test_ownership.py``; children, names and UUIDs that are taken
``test_hybrid.py`` (``test_providers_of_ours_are_ours``, ``test_no_shadow_of_a_provider_of_ours``).

8.5, first table: parts of a provider :func:`test_who_answers_what`; ``GET /allocations``, ``PUT``,
``POST`` and ``DELETE`` of both sides ``test_hybrid.py`` (from ``test_allocations_of_one_side`` to
``test_a_late_write_...``); ``GET /usages`` ``test_allocations_of_one_side``; candidates
``test_candidates_of_both_ours_first``; reshaper ``test_a_reshape_is_of_one_side``; the list
``test_lists_are_one_by_name_and_ours_win``; what the other side answers badly
:func:`test_what_cannot_be_made_one`. Second table (versions): :func:`test_versions_of_both`, and
``tests/domain/test_placement_merging.py`` for the range that only a smaller one of ours has.
Shadow: ``test_before_answers.py``.

8.6 (names): table, init and storage ``tests/placement``; loop, fetch, lock and errors
:func:`test_names_are_copied_from_good_answers_alone`; apply ``test_names_follow_theirs``; writes in
hybrid ``test_names_are_theirs_and_copied_once_written``; local answers the public tests.

8.7, settings: deadlines, pool and TLS ``test_upstream.py``, start without the other side
``tests/e2e/test_gateway.py``; forwarding ``test_modes.py`` and ``tests/e2e/test_gateway.py``;
``Accept-Encoding`` and request ids :func:`test_what_goes_on_and_comes_back`. Failures: not
configured :func:`test_a_client_that_cannot_be_made_is_503`, unreachable and tried again
``test_upstream.py``, any answer ``tests/e2e/test_gateway.py``, database
``tests/e2e/test_database_away.py``, unexpected :func:`test_the_unexpected_is_never_500`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.db import IntegrityError
from prometheus_client import REGISTRY

from journal.leases import held_lease
from placement.gateway import views
from placement.gateway.sync import sync_names
from placement.models import Origin, ResourceProvider, Trait
from placement.tasks import SYNC_NAMES, sync_names_of_upstream
from tests.e2e.placement_peers import PlacementServer, Request
from tests.placement.client import Answer, PlacementClient, consumer_body, uuid
from tests.placement.gateway.conftest import MakeGateway
from tests.placement.gateway.cutting import CutLink
from tests.placement.rows import make_provider

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
HOST, MINE, THEIRS, AGGREGATE = "host", "mine", "theirs", str(uuid())
#: In the names of tests, which must be the same in each process that runs some of them.
CONSUMER = "5a1c5f6e-7c0b-4d0b-9b5e-2f4c8a1d9e01"


class World:
    """A host's provider, another one of ours, and one of theirs."""

    def __init__(self, client: PlacementClient, theirs: PlacementServer) -> None:
        self.client = client
        host = make_provider(HOST, inventories={"VCPU": 8})
        ResourceProvider.objects.filter(pk=host.pk).update(origin=Origin.HOST)
        self.uuids = {HOST: str(host.uuid), MINE: str(make_provider(MINE).uuid)}
        self.uuids[THEIRS] = PlacementMaker(theirs).make(THEIRS)
        self.uuids |= {name: uuid() for name in ("new", "consumer", "second", "third")}

    def generation(self, name: str) -> int:
        answer = self.client.get(f"/resource_providers/{self.uuids[name]}")
        return int(answer.json["generation"]) if answer.status == 200 else 0

    def of(self, name: str, **fields: Any) -> dict[str, Any]:
        return {"resource_provider_generation": self.generation(name), **fields}

    def held(self, name: str) -> dict[str, Any]:
        return consumer_body({self.uuids[name]: {"VCPU": 1}})

    def reshaped(self, name: str) -> dict[str, Any]:
        inventories = {"VCPU": {"total": 8}}
        return {
            "inventories": {self.uuids[name]: self.of(name, inventories=inventories)},
            "allocations": {},
        }


class PlacementMaker:
    """Makes providers there, past the gateway."""

    def __init__(self, server: PlacementServer) -> None:
        self.server = server

    def make(self, name: str) -> str:
        provider = uuid()
        self.send("POST", "/resource_providers", {"name": name, "uuid": provider})
        body = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}}
        self.send("PUT", f"/resource_providers/{provider}/inventories", body)
        return provider

    def send(self, method: str, path: str, body: Any = None) -> None:
        reply = self.server.send(Request(method=method, path=path, minor=39, body=body))
        assert reply.status in {200, 201, 204}, reply


Body = Callable[[World], Any]


class Row(NamedTuple):
    """A request, its status in each mode, and whether hybrid asks the other side."""

    request: str
    body: Body | None
    passthrough: int
    hybrid: int
    local: int
    is_asked: bool


def named(name: str, **more: str) -> Body:
    return lambda world: {"name": name, **{key: world.uuids[at] for key, at in more.items()}}


def traits(name: str) -> Body:
    return lambda world: world.of(name, traits=["CUSTOM_T"])


def aggregates(name: str) -> Body:
    return lambda world: world.of(name, aggregates=[AGGREGATE])


def stock(name: str) -> Body:
    return lambda world: world.of(name, inventories={"VCPU": {"total": 8}})


def one_stock(name: str) -> Body:
    return lambda world: world.of(name, total=8)


def parts(provider: str) -> list[Row]:
    """Every part of a provider that one side has: the host's here, theirs there."""
    path, is_theirs = f"/resource_providers/{{{provider}}}", provider == THEIRS
    rows = []
    for request, body, status in (
        (f"PUT {path}/traits", traits(provider), 200),
        (f"GET {path}/traits", None, 200),
        (f"DELETE {path}/traits", None, 204),
        (f"PUT {path}/aggregates", aggregates(provider), 200),
        (f"GET {path}/aggregates", None, 200),
        (f"PUT {path}/inventories", stock(provider), 200),
        (f"PUT {path}/inventories/VCPU", one_stock(provider), 200),
        (f"GET {path}/inventories", None, 200),
        (f"GET {path}/inventories/VCPU", None, 200),
        (f"GET {path}/usages", None, 200),
        (f"GET {path}/allocations", None, 200),
    ):
        here, there = (404, status) if is_theirs else (status, 404)
        rows.append(Row(request, body, there, status, here, is_theirs))
    return rows


#: Of spec placement, 8.2, in the order in which they are sent.
ROWS = (
    Row("GET /", None, 200, 200, 200, True),
    Row("GET /nowhere", None, 404, 404, 404, False),
    Row("PUT /traits/CUSTOM_T", None, 201, 201, 201, True),
    Row("PUT /traits/CUSTOM_T", None, 204, 204, 204, True),
    Row("PUT /traits/bad", None, 400, 400, 400, True),
    Row("GET /traits", None, 200, 200, 200, True),
    Row("GET /traits/CUSTOM_T", None, 204, 204, 204, True),
    Row("POST /resource_classes", named("CUSTOM_C"), 201, 201, 201, True),
    Row("PUT /resource_classes/CUSTOM_D", None, 201, 201, 201, True),
    Row("GET /resource_classes", None, 200, 200, 200, True),
    Row("GET /resource_classes/CUSTOM_C", None, 200, 200, 200, True),
    Row("DELETE /resource_classes/CUSTOM_C", None, 204, 204, 204, True),
    Row("GET /resource_providers", None, 200, 200, 200, True),
    *(
        Row(f"GET /resource_providers/no-uuid{part}", None, 404, 404, 404, True)
        for part in ("", "/traits", "/aggregates", "/inventories", "/usages", "/allocations")
    ),
    Row("GET /resource_providers/{host}", None, 404, 200, 200, False),
    Row("GET /resource_providers/{mine}", None, 404, 200, 200, False),
    Row("GET /resource_providers/{theirs}", None, 200, 200, 404, True),
    *parts(HOST),
    *parts(THEIRS),
    Row("PUT /resource_providers/{host}", named(HOST), 404, 200, 200, False),
    Row("PUT /resource_providers/{host}", named("other"), 404, 409, 409, False),
    Row(
        "PUT /resource_providers/{host}",
        named(HOST, parent_provider_uuid=MINE),
        404,
        409,
        409,
        False,
    ),
    Row("PUT /resource_providers/{theirs}", named("renamed"), 200, 200, 404, True),
    Row("DELETE /resource_providers/{host}", None, 404, 409, 409, False),
    Row("PUT /allocations/{consumer}", lambda world: world.held(HOST), 400, 204, 204, True),
    Row("GET /allocations/{consumer}", None, 200, 200, 200, True),
    Row("DELETE /allocations/{consumer}", None, 404, 204, 204, True),
    Row("PUT /allocations/{second}", lambda world: world.held(THEIRS), 204, 204, 400, True),
    Row("DELETE /allocations/{second}", None, 204, 204, 404, True),
    Row(
        "POST /allocations",
        lambda world: {world.uuids["third"]: world.held(THEIRS)},
        204,
        204,
        400,
        True,
    ),
    Row("DELETE /allocations/{third}", None, 204, 204, 404, True),
    Row("GET /usages?project_id=p", None, 200, 200, 200, True),
    Row("GET /allocation_candidates?resources=VCPU:1", None, 200, 200, 200, True),
    Row("POST /reshaper", lambda world: world.reshaped(HOST), 400, 204, 204, False),
    Row("POST /reshaper", lambda world: world.reshaped(THEIRS), 204, 204, 400, True),
    Row(
        "POST /resource_providers",
        named("child", uuid="new", parent_provider_uuid=MINE),
        400,
        200,
        200,
        False,
    ),
    Row("POST /resource_providers", named("fresh"), 200, 200, 200, True),
    Row("POST /resource_providers", named(HOST), 200, 409, 409, False),
    Row("POST /resource_providers", named("again", uuid=HOST), 200, 409, 409, False),
    Row("DELETE /resource_providers/{theirs}", None, 204, 204, 404, True),
)


@pytest.mark.parametrize("mode", ["passthrough", "hybrid", "local"])
def test_who_answers_what(
    gateway: MakeGateway, theirs: PlacementServer, cut: CutLink, mode: str
) -> None:
    world = World(gateway(mode), theirs)
    world.client.get("/traits")  # versions of both are asked for once
    before = list(ResourceProvider.objects.order_by("pk").values())
    for row in ROWS:
        method, _, path = row.request.format(**world.uuids).partition(" ")
        body = row.body(world) if row.body else None
        cut.seen.clear()
        answer = world.client.call(method, path, body, version="1.37")
        asked = {"passthrough": True, "hybrid": row.is_asked, "local": False}[mode]
        found = (row.request, answer.status, bool(cut.seen))
        assert found == (row.request, getattr(row, mode), asked), answer.content
        if mode == "passthrough":
            assert [(one, at.removeprefix("/placement")) for one, at in cut.seen] == [
                (method, path)
            ]
    if mode == "passthrough":
        assert list(ResourceProvider.objects.order_by("pk").values()) == before
        assert not Trait.objects.filter(name="CUSTOM_T").exists()
    if mode == "hybrid":
        assert ResourceProvider.objects.get(uuid=world.uuids["new"]).root.name == MINE
        assert not ResourceProvider.objects.filter(name="fresh").exists()


def test_a_copy_is_theirs(gateway: MakeGateway, theirs: PlacementServer) -> None:
    client = gateway("hybrid")
    there = PlacementMaker(theirs).make("copied")
    copy = make_provider("copied", inventories={"VCPU": 1}, uuid=there)  # type: ignore[arg-type]
    ResourceProvider.objects.filter(pk=copy.pk).update(origin=Origin.UPSTREAM)
    assert client.put(f"/resource_providers/{there}", {"name": "copied"}).status == 200
    child = {"name": "child", "uuid": uuid(), "parent_provider_uuid": there}
    assert client.post("/resource_providers", child).status == 200
    assert theirs.get(f"/resource_providers/{child['uuid']}")["root_provider_uuid"] == there
    assert client.allocate(uuid(), {there: {"VCPU": 8}}).status == 204
    listed = client.get("/resource_providers").json["resource_providers"]
    assert [one["name"] for one in listed] == ["child", "copied"]
    found = client.get("/allocation_candidates?resources=VCPU:1").json["allocation_requests"]
    assert found == []  # all of the original is taken; the copy does not count
    assert ResourceProvider.objects.count() == 1
    assert client.delete(f"/resource_providers/{child['uuid']}").status == 204


def document(low: str, high: str) -> bytes:
    one = {"id": "v1.0", "min_version": low, "max_version": high}
    return json.dumps({"versions": [one]}).encode()


@pytest.mark.parametrize(
    ("body", "spoken"),
    [
        pytest.param(document("1.0", "1.36"), ("1.0", "1.36"), id="lower maximum"),
        pytest.param(document("1.10", "1.50"), ("1.10", "1.39"), id="higher minimum"),
        pytest.param(document("1.9", "1.10"), ("1.9", "1.10"), id="numbers, no texts"),
        pytest.param(document("1.40", "1.50"), ("1.0", "1.39"), id="no overlap"),
        pytest.param(b'{"versions": []}', ("1.0", "1.39"), id="nothing"),
        pytest.param(b"<html>", ("1.0", "1.39"), id="no JSON"),
    ],
)
def test_versions_of_both(
    gateway: MakeGateway, cut: CutLink, body: bytes, spoken: tuple[str, str]
) -> None:
    client = gateway("hybrid")
    cut.replies["/"] = (503, b"away")
    answer = client.get("/")
    assert (answer.status, answer.content) == (503, b"away")
    cut.replies["/"] = (200, body)
    (version,) = client.get("/").json["versions"]
    assert (version["min_version"], version["max_version"]) == spoken
    low, high = (int(text.split(".")[1]) for text in spoken)
    statuses = {
        minor: client.get("/resource_classes/VCPU", version=f"1.{minor}").status
        for minor in (low - 1, low, high, high + 1)
        if minor >= 2  # before, there is no such path
    }
    assert statuses == {minor: 200 if low <= minor <= high else 406 for minor in statuses}
    assert client.get("/resource_classes/VCPU", version="latest").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/resource_providers",
        "/usages?project_id=p",
        f"/allocations/{CONSUMER}",
        "/allocation_candidates?resources=VCPU:1",
    ],
)
def test_what_cannot_be_made_one(gateway: MakeGateway, cut: CutLink, path: str) -> None:
    client = gateway("hybrid")
    mine = make_provider(MINE, inventories={"VCPU": 8})
    assert client.allocate(CONSUMER, {str(mine.uuid): {"VCPU": 1}}).status == 204
    bare = path.partition("?")[0]

    def answered(status: int, body: bytes) -> Answer:
        cut.replies[bare] = (status, body)
        return client.get(path)

    for status in (400, 404, 500, 503):
        answer = answered(status, b"as it is")
        assert (answer.status, answer.content) == (status, b"as it is")
    shapes = (b"<html>", b"", b"[]", b"{}", b"null", b'{"resource_providers": [{}], "usages": 1}')
    for body in shapes:
        answer = answered(200, body)
        assert answer.status == 502, body
        assert answer.error["status"] == 502
    if bare == "/allocation_candidates":
        client = gateway("hybrid", candidates_degrade=True)
        answer = answered(503, b"away")
        assert list(answer.json["provider_summaries"]) == [str(mine.uuid)]
        assert answered(400, b"as it is").status == 400


BAD_LISTS = (
    (503, b"away"),
    (200, b"<html>"),
    (200, b'{"traits": 7, "resource_classes": 7}'),
    (200, b'{"traits": [], "resource_classes": []}'),
    (200, b"[]"),
)


def test_names_are_copied_from_good_answers_alone(
    gateway: MakeGateway, theirs: PlacementServer, cut: CutLink
) -> None:
    gateway("hybrid")
    PlacementMaker(theirs).send("PUT", "/traits/CUSTOM_A")
    with held_lease(SYNC_NAMES):
        assert sync_names_of_upstream() == {"inserted": 0, "deleted": 0}
    cut.seen.clear()
    cut.headers.clear()
    assert sync_names_of_upstream()["inserted"] >= 1
    assert cut.seen == [("GET", "/placement/traits"), ("GET", "/placement/resource_classes")]
    asked = [one["openstack-api-version"] for one in cut.headers]
    assert asked == ["placement 1.6", "placement 1.7"]
    known = set(Trait.objects.values_list("name", flat=True))
    assert "CUSTOM_A" in known
    failed = {"kind": "traits", "result": "failed"}
    before = REGISTRY.get_sample_value("placement_sync_runs_total", failed) or 0.0
    for reply in BAD_LISTS:
        cut.replies.update({"/traits": reply, "/resource_classes": reply})
        assert {one.result for one in sync_names()} == {"failed"}, reply
        assert set(Trait.objects.values_list("name", flat=True)) == known
    after = REGISTRY.get_sample_value("placement_sync_runs_total", failed)
    assert after == before + len(BAD_LISTS)
    cut.seen.clear()
    gateway("local")
    assert sync_names_of_upstream() == {"inserted": 0, "deleted": 0}
    gateway("local", upstream_url="")
    assert sync_names_of_upstream() == {}
    assert cut.seen == []


def test_what_goes_on_and_comes_back(
    gateway: MakeGateway, theirs: PlacementServer, cut: CutLink
) -> None:
    client = gateway("hybrid")
    PlacementMaker(theirs).make(THEIRS)
    given = {"Accept_Encoding": "gzip", "X_Openstack_Request_Id": "req-mine", "X_Odd": "1"}
    client.get("/traits")
    for path in ("/resource_providers", "/traits"):
        cut.headers.clear()
        assert client.get(path, **given).status == 200
        (sent,) = cut.headers
        assert "accept-encoding" not in sent or path == "/traits"
        assert (sent["x-odd"], sent["x-auth-token"]) == ("1", "admin")
    client = gateway("passthrough")
    cut.headers.clear()
    answer = client.get(f"/resource_providers/{uuid()}", **given)
    assert cut.headers[-1]["accept-encoding"] == "gzip"
    assert answer.status == 404
    # Theirs, as their log has it, and not a new one of ours.
    assert answer.headers["x-openstack-request-id"] == answer.error["request_id"]


@pytest.mark.parametrize("mode", ["passthrough", "hybrid"])
def test_a_client_that_cannot_be_made_is_503(
    gateway: MakeGateway, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "broken.pem").write_text("no certificate")
    client = gateway(mode, upstream_url="https://localhost:1", ca_file=tmp_path / "broken.pem")
    for answer in (client.get("/traits"), client.put("/traits/CUSTOM_T")):
        assert (answer.status, answer.error["status"]) == (503, 503)
        assert b"broken.pem" not in answer.content


@pytest.mark.parametrize("mode", ["passthrough", "hybrid"])
def test_the_unexpected_is_never_500(
    gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    client = gateway(mode)
    client.get("/traits")

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(views, "target_of", broken)
    assert client.get("/traits").status == 502
    assert client.put("/traits/CUSTOM_T").status == 502

    def raced(*_: object) -> None:
        raise IntegrityError("a row came meanwhile")

    monkeypatch.setattr(views, "target_of", raced)
    assert client.put("/traits/CUSTOM_T").status == 409
