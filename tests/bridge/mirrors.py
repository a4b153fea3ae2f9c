"""What tests of the mirror share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from bridge.clusters import naming, open_client
from bridge.domain.kinds import ObjectKind
from bridge.domain.objects import MOVING, Rendered
from bridge.kube.client import ClusterClient
from bridge.kube.definitions import Definition, await_served, install
from bridge.kube.listing import ObjectsApi
from bridge.kube.login import ClusterUnavailable
from bridge.kube.observing import Listed
from bridge.mirror import LEASE, Mirror
from bridge.models import MirrorState
from bridge.selectors import render_rows
from bridge.services.follow import SOURCES, register
from config.launcher.processes import wait_until
from journal.leases import held_lease
from journal.statements import fetch_rows
from tests.kube.server import Cluster

SECONDS = 30.0


def install_kinds(client: ClusterClient, definitions: list[Definition]) -> None:
    """Install definitions and wait until objects can be read, which is a little later."""
    for definition in definitions:
        install(client, definition)
    assert await_served(client, definitions, wait=lambda done: wait_until(done, SECONDS))

    def are_listed() -> bool:
        for definition in definitions:
            spec = definition.manifest["spec"]
            path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            try:
                client.get(path)
            except ClusterUnavailable:
                return False
        return True

    assert wait_until(are_listed, SECONDS)


def converge() -> int:
    """Mirror until nothing is left to do; return how many steps did something."""
    mirror = Mirror()
    steps = 0
    with closing(mirror), held_lease(LEASE) as is_ours:
        assert is_ours
        register()
        while mirror.step():
            steps += 1
            assert steps < 500
    return steps


@contextmanager
def mirroring() -> Iterator[Callable[[Callable[[], bool] | None], bool]]:
    """Mirror step by step as one process does; yield what steps until something is so.

    With nothing to wait for it steps until each kind is listed and compared, and nothing waits.
    """
    mirror = Mirror()
    with held_lease(LEASE) as is_ours:
        assert is_ours
        register()

        def until(is_so: Callable[[], bool] | None) -> bool:
            def stepped() -> bool:
                done = mirror.step()
                return is_so() if is_so else not done

            return wait_until(stepped, SECONDS)

        try:
            yield until
        finally:
            mirror.close()


def listed_kind(kind: ObjectKind) -> Listed:
    """Return what the cluster has of a kind now."""
    chosen = naming()
    path = f"/apis/{chosen.api_version}/{kind.plural}"
    with closing(
        ObjectsApi(open_client("test"), path, silence_seconds=SECONDS, is_whole=False)
    ) as api:
        page = api.page(limit=500)
    found = {body["metadata"]["name"]: body["metadata"]["resourceVersion"] for body in page.objects}
    return Listed(kind=kind, version=page.version, versions=found)


def rows() -> dict[tuple[ObjectKind, str], Rendered]:
    """Return what the database says, straight from all rows."""
    found = {}
    for kind, (table, _) in SOURCES.items():
        ids = [pk for (pk,) in fetch_rows(f"SELECT id FROM {table}")]  # noqa: S608 - ours
        for row in render_rows(kind, ids, naming()).values():
            assert isinstance(row, Rendered)
            found[kind, row.name] = row
    return found


def objects(cluster: Cluster) -> dict[tuple[ObjectKind, str], dict[str, Any]]:
    """Return what the cluster has, as kubectl gives it."""
    kinds = ",".join(f"{kind.plural}.{naming().group}" for kind in ObjectKind)
    items = cluster.get(kinds)["items"]
    return {(ObjectKind(item["kind"]), item["metadata"]["name"]): item for item in items}


def assert_equal(cluster: Cluster) -> None:
    """Compare each object with its row."""
    wanted, there = rows(), objects(cluster)
    assert there.keys() == wanted.keys()
    for key, row in wanted.items():
        item = there[key]
        about = item["metadata"]
        assert item["spec"] == row.spec
        assert about["labels"] == row.manifest(naming())["metadata"]["labels"], key
        assert about.get("annotations", {}) == dict(row.annotations), key
        state = MirrorState.objects.get(kind=key[0], name=key[1])
        expected = row.whole_status(
            about["generation"], state.observed_generation, state.transitions
        )
        assert still(item.get("status", {})) == still(expected), key
        assert (state.resource_version, state.is_due) == (about["resourceVersion"], False), key
    assert MirrorState.objects.count() == len(wanted)


def still(status: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in status.items() if key not in MOVING}
