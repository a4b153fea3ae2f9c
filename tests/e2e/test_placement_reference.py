"""The same random requests to the reference Placement and to ours: the same answers.

``PLACEMENT_SEED`` and ``PLACEMENT_EXAMPLES`` of the environment look elsewhere and longer. Where
the answers may differ is listed in :data:`DEFECTS` and :data:`HEADER_EXCEPTIONS`, and nowhere else.
"""

from __future__ import annotations

import copy
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import Phase, given, note, seed, settings

from config.launcher.demo import choose_port
from config.launcher.peers import ensure_peer, start_reference
from config.launcher.places import this_checkout
from config.launcher.processes import Child, stop_children, wait_until
from tests.e2e.placement_peers import (
    MOUNT,
    PlacementServer,
    Reply,
    Request,
    canonical,
    without_prefix,
)
from tests.e2e.placement_requests import Step, sequences, worlds
from tests.e2e.processes import OPEN, PATIENCE_SECONDS, WebServer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

SEED = int(os.environ.get("PLACEMENT_SEED", "20260115"))
EXAMPLES = int(os.environ.get("PLACEMENT_EXAMPLES", "25"))
PHASES = (Phase.explicit, Phase.generate)  # shrinking takes minutes of requests
OVERRIDES = {**OPEN, "HEADROOM_PLACEMENT__ENFORCE_NEW_DEFAULTS": "false"}
SHARING = "MISC_SHARES_VIA_AGGREGATE"
COMPARED_HEADERS = ("openstack-api-version", "cache-control", "content-type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Both servers."""

    reference: PlacementServer
    ours: PlacementServer
    reference_database: Path
    web: WebServer

    def forget_empty_consumers(self) -> None:
        """Remove consumers without allocations from the reference.

        It keeps them after some writes, with a generation that no client can know, and then refuses
        the consumer's next write; ours keeps none (spec placement, 5.6).
        """
        with closing(sqlite3.connect(self.reference_database)) as link, link:
            link.execute(
                "DELETE FROM consumers WHERE uuid NOT IN (SELECT consumer_id FROM allocations)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A request that was answered differently, with what explains differences."""

    request: Request
    reference: Reply
    ours: Reply
    groups: Mapping[str, frozenset[str]]
    policy: str
    shared_classes: frozenset[str]
    has_nested_sharing: bool


def same_class_in_two_groups(case: Disagreement) -> bool:
    """The unsuffixed and a suffixed group ask for one class, and the policy is not ``none``.

    The reference's amounts leak from one candidate into the next.
    """
    plain = case.groups.get("", frozenset())
    others = [asked for suffix, asked in case.groups.items() if suffix]
    return case.policy != "none" and any(plain & asked for asked in others)


def shared_group_beside_another(case: Disagreement) -> bool:
    """The unsuffixed group can be served by sharing providers alone, next to a suffixed group.

    The reference collapses equal parts of different anchors too early.
    """
    plain = case.groups.get("", frozenset())
    return bool(plain) and len(case.groups) > 1 and plain <= case.shared_classes


def nested_sharing_provider(case: Disagreement) -> bool:
    """A sharing provider that is not a root is used from another tree: the reference fails."""
    return case.has_nested_sharing and case.reference.status == 500 and case.ours.status == 200


def unknown_name_behind_an_empty_part(case: Disagreement) -> bool:
    """A query names something unknown, and another part of it matches nothing.

    The reference answers empty before it looks at all names; ours checks names first, whatever the
    providers are (spec placement, 6.2, in that order).
    """
    is_empty = case.reference.status == 200 and not case.reference.body["allocation_requests"]
    return is_empty and case.ours.status == 400 and "No such" in case.ours.error["detail"]


DEFECTS: tuple[Callable[[Disagreement], bool], ...] = (
    same_class_in_two_groups,
    shared_group_beside_another,
    nested_sharing_provider,
    unknown_name_behind_an_empty_part,
)
"""Where ours answers otherwise on purpose: defects of the reference (spec placement, 6.2, 6.7)."""


def no_inventory_to_date(request: Request, ours: Reply) -> bool:
    """The reference dates a provider's inventories only if there are any (spec placement, 4.3)."""
    is_list = request.path.endswith("/inventories") and ours.status == 200
    return is_list and ours.body.get("inventories") == {}


HEADER_EXCEPTIONS = (no_inventory_to_date,)


@pytest.fixture(scope="module")
def reference_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The reference on SQLite; yields its port and its database."""
    directory: Path = tmp_path_factory.mktemp("reference")
    database = directory / "placement.sqlite"
    port = choose_port(0)
    child: Child = start_reference(
        ensure_peer(this_checkout()),
        directory,
        port=port,
        database_url=f"sqlite:///{database}",
        environ={"PATH": os.environ["PATH"]},
    )
    probe = PlacementServer(port=port)
    assert wait_until(lambda: answers(probe), PATIENCE_SECONDS), child.log.read_text()[-2000:]
    probe.close()
    yield port, database
    stop_children([child], ((15, 10.0),))


def answers(server: PlacementServer) -> bool:
    try:
        return server.send(Request(method="GET", path="/", minor=0)).status == 200
    except OSError:
        server.close()
        return False


@pytest.fixture
def peers(
    transactional_db: None, tmp_path: Path, reference_process: tuple[int, Path]
) -> Iterator[Peers]:
    del transactional_db
    web = WebServer(directory=tmp_path, overrides=OVERRIDES)
    web.start()
    pair = Peers(
        reference=PlacementServer(port=reference_process[0]),
        ours=PlacementServer(port=web.port, prefix=MOUNT),
        reference_database=reference_process[1],
        web=web,
    )
    yield pair
    for server in (pair.reference, pair.ours):
        server.close()
    web.kill()


def test_random_requests_are_answered_alike(peers: Peers) -> None:
    sys.stdout.write(f"PLACEMENT_SEED={SEED} PLACEMENT_EXAMPLES={EXAMPLES}\n")

    @seed(SEED)
    @settings(max_examples=EXAMPLES, print_blob=True, phases=PHASES)
    @given(worlds(), sequences)
    def compare(world: list[Step], steps: list[Step]) -> None:
        for server in (peers.reference, peers.ours):
            server.wipe()
        for step in (*world, *steps):
            request = resolved(step, peers.reference)
            note(str(request))
            compare_answers(request, peers)
            if request.method != "GET":
                peers.forget_empty_consumers()
        assert everything(peers.reference) == everything(peers.ours)

    compare()


def compare_answers(request: Request, peers: Peers) -> None:
    before = picture(peers.reference) if "candidates" in request.path else None
    theirs, ours = peers.reference.send(request), peers.ours.send(request)
    assert ours.status < 500, f"{request}\n{peers.web.log()}"
    if before is not None and comparable(theirs) != comparable(ours):
        case = disagreement(request, theirs, ours, before)
        if any(is_known(case) for is_known in DEFECTS):
            note("  known defect of the reference")
            return
    assert comparable(ours) == comparable(theirs), f"{request}\nours: {ours}\nreference: {theirs}"
    assert ours.status != 405 or ours.headers["allow"]
    if "allow" in theirs.headers:  # it forgets it where a version masks a method (spec 2.3)
        assert ours.headers.get("allow") == theirs.headers["allow"]
    if not any(excuses(request, ours) for excuses in HEADER_EXCEPTIONS):
        assert dated(ours) == dated(theirs), f"{request}\nours: {ours}\nreference: {theirs}"


def comparable(reply: Reply) -> tuple[Any, ...]:
    """Return what must be the same: status, content, and headers; of errors code and title."""
    headers = {name: reply.headers.get(name) for name in COMPARED_HEADERS if reply.body is not None}
    if reply.status >= 400:
        error = reply.error
        return reply.status, error.get("title"), error.get("code")
    location = urlsplit(reply.headers.get("location", "")).path.removeprefix(MOUNT)
    headers.pop("cache-control", None)
    return reply.status, canonical(without_prefix(reply.body, MOUNT)), headers, location


def dated(reply: Reply) -> tuple[bool, str | None]:
    """Return whether an answer has a date, and how long it may be kept."""
    return "last-modified" in reply.headers, reply.headers.get("cache-control")


def resolved(step: Step, reference: PlacementServer) -> Request:
    """Put the generations of this moment into a step."""
    body = copy.deepcopy(step.body)
    if step.provider:
        body["resource_provider_generation"] = (
            provider_generation(reference, step.provider) + step.stale
        )
    if step.path == "/reshaper":
        for uuid, part in body["inventories"].items():
            part["resource_provider_generation"] = provider_generation(reference, uuid) + step.stale
    for uuid in step.consumers:
        known = consumer_generation(reference, uuid)
        part = consumer_part(step, body, uuid)
        part["consumer_generation"] = (known or 0) + 1 if step.stale else known
    return Request(method=step.method, path=step.path, minor=step.minor, body=body)


def consumer_part(step: Step, body: Any, uuid: str) -> dict[str, Any]:
    if step.path == "/allocations":
        part = body[uuid]
    elif step.path == "/reshaper":
        part = body["allocations"][uuid]
    else:
        part = body
    return part  # type: ignore[no-any-return]  # JSON


def provider_generation(server: PlacementServer, uuid: str) -> int:
    reply = server.send(Request(method="GET", path=f"/resource_providers/{uuid}", minor=36))
    return int(reply.body["generation"]) if reply.status == 200 else 0


def consumer_generation(server: PlacementServer, uuid: str) -> int | None:
    found = server.get(f"/allocations/{uuid}").get("consumer_generation")
    return None if found is None else int(found)


def picture(server: PlacementServer) -> dict[str, Any]:
    """Return which providers share what, for telling a defect from a difference."""
    rows = {row["uuid"]: row for row in server.get("/resource_providers")["resource_providers"]}
    sharing = [
        uuid
        for uuid in rows
        if SHARING in server.get(f"/resource_providers/{uuid}/traits")["traits"]
    ]
    shared: set[str] = set()
    for uuid in sharing:
        shared |= set(server.get(f"/resource_providers/{uuid}/inventories")["inventories"])
    return {
        "shared_classes": frozenset(shared),
        "has_nested_sharing": any(rows[uuid]["parent_provider_uuid"] for uuid in sharing),
    }


def disagreement(
    request: Request, theirs: Reply, ours: Reply, before: Mapping[str, Any]
) -> Disagreement:
    terms = parse_qsl(urlsplit(request.path).query)
    return Disagreement(
        request=request,
        reference=theirs,
        ours=ours,
        groups={
            name.removeprefix("resources"): frozenset(
                item.partition(":")[0] for item in words.split(",")
            )
            for name, words in terms
            if name.startswith("resources")
        },
        policy=dict(terms).get("group_policy", ""),
        **before,
    )


def everything(server: PlacementServer) -> Any:
    """Return all that can be read of a server's state."""
    rows = server.get("/resource_providers")["resource_providers"]
    parts = ("inventories", "usages", "aggregates", "traits", "allocations")
    state: dict[str, Any] = {
        row["uuid"]: [row["name"], row["generation"], row["parent_provider_uuid"]]
        + [server.get(f"/resource_providers/{row['uuid']}/{part}") for part in parts]
        for row in rows
    }
    consumers = {uuid for row in state.values() for uuid in row[-1]["allocations"]}
    for uuid in sorted(consumers):
        state[uuid] = server.get(f"/allocations/{uuid}", 38)
    return canonical(state)
