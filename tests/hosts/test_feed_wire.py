"""The feed over real HTTP: services that fail, lie and are silent cost nothing that is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from capacity.models import HostCapacity
from hosts.clients import cloud as client
from hosts.clients.listing import CloudUnreachable
from hosts.feed.lists import PassKind, lists_of
from hosts.feed.passes import FULL_KINDS
from hosts.feed.state import known_until
from hosts.models import FeedPass, Instance
from journal.clock import database_now
from tests.hosts.feed_cloud import LISTS, LiveCloud, places, taken, without_about
from tests.hosts.feed_wire import FAULTS, WiredCloud, read_wire, silent
from tests.hosts.region_files import dump, small_region
from tests.hosts.served_cloud import served_cloud
from tests.killing import run_in_child
from tests.ledger import assert_ledger_holds

pytestmark = pytest.mark.django_db(transaction=True)

PATH_OF = {key: path for path, (_, key) in LISTS.items()}
PATHS = {
    kind: [PATH_OF[each.section.partition(".")[2]] for each in lists_of(kind)]
    for kind in FULL_KINDS
}


@pytest.fixture
def wired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WiredCloud]:
    cloud = LiveCloud(hosts=3)
    for number in range(1, 8):
        cloud.boot(f"v{number}", 1 + number % 3)
    for number in range(1, 4):
        (provider,) = small_region()["placement"]["resource_providers"]
        own = {"uuid": f"h{number}", "root_provider_uuid": f"h{number}", "name": f"node{number}"}
        cloud.region["placement"]["resource_providers"].append(provider | own | {"generation": 1})
    served = WiredCloud(cloud)
    with served_cloud(served, tmp_path, monkeypatch):
        yield served


def known() -> bytes:
    return without_about(dump())


def test_the_command_tells_what_it_read_as_json(
    wired: WiredCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("sync_nova", "--cloud", "mini", "--json")
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {kind.value for kind in FULL_KINDS}
    (servers,) = told["servers"]["sections"]
    assert (servers["section"], servers["created"]) == ("compute.servers", len(places()))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_answer_of_any_list_takes_nothing_away(wired: WiredCloud, fault: str) -> None:
    read_wire()
    before, rooms = known(), taken()
    for kind, paths in PATHS.items():
        for path in paths:
            wired.faults = {path: [fault]}
            with suppress(CloudUnreachable):
                read_wire(kind)
            assert (known(), taken()) == (before, rooms), (kind, path)
    wired.faults = {PATHS[PassKind.SERVERS][0]: [fault]}
    with suppress(CloudUnreachable):
        read_wire(PassKind.CHANGES)
    assert (known(), taken()) == (before, rooms)

    wired.faults = {}
    wired.cloud.put("v1", 1)
    wired.cloud.delete("v2")
    read_wire()
    assert (places()["v1"], "v2" in places()) == ("node1", False)
    assert_ledger_holds()


def test_a_service_that_is_busy_for_a_moment_is_asked_again(
    wired: WiredCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    wired.faults = {"/servers/detail": ["is away for a moment"]}
    monkeypatch.setitem(FAULTS, "is away for a moment", FAULTS["is away"])
    read_wire()
    assert len(places()) == 7


def test_a_service_that_is_silent_is_waited_for_no_longer_than_allowed(
    wired: WiredCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RETRIES", 0)
    read_wire()
    before = known()
    with silent(wired), pytest.raises(CloudUnreachable, match="timed out"):
        read_wire(PassKind.SERVERS, timeout_seconds=0.5)
    assert known() == before
    wired.cloud.put("v1", 1)
    read_wire(PassKind.CHANGES)
    assert places()["v1"] == "node1"


def test_while_the_cloud_is_away_graces_stand_still_and_afterwards_all_is_seen(
    wired: WiredCloud, settings: Any
) -> None:
    feed = settings.HEADROOM.feed.model_copy(update={"cloud": "mini"})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
    read_wire()
    seen_until = known_until(database_now())
    cloud = wired.cloud
    cloud.put("v1", 1)
    cloud.delete("v2")
    cloud.boot("v8", 3)
    before = known()
    for attempt in range(1, 4):
        wired.faults = {path: ["fails"] for paths in PATHS.values() for path in paths}
        for kind in FULL_KINDS:
            wired.faults = {path: ["fails"] for path in PATHS[kind]}
            with pytest.raises(CloudUnreachable):
                read_wire(kind)
        wired.faults = {"/servers/detail": ["fails"]}
        with pytest.raises(CloudUnreachable):
            read_wire(PassKind.CHANGES)
        assert known() == before
        assert known_until(database_now()) == seen_until
        assert set(FeedPass.objects.values_list("failures", flat=True)) == {attempt}

    wired.faults = {}
    read_wire(PassKind.CHANGES)
    assert (places()["v1"], "v2" in places(), places()["v8"]) == ("node1", False, "node3")
    assert taken() == {"node1": 3, "node2": 2, "node3": 2}
    assert known_until(database_now()) > seen_until


def test_a_first_reading_that_is_killed_at_any_statement_is_completed_by_the_next(
    wired: WiredCloud,
) -> None:
    """Whole parts are left behind, rooms follow their VMs, and nothing is there twice."""
    left = set()
    for die_at in range(1, 600, 7):
        has_finished = run_in_child(partial(read_wire, PassKind.HOSTS, PassKind.SERVERS), die_at)
        counted = dict.fromkeys(HostCapacity.objects.values_list("host__name", flat=True), 0)
        for host in Instance.objects.values_list("host__name", flat=True):
            if host is not None:
                counted[host] += 1
        assert taken() == counted
        left.add(len(places()))
        if has_finished:
            break
    else:
        pytest.fail("never finished")
    assert left >= {0, 7}
    read_wire()
    assert places()["v1"] is not None
    assert_ledger_holds()
