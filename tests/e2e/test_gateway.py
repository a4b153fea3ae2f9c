"""All requests handed on to a real openstack-placement: what comes back is what it answers.

The peer runs below the same path as ours, so that the links in its answers are the same, too.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from config.launcher.demo import ADDRESS, choose_port
from config.launcher.peers import ensure_peer, start_reference
from config.launcher.places import this_checkout
from config.launcher.processes import stop_children, wait_until
from tests.bad_peer import LARGE_BYTES, LARGE_PIECE, BadPeer
from tests.e2e.processes import ALONE, OPEN, PATIENCE_SECONDS, WebServer

pytestmark = [pytest.mark.django_db, pytest.mark.e2e]

MOUNT = "/placement"
REQUEST_SECONDS = 60.0
LARGE_BODY_BYTES = 64 << 20
OF_ONE_ANSWER = {"date", "x-openstack-request-id", "last-modified"}
PROVIDER, CHILD, CONSUMER, OTHER = (str(uuid4()) for _ in range(4))
AGGREGATE = str(uuid4())
INVENTORY = {"total": 8, "max_unit": 8}


@pytest.fixture(scope="module")
def reference_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    directory: Path = tmp_path_factory.mktemp("upstream")
    port = choose_port(0)
    child = start_reference(
        ensure_peer(this_checkout()),
        directory,
        port=port,
        database_url=f"sqlite:///{directory}/placement.sqlite",
        environ={"PATH": os.environ["PATH"]},
        mount=MOUNT,
    )

    def answers() -> bool:
        try:
            return Client(port).send("GET", "/").status == 200
        except OSError:
            return False

    assert wait_until(answers, PATIENCE_SECONDS), child.log.read_text()[-2000:]
    yield port
    stop_children([child], ((15, 10.0),))


class Reply:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.reason = response.reason
        self.headers = {name.lower(): text for name, text in response.getheaders()}
        self.names = sorted(name.lower() for name, _ in response.getheaders())
        self.body = response.read()


class Client:
    """Sends bytes to one of the two, over one connection each."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        version: str = "1.39",
        **headers: str,
    ) -> Reply:
        link = http.client.HTTPConnection(ADDRESS, self.port, timeout=REQUEST_SECONDS)
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {"X-Auth-Token": "admin", **headers}
        if version:
            named["OpenStack-API-Version"] = f"placement {version}"
        if content is not None:
            named.setdefault("Content-Type", "application/json")
        try:
            link.request(method, MOUNT + path, body=content, headers=named)
            return Reply(link.getresponse())
        finally:
            link.close()


@pytest.fixture(scope="module")
def web(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory, reference_port: int
) -> Iterator[WebServer]:
    del django_db_setup
    with WebServer(
        directory=tmp_path_factory.mktemp("gateway"),
        overrides={**OPEN, **upstream_at(reference_port)},
    ) as server:
        yield server


def upstream_at(port: int, **more: str) -> dict[str, str]:
    return {
        "GRANIAN_WORKERS": "1",
        "HEADROOM_GATEWAY__UPSTREAM_URL": f"http://{ADDRESS}:{port}{MOUNT}",
        **{f"HEADROOM_GATEWAY__{name.upper()}": text for name, text in more.items()},
    }


def allocations(consumer: str, amount: int, generation: int | None) -> dict[str, Any]:
    del consumer
    return {
        "allocations": {PROVIDER: {"resources": {"VCPU": amount}}} if amount else {},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": generation,
        "consumer_type": "INSTANCE",
    }


