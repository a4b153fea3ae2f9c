"""Copies of another Placement answer nobody here (spec placement, 8.3)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from placement.gateway.ownership import (
    all_owned,
    is_owned,
    owned_among,
    taken_by_ours,
)
from placement.models import Change, Inventory, Origin, ResourceProvider
from placement.selectors.contents import read_contents
from placement.selectors.snapshot import SnapshotCache, current_snapshot, snapshot_with_copies
from placement.services.audit import usage_drift
from placement.services.locking import log_changes
from tests.placement.client import PlacementClient, placement_settings
from tests.placement.rows import make_provider
from tests.process_tables import load_snapshot

pytestmark = pytest.mark.django_db
MINE, COPY, CELL = "mine", "copied", "copied-cell"


@pytest.fixture(autouse=True)
def _open(settings: Any) -> None:
    placement_settings(settings)


@pytest.fixture
def rows() -> dict[str, ResourceProvider]:
    mine = make_provider(MINE, inventories={"VCPU": 8}, traits=("CUSTOM_A",))
    copy = make_provider(COPY, inventories={"VCPU": 8}, traits=("CUSTOM_A",), aggregates=(uuid4(),))
    cell = make_provider(CELL, parent=copy, inventories={"PCPU": 4})
    ResourceProvider.objects.filter(root=copy).update(origin=Origin.UPSTREAM)
    Inventory.objects.filter(provider=copy).update(used=3)
    return {MINE: mine, COPY: copy, CELL: cell}


def test_who_is_ours(rows: dict[str, ResourceProvider]) -> None:
    mine, copy = rows[MINE], rows[COPY]
    given = [str(mine.uuid).upper(), str(copy.uuid), str(uuid4()), "no uuid"]
    assert owned_among(given) == {str(mine.uuid)}
    assert owned_among(["no uuid"]) == frozenset()
    assert (is_owned(str(mine.uuid)), is_owned(str(copy.uuid))) == (True, False)
    assert taken_by_ours(uuids=[str(copy.uuid)], names=[MINE, COPY]) == {(str(mine.uuid), MINE)}
    assert all_owned() == {(str(mine.uuid), MINE)}


def test_a_copy_is_in_no_answer(rows: dict[str, ResourceProvider]) -> None:
    client, copy, cell = PlacementClient(X_Roles="admin,service"), rows[COPY], rows[CELL]
    listed = client.get("/resource_providers")
    assert [one["uuid"] for one in listed.json["resource_providers"]] == [str(rows[MINE].uuid)]
    for query in (f"in_tree={copy.uuid}", f"uuid={copy.uuid}", f"name={COPY}", "resources=PCPU:1"):
        found = client.get(f"/resource_providers?{query}", version="1.14")
        assert found.json == {"resource_providers": []}, query
    for part in ("", "/inventories", "/usages", "/aggregates", "/traits", "/allocations"):
        for provider in (copy, cell):
            path = f"/resource_providers/{provider.uuid}{part}"
            assert client.get(path).status == 404, path
    found = client.get("/allocation_candidates?resources=VCPU:1").json
    assert list(found["provider_summaries"]) == [str(rows[MINE].uuid)]
    assert set(read_contents().providers) == {str(rows[MINE].uuid)}
    assert not usage_drift()


def test_nothing_is_written_to_a_copy(rows: dict[str, ResourceProvider]) -> None:
    client, copy = PlacementClient(X_Roles="admin,service"), rows[COPY]
    before = ResourceProvider.objects.filter(root=copy).order_by("pk").values()
    known = list(before)
    path = f"/resource_providers/{copy.uuid}"
    child = {"name": "child", "parent_provider_uuid": str(copy.uuid)}
    held: dict[str, Any] = {
        "allocations": {str(copy.uuid): {"resources": {"VCPU": 1}}},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": None,
    }
    consumer = str(uuid4())
    answers = [
        client.put(path, {"name": "other"}),
        client.delete(path),
        client.put(
            f"{path}/inventories",
            {"resource_provider_generation": 0, "inventories": {}},
            version="1.39",
        ),
        client.put(f"{path}/traits", {"resource_provider_generation": 0, "traits": []}),
    ]
    assert {answer.status for answer in answers} == {404}
    refused = [
        client.post("/resource_providers", child),
        client.put(f"/allocations/{consumer}", held, version="1.28"),
        client.post("/allocations", {consumer: held, str(uuid4()): held}, version="1.28"),
        client.post(
            "/reshaper",
            {
                "inventories": {
                    str(copy.uuid): {"resource_provider_generation": 0, "inventories": {}}
                },
                "allocations": {},
            },
            version="1.30",
        ),
    ]
    assert {answer.status for answer in refused} == {400}
    assert list(before.all()) == known


@pytest.mark.django_db(transaction=True)
def test_snapshots_follow_a_tree_that_becomes_ours(rows: dict[str, ResourceProvider]) -> None:
    copy = rows[COPY]
    ours, both = SnapshotCache(), SnapshotCache(with_copies=True)
    assert (len(ours.current()), len(both.current())) == (1, 3)
    Inventory.objects.filter(provider=copy).update(used=4)
    log_changes([copy.root_id], Change.Kind.USAGE)
    assert (len(ours.current()), len(both.current())) == (1, 3)
    row = both.current().row_of_id(copy.pk)
    columns = both.current().classes["VCPU"]
    assert columns.used[columns.position(row)] == 4
    ResourceProvider.objects.filter(root=copy).update(origin=Origin.API)
    log_changes([copy.root_id])
    assert len(ours.current()) == len(both.current()) == len(load_snapshot()) == 3
    assert (ours.verify(), both.verify()) == ({}, {})
    assert len(current_snapshot()) == len(snapshot_with_copies()) == 3
