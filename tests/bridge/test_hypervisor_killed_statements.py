"""The watcher of Hypervisor objects killed at any statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bridge.hypervisors.kubernetes import hypervisors_api
from bridge.hypervisors.watcher import Watcher
from journal.actors import Actor
from tests.bridge.hypervisor_objects import hypervisor_object, instances
from tests.bridge.hypervisor_writer import Objects
from tests.bridge.test_hypervisor_watch import connected, names, taken, takes
from tests.killing import die_at_each_distinct_statement
from tests.kube.server import Cluster
from tests.ledger import assert_rooms_add_up

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


@pytest.fixture
def objects(api_server: Cluster, takes_objects: Any) -> Iterator[Objects]:
    yield from connected(api_server, takes_objects)


def test_killed_at_any_statement_it_leaves_what_adds_up_and_the_next_completes_it(
    objects: Objects,
) -> None:
    """A list, then a change and a deletion; each run has something new to write."""
    bodies = {name: hypervisor_object(name) for name in ("node1", "node2", "node3")}
    for body in bodies.values():
        objects.put(body)
    objects.say("node2", instances=instances(("vm-1", True)))
    said = 1
    objects.say("node1", **takes(said))

    def follow() -> None:
        watcher = Watcher(hypervisors_api, actor=Actor(name="test"), until=None)  # type: ignore[arg-type]  # never asked
        watcher.list_once()
        changed = hypervisor_object("node2", instances=[], **takes(said))
        changed["metadata"]["resourceVersion"] = "1"
        told = [("MODIFIED", changed), ("DELETED", bodies["node3"])]
        watcher._take([{"type": kind, "object": body} for kind, body in told])

    def look() -> None:
        nonlocal said
        assert_rooms_add_up()
        assert taken("node1") <= said
        assert set(names()) <= set(bodies)
        said += 1
        objects.say("node1", **takes(said))

    killed = die_at_each_distinct_statement(follow, look, times=2)
    assert killed > 20, "nothing was killed"
    assert names() == ["node1", "node2"]
    assert (taken("node1"), taken("node2")) == (said - 1, said - 1)