#: Every route of spec placement, 8.2, with every method; errors of each kind among them. Each is
#: sent as it is to both, on equal states.
REQUESTS: tuple[tuple[str, str, Any], ...] = (
    ("GET", "", None),
    ("GET", "/", None),
    ("GET", "/nowhere", None),
    ("DELETE", "/usages", None),
    ("HEAD", "/resource_providers", None),
    ("OPTIONS", "/resource_providers", None),
    ("POST", "/resource_providers", {"name": "one two", "uuid": PROVIDER}),
    ("POST", "/resource_providers", {"name": "one two", "uuid": OTHER}),
    ("POST", "/resource_providers", {"name": "ü", "uuid": CHILD, "parent_provider_uuid": PROVIDER}),
    ("POST", "/resource_providers", b"{"),
    ("GET", "/resource_providers", None),
    ("GET", "/resource_providers?name=one%20two", None),
    ("GET", "/resource_providers?name=one+two&unknown=%2f|", None),
    ("GET", f"/resource_providers/{PROVIDER}", None),
    ("GET", f"/resource_providers/{PROVIDER.upper()}", None),
    ("GET", "/resource_providers/%C3%BC%20%3F", None),
    ("PUT", f"/resource_providers/{CHILD}", {"name": "two"}),
    ("POST", f"/resource_providers/{CHILD}/inventories", {"resource_class": "VGPU", "total": 1}),
    (
        "PUT",
        f"/resource_providers/{PROVIDER}/inventories",
        {"resource_provider_generation": 0, "inventories": {"VCPU": INVENTORY}},
    ),
    (
        "PUT",
        f"/resource_providers/{PROVIDER}/inventories",
        {"resource_provider_generation": 0, "inventories": {}},
    ),
    ("GET", f"/resource_providers/{PROVIDER}/inventories", None),
    ("GET", f"/resource_providers/{PROVIDER}/inventories/VCPU", None),
    (
        "PUT",
        f"/resource_providers/{PROVIDER}/inventories/VCPU",
        {"resource_provider_generation": 1, **INVENTORY},
    ),
    ("DELETE", f"/resource_providers/{CHILD}/inventories/VGPU", None),
    ("DELETE", f"/resource_providers/{CHILD}/inventories", None),
    ("PUT", "/traits/CUSTOM_A", None),
    ("PUT", "/traits/CUSTOM_A", None),
    ("PUT", "/traits/A", None),
    ("GET", "/traits?name=startswith:CUSTOM_", None),
    ("GET", "/traits/CUSTOM_A", None),
    (
        "PUT",
        f"/resource_providers/{PROVIDER}/traits",
        {"resource_provider_generation": 2, "traits": ["CUSTOM_A"]},
    ),
    ("GET", f"/resource_providers/{PROVIDER}/traits", None),
    ("DELETE", f"/resource_providers/{PROVIDER}/traits", None),
    ("DELETE", "/traits/CUSTOM_A", None),
    ("DELETE", "/traits/CUSTOM_A", None),
    ("POST", "/resource_classes", {"name": "CUSTOM_B"}),
    ("PUT", "/resource_classes/CUSTOM_C", None),
    ("GET", "/resource_classes", None),
    ("GET", "/resource_classes/CUSTOM_B", None),
    ("DELETE", "/resource_classes/CUSTOM_B", None),
    (
        "PUT",
        f"/resource_providers/{PROVIDER}/aggregates",
        {"resource_provider_generation": 4, "aggregates": [AGGREGATE]},
    ),
    ("GET", f"/resource_providers/{PROVIDER}/aggregates", None),
    ("PUT", f"/allocations/{CONSUMER}", allocations(CONSUMER, 2, None)),
    ("PUT", f"/allocations/{CONSUMER}", allocations(CONSUMER, 2, None)),
    ("PUT", f"/allocations/{CONSUMER}", allocations(CONSUMER, 99, 1)),
    ("POST", "/allocations", {OTHER: allocations(OTHER, 1, None)}),
    ("GET", f"/allocations/{CONSUMER}", None),
    ("GET", f"/resource_providers/{PROVIDER}/allocations", None),
    ("GET", f"/resource_providers/{PROVIDER}/usages", None),
    ("GET", "/usages?project_id=p", None),
    ("GET", "/usages", None),
    ("GET", "/allocation_candidates?resources=VCPU:1", None),
    ("GET", "/allocation_candidates?resources=VCPU:x", None),
    ("POST", "/reshaper", {"inventories": {}, "allocations": {}}),
    ("DELETE", f"/allocations/{OTHER}", None),
    ("DELETE", f"/allocations/{OTHER}", None),
    ("DELETE", f"/resource_providers/{PROVIDER}", None),
)


def emptied(reference: Client) -> None:
    for consumer in (CONSUMER, OTHER):
        reference.send("DELETE", f"/allocations/{consumer}")
    for provider in (CHILD, PROVIDER, OTHER):
        reference.send("DELETE", f"/resource_providers/{provider}")
    for name in ("CUSTOM_B", "CUSTOM_C"):
        reference.send("DELETE", f"/resource_classes/{name}")
    reference.send("DELETE", "/traits/CUSTOM_A")


def lasting(reply: Reply, port: int) -> tuple[int, str, list[str], dict[str, str], bytes]:
    """Return what of an answer does not depend on when and where it was given."""
    headers = {
        name: text.replace(f":{port}/", ":PORT/")
        for name, text in reply.headers.items()
        if name not in OF_ONE_ANSWER
    }
    body = re.sub(rb"req-[0-9a-f-]{36}", b"REQUEST", reply.body)
    return reply.status, reply.reason, reply.names, headers, body


def test_every_route_answers_what_the_other_placement_answers(
    web: WebServer, reference_port: int
) -> None:
    seen: list[list[Any]] = []
    for port in (reference_port, web.port):
        client = Client(port)
        emptied(Client(reference_port))
        seen.append(
            [
                (method, path, lasting(client.send(method, path, body), port))
                for method, path, body in REQUESTS
            ]
        )
    emptied(Client(reference_port))
    for direct, through in zip(*seen, strict=True):
        assert through == direct
    assert {found[2][0] for found in seen[0]} >= {200, 201, 204, 400, 404, 405, 409}


@pytest.mark.parametrize("version", ["", "1.0", "1.20", "1.39", "latest", "1.99", "pony.1"])
def test_versions_are_the_other_sides_business(
    web: WebServer, reference_port: int, version: str
) -> None:
    direct, through = (
        lasting(Client(port).send("GET", "/resource_classes", version=version), port)
        for port in (reference_port, web.port)
    )
    assert through == direct


