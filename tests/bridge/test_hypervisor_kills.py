"""The watcher of Hypervisor objects killed at any request to the cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from bridge.kube.client import ClusterClient
from bridge.models import OwnedFieldConflict
from config.sections_hypervisors import OvercommitRule
from tests.bridge.conftest import use
from tests.bridge.hypervisor_objects import hypervisor_object
from tests.bridge.hypervisor_writer import Objects
from tests.bridge.test_hypervisor_watch import connected
from tests.bridge.test_write_back import Stepped, only, put_as
from tests.killing import NEVER, run_in_child
from tests.kube.server import Cluster
from tests.ledger import assert_rooms_add_up

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


@pytest.fixture
def objects(api_server: Cluster, takes_objects: Any) -> Iterator[Objects]:
    yield from connected(api_server, takes_objects)


def dying_at(number: int, *, is_answered: bool) -> Callable[[Any], Any]:
    """Return what makes a request the last one of its process, before or after its answer."""
    seen = 0

    def wrap(send: Callable[..., Any]) -> Callable[..., Any]:
        def sent(*arguments: Any, **more: Any) -> Any:
            nonlocal seen
            seen += 1
            is_last = seen == number
            if is_last and not is_answered:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = send(*arguments, **more)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return sent

    return wrap


@pytest.mark.parametrize("is_answered", [False, True], ids=["before", "after"])
def test_killed_at_any_request_nothing_is_lost_and_nothing_doubled(
    objects: Objects, takes_objects: Any, is_answered: bool
) -> None:
    rule = OvercommitRule(overcommit={"cpu": Decimal(4)}, has_trait="GPU")
    fields = ("overcommit", "effective_capacity")
    use(takes_objects, write_back=fields, overcommit_rules=(rule,), write_threads=1)
    for name in ("node1", "node2"):
        objects.put(hypervisor_object(name, traits=["GPU"], effectiveCapacity=None))
    theirs = hypervisor_object("node3", traits=["GPU"], effectiveCapacity=None)
    put_as(objects, "operator", only(theirs, "spec", overcommit={"cpu": 2}))
    objects.put(theirs)

    def follow(number: int) -> None:
        wrap = dying_at(number, is_answered=is_answered)
        ClusterClient.open = wrap(ClusterClient.open)  # type: ignore[method-assign]  # in a child
        stepped = Stepped()
        stepped.step()

    number = 1
    while not run_in_child(partial(follow, number), NEVER):
        assert_rooms_add_up()
        number += 1
    assert number > 3, "nothing was killed"
    stepped = Stepped()
    stepped.step()
    stepped.step()
    for name in ("node1", "node2"):
        said = objects.get(name)
        assert said["spec"]["overcommit"] == {"cpu": 4}
        assert said["status"]["effectiveCapacity"]["cpu"] == "256"
    assert objects.get("node3")["spec"]["overcommit"] == {"cpu": 2}
    assert [row.host_name for row in OwnedFieldConflict.objects.all()] == ["node3"]
    assert Stepped().step() == 1  # the one that is another's
