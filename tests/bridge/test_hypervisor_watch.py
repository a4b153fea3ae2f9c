"""Hypervisor objects followed at a real API server, whatever happens to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from bridge.hypervisors import watcher as following
from bridge.hypervisors.kubernetes import hypervisors_api
from bridge.hypervisors.watcher import Watcher
from bridge.hypervisors.writing import write_changes
from bridge.kube.listing import Expired, ObjectsApi
from bridge.kube.login import ClusterUnavailable
from capacity.models import HostCapacity
from hosts.models import FeedPass, Host
from hosts.vm_source import reporting_hosts
from journal.actors import Actor
from journal.history import read_moment
from journal.leases import take_lease
from tests.bridge.conftest import use
from tests.bridge.hypervisor_objects import Json, hypervisor_object, instances
from tests.bridge.hypervisor_writer import PATIENCE_SECONDS, Objects, awaited
from tests.kube.server import ApiServer, Cluster
from tests.ledger import assert_rooms_add_up

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

GIB = 1 << 30


def names() -> list[str]:
    return list(Host.objects.order_by("name").values_list("name", flat=True))


def taken(name: str) -> int:
    rooms = HostCapacity.objects.filter(host__name=name)
    return sum(rooms.values_list("allocated_memory_bytes", flat=True)) // GIB


def takes(gib: int) -> Json:
    return {"allocation": {"cpu": "1", "memory": f"{gib}Gi"}}


@contextmanager
def followed(count: int = 1) -> Iterator[list[threading.Event]]:
    """Follow in threads; yield what ends each of them."""
    ends = [threading.Event() for _ in range(count)]
    threads = []
    for end in ends:
        watcher = Watcher(hypervisors_api, actor=Actor(name="test"), until=end)
        threads.append(threading.Thread(target=watcher.run))
        threads[-1].start()
    try:
        yield ends
    finally:
        for end in ends:
            end.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in threads)


def connected(cluster: Cluster, settings: Any) -> Iterator[Objects]:
    use(settings, kubeconfig=cluster.kubeconfig, page_objects=2, longest_pause_seconds=1.0)
    objects = Objects(cluster)
    objects.define()
    yield objects
    objects.close()


@pytest.fixture
def objects(api_server: Cluster, takes_objects: Any) -> Iterator[Objects]:
    yield from connected(api_server, takes_objects)


@pytest.fixture
def own_objects(own_api_server: ApiServer, takes_objects: Any) -> Iterator[Objects]:
    yield from connected(own_api_server, takes_objects)


def test_a_list_of_several_pages_then_every_change(objects: Objects) -> None:
    for number in range(5):
        objects.put(hypervisor_object(f"node{number}"))
    with followed():
        awaited(lambda: len(names()) == 5)
        objects.say("node3", **takes(7), instances=instances(("vm-1", True)))
        awaited(lambda: taken("node3") == 7)
        objects.put(hypervisor_object("node5"))
        objects.delete("node0")
        awaited(lambda: names() == [f"node{number}" for number in range(1, 6)])
        awaited(lambda: any(host.vms for host in reporting_hosts()))
    row = FeedPass.objects.get(kind="hypervisors")
    assert (row.failures, row.error, row.refusal) == (0, "", "")
    assert_rooms_add_up()


def test_garbage_is_skipped_with_its_reason_and_stops_nobody(objects: Objects) -> None:
    objects.put(hypervisor_object("good"))
    objects.put(hypervisor_object("bad", capacity={"cpu": "lots"}))
    with followed():
        awaited(lambda: names() == ["good"])
        objects.say("good", instances="none")
        objects.say("bad", capacity={"cpu": "3", "memory": "4Gi"})
        awaited(lambda: names() == ["bad", "good"])
        objects.say("good", instances=[], **takes(3))
        awaited(lambda: taken("good") == 3)


def test_a_watch_that_breaks_goes_on_where_it_was(
    objects: Objects, takes_objects: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(takes_objects, silence_seconds=0.3)
    lists: list[ObjectsApi] = []
    listed = Watcher._list

    def counted(self: Watcher, api: ObjectsApi, **more: Any) -> Any:
        lists.append(api)
        return listed(self, api, **more)

    monkeypatch.setattr(Watcher, "_list", counted)
    objects.put(hypervisor_object("node1"))
    with followed():
        awaited(lambda: names() == ["node1"])
        awaited(lambda: FeedPass.objects.get(kind="hypervisors").failures > 1)
        objects.say("node1", **takes(5))
        awaited(lambda: taken("node1") == 5)
    assert len(lists) == 1


def test_a_database_with_another_past_is_told_everything_again(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.put(hypervisor_object("node1"))
    with followed():
        awaited(lambda: names() == ["node1"])
        Host.objects.update(os_version="of before")
        elsewhere = replace(read_moment(), history="of another server")
        monkeypatch.setattr(following, "read_moment", lambda: elsewhere)
        objects.put(hypervisor_object("node2"))
        awaited(lambda: not Host.objects.filter(os_version="of before").exists())
        awaited(lambda: names() == ["node1", "node2"])


def test_what_the_server_has_forgotten_is_listed_again(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.put(hypervisor_object("node1"))
    watch = ObjectsApi.watch
    asked: list[str] = []

    def too_old(self: ObjectsApi, version: str) -> Any:
        asked.append(version)
        return watch(self, "1" if len(asked) == 1 else version)

    monkeypatch.setattr(ObjectsApi, "watch", too_old)
    with followed():
        awaited(lambda: len(asked) == 2)
        objects.put(hypervisor_object("node2"))
        awaited(lambda: names() == ["node1", "node2"])


def test_a_list_that_expires_while_it_is_read_begins_anew(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        objects.put(hypervisor_object(f"node{number}"))
    page = ObjectsApi.page
    spoiled: list[str] = []

    def spoil(self: ObjectsApi, *, limit: int, following: str = "") -> Any:
        if following and not spoiled:
            spoiled.append(following)
            raise Expired("too old")
        return page(self, limit=limit, following=following)

    monkeypatch.setattr(ObjectsApi, "page", spoil)
    with followed():
        awaited(lambda: len(names()) == 5)
    assert spoiled


def test_a_server_that_restarts_is_found_again(own_objects: Objects) -> None:
    server = own_objects.cluster
    assert isinstance(server, ApiServer)
    own_objects.put(hypervisor_object("node1"))
    with followed():
        awaited(lambda: names() == ["node1"])
        server.stop()
        awaited(lambda: FeedPass.objects.get(kind="hypervisors").failures > 0)
        server.start()
        own_objects.say("node1", **takes(9))
        awaited(lambda: taken("node1") == 9)
        awaited(lambda: FeedPass.objects.get(kind="hypervisors").failures == 0)


def test_writers_in_each_others_way_end_in_what_the_server_has(objects: Objects) -> None:
    for number in range(4):
        objects.put(hypervisor_object(f"node{number}"))

    def write(first: int) -> None:
        for turn in range(20):
            objects.say(f"node{turn % 4}", **takes(first + turn))

    with followed():
        writers = [threading.Thread(target=write, args=(first,)) for first in (1, 100, 200)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        said = {
            body["metadata"]["name"]: int(body["status"]["allocation"]["memory"].rstrip("Gi"))
            for body in objects.cluster.get("hypervisors")["items"]
        }
        awaited(lambda: {name: taken(name) for name in said} == said)
    assert_rooms_add_up()


def test_one_follows_and_another_takes_over(objects: Objects) -> None:
    objects.put(hypervisor_object("node1"))
    with followed(2) as (first, second):
        awaited(lambda: names() == ["node1"])
        assert take_lease(following.LEASE) is None
        first.set()
        objects.put(hypervisor_object("node2"))
        awaited(lambda: names() == ["node1", "node2"])
        second.set()


def test_a_deletion_of_nearly_all_is_not_believed(objects: Objects) -> None:
    for number in range(8):
        objects.put(hypervisor_object(f"node{number}"))
    with followed():
        awaited(lambda: len(names()) == 8)
        for number in range(8):
            objects.delete(f"node{number}")
        awaited(lambda: "shrank" in FeedPass.objects.get(kind="hypervisors").refusal)
    assert len(names()) >= 4
    call_command("watch_hypervisors", "--once", "--accept-shrink")
    assert names() == []


def test_a_database_that_fails_for_a_moment_loses_nothing(
    objects: Objects, takes_objects: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write is cut off once, its connection with it: the lease is not given back and ends."""
    quick = takes_objects.HEADROOM.model_copy(update={"lease_seconds": 2.0})
    takes_objects.HEADROOM = quick
    objects.put(hypervisor_object("node1"))
    write = write_changes
    cut: list[int] = []

    def cut_off(*args: Any, **more: Any) -> Any:
        if not cut:
            cut.append(1)
            connection.close()
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return write(*args, **more)

    monkeypatch.setattr(following, "write_changes", cut_off)
    with followed():
        awaited(lambda: names() == ["node1"])
        objects.say("node1", **takes(4))
        awaited(lambda: taken("node1") == 4)
    assert cut


def test_what_cannot_be_asked_is_said(takes_objects: Any, tmp_path: Any) -> None:
    use(takes_objects, kubeconfig=tmp_path / "none")
    with pytest.raises(CommandError, match="no way to the cluster"):
        call_command("watch_hypervisors", "--once")
    with pytest.raises(CommandError, match="add --once"):
        call_command("watch_hypervisors", "--accept-shrink")
    use(takes_objects, sync="off")
    with pytest.raises(CommandError, match="is not import"):
        call_command("watch_hypervisors")


def test_a_kind_that_nobody_defined_is_said(api_server: Cluster, takes_objects: Any) -> None:
    use(takes_objects, kubeconfig=api_server.kubeconfig, group="nobody.example")
    api = hypervisors_api()
    with pytest.raises(ClusterUnavailable, match="status 404"):
        api.page(limit=5)
    api.close()