def test_who_may_call_is_the_other_sides_business(web: WebServer, reference_port: int) -> None:
    for token in ("", "nobody"):
        direct, through = (
            lasting(Client(port).send("GET", "/traits", **{"X-Auth-Token": token}), port)
            for port in (reference_port, web.port)
        )
        assert through == direct
        assert through[0] in {401, 403}


@pytest.fixture(scope="module")
def broken() -> Iterator[BadPeer]:
    with BadPeer() as peer:
        yield peer


@pytest.fixture(scope="module")
def gateway(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory, broken: BadPeer
) -> Iterator[WebServer]:
    """A gateway before the peer that misbehaves."""
    del django_db_setup
    overrides = upstream_at(broken.port, timeout_seconds="10", most_failures="1000")
    overrides["HEADROOM_PLACEMENT__MAX_BODY_MIB"] = str(LARGE_BODY_BYTES >> 20)
    with WebServer(
        directory=tmp_path_factory.mktemp("gateway"), overrides={**OPEN, **overrides}
    ) as server:
        yield server


@pytest.mark.parametrize(
    ("behaviour", "method", "status", "tries"),
    [
        ("silent", "PUT", 504, 1),
        ("dies", "GET", 502, 2),
        ("dies", "PUT", 502, 1),
        ("dies-in-body", "GET", 502, 2),
        ("error", "GET", 500, 1),
    ],
)
def test_whatever_the_other_side_does_there_is_an_answer(  # noqa: PLR0917 - a row of a table
    gateway: WebServer, broken: BadPeer, behaviour: str, method: str, status: int, tries: int
) -> None:
    path = f"/traits/{behaviour}?{uuid4()}"
    reply = Client(gateway.port).send(method, path)
    assert reply.status == status
    assert broken.asked.count(f"{method} {MOUNT}{path} HTTP/1.1") == tries
    if behaviour != "error":
        (error,) = json.loads(reply.body)["errors"]
        assert error["status"] == status


def test_a_large_answer_comes_whole(gateway: WebServer) -> None:
    reply = Client(gateway.port).send("GET", "/traits/large")
    assert reply.status == 200
    assert reply.body == LARGE_PIECE * (LARGE_BYTES // len(LARGE_PIECE))
    assert reply.headers["content-length"] == str(LARGE_BYTES)


def test_a_large_answer_is_not_held_in_memory(gateway: WebServer) -> None:
    client = Client(gateway.port)
    assert client.send("GET", "/traits/fine").body == b"ok"
    before = most_memory(gateway)
    for _ in range(4):
        assert len(client.send("GET", "/traits/large").body) == LARGE_BYTES
    grown = {pid: now - before.get(pid, now) for pid, now in most_memory(gateway).items()}
    assert max(grown.values()) < LARGE_BYTES // 2


def test_a_large_body_arrives_whole_and_is_not_held_in_memory(
    gateway: WebServer, broken: BadPeer
) -> None:
    client = Client(gateway.port)
    assert client.send("PUT", "/traits/fine", LARGE_PIECE).body == b"ok"
    before = most_memory(gateway)
    body = LARGE_PIECE * (LARGE_BODY_BYTES // len(LARGE_PIECE))
    for _ in range(2):
        assert client.send("PUT", "/traits/fine", body).body == b"ok"
    assert broken.digests[-2:] == [hashlib.sha256(body).hexdigest()] * 2
    grown = {pid: now - before.get(pid, now) for pid, now in most_memory(gateway).items()}
    assert max(grown.values()) < LARGE_BODY_BYTES // 3


def test_a_large_body_whose_answer_is_lost_is_sent_again_only_if_it_writes_nothing(
    gateway: WebServer, broken: BadPeer
) -> None:
    body = LARGE_PIECE * 32
    sent = len(broken.digests)
    for method, times in (("PUT", 1), ("GET", 2)):
        assert Client(gateway.port).send(method, "/traits/dies", body).status == 502
        came, sent = broken.digests[sent:], len(broken.digests)
        assert came == [hashlib.sha256(body).hexdigest()] * times, method


def most_memory(web: WebServer) -> dict[int, int]:
    """Return the most bytes that each of its processes ever had."""
    assert web.child is not None
    group = web.child.process.pid
    found = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        pid = int(status.parent.name)
        with suppress(OSError):
            if os.getpgid(pid) == group:
                (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())
                found[pid] = int(peak) << 10
    return found


def test_without_the_other_side_the_server_starts_and_says_so(
    django_db_setup: None, tmp_path: Path
) -> None:
    del django_db_setup
    with socket.socket() as nobody:
        nobody.bind((ADDRESS, 0))  # taken, but nobody listens
        overrides = upstream_at(nobody.getsockname()[1], most_failures="2")
        server = WebServer(directory=tmp_path, overrides={**OPEN, **ALONE, **overrides})
        server.start()
        try:
            client = Client(server.port)
            replies = [client.send("PUT", "/traits/CUSTOM_A") for _ in range(8)]
        finally:
            server.kill()
    assert {reply.status for reply in replies} == {502, 503}
    assert all("retry-after" in reply.headers for reply in replies if reply.status == 503)
    assert "gateway_upstream_" in (tmp_path / "web.log").read_text()
