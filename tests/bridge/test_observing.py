"""Watches of a real API server: what it has forgotten, and bookmarks that move the position."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from bridge.clusters import naming, open_client
from bridge.domain.kinds import ObjectKind
from bridge.hypervisors.watcher import Watcher
from bridge.kube.client import ObjectRefused, kind_path
from bridge.kube.listing import BOOKMARK, ObjectsApi, Page, Watch
from bridge.kube.observing import Heard, Listed, Observer
from bridge.models import MirrorState
from tests.bridge.hypervisor_objects import hypervisor_object
from tests.bridge.hypervisor_writer import Objects, awaited
from tests.bridge.mirrors import SECONDS, assert_equal, mirroring
from tests.bridge.test_definitions import COMMITMENT
from tests.bridge.test_hypervisor_watch import connected, followed, names, taken, takes
from tests.factories import make_commitment
from tests.kube.server import Cluster

#: The server tells where a watch stands two seconds before it ends it.
SHORT_WATCH_SECONDS = 4
FORGOTTEN = "1"
PLURAL = ObjectKind.COMMITTED_RESOURCE.plural


class Asked:
    """What the API server is asked about one kind: versions of lists, and versions watched from.

    Attributes:
        watch_from: Returns the version that is sent for the one to watch from.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plural: str) -> None:
        self.listed: list[str] = []
        self.watched: list[str] = []
        self.watch_from: Callable[[str], str] = lambda version: version
        page, watch = ObjectsApi.page, ObjectsApi.watch

        def asked_page(api: ObjectsApi, *, limit: int, following: str = "") -> Page:
            found = page(api, limit=limit, following=following)
            if api._path.endswith(plural):
                self.listed.append(found.version)
            return found

        def asked_watch(api: ObjectsApi, version: str, **_: Any) -> Watch:
            if api._path.endswith(plural):
                self.watched.append(version)
                version = self.watch_from(version)
            return watch(api, version, seconds=SHORT_WATCH_SECONDS)

        monkeypatch.setattr(ObjectsApi, "page", asked_page)
        monkeypatch.setattr(ObjectsApi, "watch", asked_watch)


@pytest.fixture
def objects(api_server: Cluster, takes_objects: Any) -> Iterator[Objects]:
    yield from connected(api_server, takes_objects)


@pytest.mark.django_db(transaction=True)
def test_the_mirror_lists_again_what_the_server_has_forgotten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the second list can tell of an edit between the first one and a watch that expired."""
    row = make_commitment()
    asked = Asked(monkeypatch, PLURAL)

    def edit_and_forget(version: str) -> str:
        if len(asked.watched) > 1:
            return version
        edit = json.dumps({"spec": {"amount": "1Gi"}})
        cluster.kubectl(
            "patch", f"cres/commitment-{row.commitment_uuid}", "--type=merge", "-p", edit
        )
        return FORGOTTEN

    asked.watch_from = edit_and_forget
    with mirroring() as until:
        assert until(lambda: MirrorState.objects.filter(drifts=1, is_due=False).exists())
        assert until(lambda: len(asked.watched) > 1)
    assert len(asked.listed) == 2
    assert asked.watched[1] == asked.listed[1]
    assert_equal(cluster)


@pytest.mark.django_db(transaction=True)
def test_the_mirror_lists_again_where_the_server_refuses_what_it_asks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does with 400 where it cannot read a version or the name of a page."""
    make_commitment()
    asked = Asked(monkeypatch, PLURAL)

    def refused(version: str) -> str:
        if len(asked.watched) == 1:
            raise ObjectRefused("400: no version")
        return version

    asked.watch_from = refused
    with mirroring() as until:
        assert until(lambda: len(asked.watched) > 1)
    assert len(asked.listed) == 2
    assert_equal(cluster)


def test_a_bookmark_alone_moves_where_the_mirror_watches_from(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects without the bridge's label change: nobody tells of them, but where the log stands."""
    asked = Asked(monkeypatch, PLURAL)
    heard: SimpleQueue[Listed | Heard] = SimpleQueue()

    def put(name: str, **labels: str) -> int:
        body = {**COMMITMENT, "metadata": {"name": name, "labels": labels}}
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))
        return int(cluster.get(f"cres/{name}")["metadata"]["resourceVersion"])

    def open_api() -> ObjectsApi:
        chosen = naming()
        return ObjectsApi(
            open_client("test"),
            kind_path(chosen.group, chosen.version, PLURAL),
            selector=f"{chosen.managed_label}={chosen.region_value}",
            silence_seconds=SECONDS,
            is_whole=False,
        )

    observer = Observer(
        ObjectKind.COMMITTED_RESOURCE,
        open_api,
        heard.put,
        list_seconds=10_000,
        turn=threading.Lock(),
    )
    try:
        assert isinstance(heard.get(timeout=SECONDS), Listed)
        version = put("foreign")
        awaited(lambda: int(asked.watched[-1]) >= version)
        assert heard.empty()
        ours = put("ours", **{naming().managed_label: naming().region_value})
        news = heard.get(timeout=SECONDS)
    finally:
        observer.stop()
        observer.join()
    assert news == Heard(
        kind=ObjectKind.COMMITTED_RESOURCE, name="ours", version=str(ours), is_gone=False
    )
    assert len(asked.listed) == 1


@pytest.mark.django_db(transaction=True)
def test_a_bookmark_alone_moves_where_hypervisors_are_watched_from(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects of other kinds change; a list of this one makes the server look how far it is."""
    objects.put(hypervisor_object("node1"))
    asked = Asked(monkeypatch, "hypervisors")
    told: list[str] = []
    take = Watcher._take

    def noted(self: Watcher, batch: list[Any]) -> None:
        told.extend(event["type"] for event in batch)
        take(self, batch)

    monkeypatch.setattr(Watcher, "_take", noted)
    with followed():
        awaited(lambda: names() == ["node1"] and bool(asked.watched))
        told.clear()
        objects.cluster.kubectl("create", "configmap", "moves-on", "-n", "default")
        moved = objects.cluster.get("configmap/moves-on", "-n", "default")
        version = int(moved["metadata"]["resourceVersion"])
        objects.names()
        awaited(lambda: int(asked.watched[-1]) >= version)
        assert set(told) == {BOOKMARK}
        objects.say("node1", **takes(6))
        awaited(lambda: taken("node1") == 6)
    objects.cluster.kubectl("delete", "configmap", "moves-on", "-n", "default")
    assert len(asked.listed) == 1
