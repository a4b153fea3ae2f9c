"""What follows changes may be brought forward on a standby, and is never behind the primary then.

These tests run in one process, so that each read goes to the server that the test means.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connections

from config.launcher.processes import processes_in, wait_until
from config.sections_web import ReplicaSettings
from core import sessions, standby
from core.changes import one_snapshot
from core.prepared import fetch
from journal.counters import READS
from journal.kept_sums import keep_sums
from journal.metrics import facts_page
from journal.standby import watch
from journal.standby.asking import is_reading_standby
from placement.selectors.snapshot import SnapshotCache
from placement.selectors.snapshot.changes import Changes, read_changes
from tests.attack.test_standby_reads import hold_replay, let_replay
from tests.concurrency.test_provider_snapshot_races import capacity_of
from tests.domain.placement.facts import facts
from tests.e2e.own_postgres import PATIENCE_SECONDS, OwnPostgres, own_postgres, standby_of
from tests.placement.client import PlacementClient, uuid
from tests.placement.provider_moves import MOVES, seed
from tests.placement.rows import make_provider
from tests.placement.test_snapshot_property import empty_tables
from tests.process_tables import load_snapshot

pytestmark = pytest.mark.e2e

CLIENTS, ROUNDS = 4, 25
#: Long enough for a standby on a busy machine, short enough to be told from a request's time.
WAIT_MILLISECONDS = 900
SET_TOTAL = "UPDATE placement_inventory SET total = %s WHERE provider_id = %s"
LOG = """
INSERT INTO placement_change (xid, root_id, kind)
VALUES (pg_current_xact_id()::text::bigint, %s, 2)
"""


@dataclass(slots=True, kw_only=True)
class Site:
    """A primary and its standby, on which this process works."""

    primary: OwnPostgres
    standby: OwnPostgres
    watch: watch.StandbyWatch

    @contextmanager
    def here(self) -> Iterator[None]:
        """Make the primary's database that of this thread for a while."""
        usual, connections["default"] = connections["default"], connections["primary"]
        sessions._local.session = None  # the thread has kept that of the usual one
        try:
            yield
        finally:
            connections["default"] = usual
            sessions._local.session = None
            for alias in ("primary", "standby1"):
                connections[alias].close()
                del connections[alias]

    def replays(self) -> None:
        assert wait_until(lambda: self.standby.has_all_of(self.primary), PATIENCE_SECONDS)

    def set_total(self, provider: int, total: int) -> None:
        """Give a provider other capacity, as an own client of the primary does."""
        with self.primary.connect() as link, link.transaction():
            write_total(link, provider, total)


def write_total(link: Any, provider: int, total: int) -> None:
    link.execute(SET_TOTAL, [total, provider])
    link.execute(LOG, [provider])


def place_of(server: OwnPostgres) -> dict[str, Any]:
    address, usual = urlsplit(server.url), connections.settings["default"]
    return {
        **usual,
        "OPTIONS": {**usual["OPTIONS"], "target_session_attrs": "any"},
        "NAME": address.path.strip("/"),
        "USER": address.username,
        "HOST": parse_qs(address.query)["host"][0],
        "PORT": "",
    }


@contextmanager
def pair(directory: Path, data: Path) -> Iterator[tuple[OwnPostgres, OwnPostgres]]:
    """Run a primary with a standby; what is committed is sent there at once."""
    with own_postgres(directory, os.environ, data) as primary:
        with primary.connect() as link:
            link.execute("ALTER SYSTEM SET wal_writer_delay = '5ms'")
            link.execute("SELECT pg_reload_conf()")
        with standby_of(primary, directory) as other:
            yield primary, other


@pytest.fixture(scope="module")
def shared_pair(
    tmp_path_factory: pytest.TempPathFactory, migrated: Path
) -> Iterator[tuple[OwnPostgres, OwnPostgres]]:
    """Servers for tests that leave a standby behind."""
    with pair(tmp_path_factory.mktemp("pair"), migrated) as made:
        yield made


@pytest.fixture
def own_pair(tmp_path: Path, migrated: Path) -> Iterator[tuple[OwnPostgres, OwnPostgres]]:
    with pair(tmp_path, migrated) as made:
        yield made


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> tuple[OwnPostgres, OwnPostgres]:
    name = getattr(request, "param", "shared_pair")
    found: tuple[OwnPostgres, OwnPostgres] = request.getfixturevalue(name)
    return found


@pytest.fixture
def site(
    servers: tuple[OwnPostgres, OwnPostgres],
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    django_db_blocker: Any,
) -> Iterator[Site]:
    primary, other = servers
    made = watch.StandbyWatch(["standby1"], most_lag_seconds=3600, look_seconds=1)
    made._looked.set()
    monkeypatch.setattr(watch.StandbyWatch, "_ensure_thread", lambda _: None)
    monkeypatch.setattr(watch, "_current", made)
    monkeypatch.setattr(standby, "_late_until", {})
    replicas = ReplicaSettings(searches=True, replay_wait_milliseconds=WAIT_MILLISECONDS)
    chosen = {"replicas": replicas, "auth": "noauth"}
    settings.HEADROOM = settings.HEADROOM.model_copy(update=chosen)
    with django_db_blocker.unblock():  # no test's database is asked
        monkeypatch.setitem(connections.settings, "primary", place_of(primary))
        monkeypatch.setitem(connections.settings, "standby1", place_of(other))
        found = Site(primary=primary, standby=other, watch=made)
        with found.here():
            empty_tables()
            found.replays()
            made.look()
            assert made.choose() == "standby1", made._known
            yield found
        for idle in sessions._elsewhere.pop("standby1", ()):
            idle.wrapper.close()
        if other.standby_signal.exists():
            let_replay(other)


def answered(reader: str) -> Counter[str]:
    return Counter(
        {
            by: int(READS.labels(reader=reader, answered_by=by)._value.get())
            for by in ("standby", "primary", "primary_again")
        }
    )


def by(reader: str, ask: Callable[[], Any]) -> list[str]:
    """Return who answered meanwhile."""
    before = answered(reader)
    ask()
    return sorted((answered(reader) - before).elements())


def total_of(cache: SnapshotCache, provider: Any) -> int:
    return capacity_of(cache.current(), str(provider.uuid))


def test_sums_are_read_on_the_standby_and_kept_on_the_primary(site: Site) -> None:
    make_provider("host", inventories={"VCPU": 8})
    site.replays()
    hold_replay(site.standby)
    make_provider("other", inventories={"VCPU": 8})
    assert set(by("sums", keep_sums)) == {"standby"}
    kept = "SELECT figures FROM journal_keptsums WHERE name = 'placement_inventories'"
    ((figures,),) = fetch(kept)
    assert '"VCPU", "", 8.0' in figures, "the standby knows one of the two"
    with site.standby.stopped():
        assert Counter(by("sums", keep_sums)).keys() == {"primary", "primary_again"}
    ((figures,),) = fetch(kept)
    assert '"VCPU", "", 16.0' in figures


def test_a_scrape_tells_what_the_standby_says_and_ages_by_the_clock_of_the_primary(
    site: Site,
) -> None:
    computed = """
        INSERT INTO capacity_capacitycomputation
               (zone, snapshot, snapshot_xmin, inputs, host_count, misplaced_vms, ungrouped_vms,
                computed_at)
        VALUES ('az-a', '', 0, '', 0, 5, 0, now())
    """
    beat = "INSERT INTO journal_heartbeat (name, beaten_at) VALUES ('queue:long', now())"
    with site.primary.connect() as link:
        link.execute(computed)
        site.replays()
        hold_replay(site.standby)
        link.execute("UPDATE capacity_capacitycomputation SET misplaced_vms = 6")
        link.execute(beat)
    pages: list[str] = []
    assert by("metrics", lambda: pages.append(facts_page().decode())) == ["standby"]
    assert 'capacity_misplaced_vms{az="az-a"} 5.0' in pages[0]
    assert 'worker_queue_silence_seconds{queue="long"}' in pages[0]
    with site.standby.stopped():
        assert by("metrics", lambda: pages.append(facts_page().decode())) == ["primary_again"]
    assert 'capacity_misplaced_vms{az="az-a"} 6.0' in pages[1]
    names = [[line for line in page.splitlines() if line.startswith("# HELP")] for page in pages]
    assert names[0] == names[1], "whoever tells them, metrics come in one order"
    assert by("metrics", facts_page) == ["primary"], "it is left out"


def test_providers_are_loaded_from_a_standby_and_what_it_lacks_comes_from_the_primary(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (make_provider(name, inventories={"VCPU": 8}) for name in ("a", "b"))
    site.replays()
    cache = SnapshotCache()
    with site.primary.connect() as early, early.transaction():
        write_total(early, first.pk, 9)
        site.set_total(second.pk, 9)
        assert by("providers", cache.current) == ["standby"]
        assert (total_of(cache, first), total_of(cache, second)) == (8, 9)
    assert total_of(cache, first) == 9
    assert by("providers", cache.verify) == ["standby"]
    assert cache.verify() == {}


@pytest.mark.parametrize(
    "order",
    [
        ("standby", "standby", "standby"),
        ("standby", "primary", "standby"),
        ("primary", "standby", "primary"),
        ("standby", "primary", "primary"),
        ("primary", "standby", "standby"),
    ],
)
def test_a_transaction_that_commits_late_is_seen_whoever_answers(
    site: Site, settings: Any, order: tuple[str, ...]
) -> None:
    """It stays open across later commits; a standby does not name it among those that run."""

    def look(server: str) -> tuple[int, ...]:
        settings.HEADROOM.replicas.searches = server == "standby"
        told: list[int] = []
        expected = [server] if server == "standby" else []
        assert by("candidates", lambda: told.append(total_of(cache, early))) == expected
        return told[0], total_of(cache, late), total_of(cache, last)

    early, late, last = (make_provider(name, inventories={"VCPU": 8}) for name in "abc")
    cache = SnapshotCache()
    cache.current()
    with site.primary.connect() as link, link.transaction():
        write_total(link, early.pk, 9)
        site.set_total(late.pk, 10)
        assert look(order[0]) == (8, 10, 8)
        site.set_total(last.pk, 11)
        assert look(order[1]) == (8, 10, 11)
    assert look(order[2]) == (9, 10, 11)
    assert facts(cache.current()) == facts(load_snapshot())


def test_a_standby_whose_replay_pauses_is_waited_for_no_longer_than_was_set(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []
    look = standby._standing

    def looked(wrapper: Any, ends_at: float) -> watch.Standing:
        left.append(ends_at - time.monotonic())
        return look(wrapper, ends_at)

    monkeypatch.setattr(standby, "_standing", looked)
    host = make_provider("a", inventories={"VCPU": 8})
    cache = SnapshotCache()
    cache.current()
    hold_replay(site.standby)
    for number, waits in ((9, True), (10, False)):  # then it is spared for a moment
        site.set_total(host.pk, number)
        left.clear()
        assert by("candidates", cache.current) == ["primary"]
        assert (len(left) > 1) == waits, "it looks again until the time is over"
        assert all(one <= WAIT_MILLISECONDS / 1000 for one in left)
        assert total_of(cache, host) == number
    let_replay(site.standby)
    standby._late_until.clear()  # the moment is over
    assert by("candidates", cache.current) == ["standby"]
    assert total_of(cache, host) == 10


@contextmanager
def frozen(server: OwnPostgres) -> Iterator[None]:
    pids = processes_in(server.spec.data)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_standby_that_is_frozen_holds_no_search_up(site: Site) -> None:
    host = make_provider("a", inventories={"VCPU": 8})
    cache = SnapshotCache()
    assert by("candidates", lambda: (cache.current(), cache.current())) == ["standby"]
    with frozen(site.standby):
        site.set_total(host.pk, 9)
        assert by("candidates", lambda: total_of(cache, host)) == ["primary_again"]
        assert total_of(cache, host) == 9


def test_what_recovery_cancels_is_asked_of_the_primary(site: Site) -> None:
    with site.standby.connect() as link:
        link.execute("ALTER SYSTEM SET max_standby_streaming_delay = '0'")
        link.execute("SELECT pg_reload_conf()")
    host = make_provider("a", inventories={"VCPU": 8})
    cancelled: list[str] = []

    def meets_recovery(since: str) -> Changes:
        if not is_reading_standby():
            return read_changes(since)
        with one_snapshot():
            fetch("SELECT total FROM placement_inventory")
            with site.primary.connect() as link:
                for total in (9, 10):
                    write_total(link, host.pk, total)
                link.execute("VACUUM placement_inventory")
            try:
                for _ in range(int(PATIENCE_SECONDS)):
                    fetch("SELECT pg_sleep(1), total FROM placement_inventory")
            except Exception as error:
                cancelled.append(str(error))
                raise
        raise AssertionError("nothing was cancelled")

    cache = SnapshotCache(meets_recovery)
    cache.current()
    assert by("candidates", lambda: total_of(cache, host)) == ["primary_again"]
    assert "recovery" in cancelled[0]
    assert total_of(SnapshotCache(), host) == 10


@pytest.mark.parametrize("servers", ["own_pair"], indirect=True)
def test_a_standby_that_was_promoted_is_not_followed(site: Site) -> None:
    host = make_provider("a", inventories={"VCPU": 8})
    cache = SnapshotCache()
    assert by("candidates", lambda: (cache.current(), cache.current())) == ["standby"]
    site.replays()
    site.standby.promote()
    with site.standby.connect() as link:
        write_total(link, host.pk, 99)
        link.execute("SELECT pg_logical_emit_message(false, 'far', repeat('x', 100000))")
    site.set_total(host.pk, 9)
    assert by("candidates", cache.current) == ["primary_again"]
    assert total_of(cache, host) == 9
    site.watch.look()
    assert by("candidates", cache.current) == ["primary"]
    assert by("providers", lambda: total_of(SnapshotCache(), host)) == ["primary"]


def test_a_standby_of_another_history_of_the_primary_is_not_followed(site: Site) -> None:
    """The primary runs anew, as a backup in its place would, and nobody looked since."""
    host = make_provider("a", inventories={"VCPU": 8})
    cache = SnapshotCache()
    cache.current()
    connections["default"].close()
    with site.primary.stopped():
        pass
    assert by("candidates", lambda: total_of(cache, host)) == ["primary"]
    assert wait_until(lambda: site.standby.has_all_of(site.primary), PATIENCE_SECONDS)
    site.watch.look()
    assert by("candidates", lambda: total_of(cache, host)) == ["standby"]


def test_a_search_shows_every_claim_that_was_answered_before_it(site: Site) -> None:
    """Clients claim on the primary and search on the standby, which stands still now and then."""
    hosts = [make_provider(f"h{number}", inventories={"VCPU": 10**6}) for number in range(3)]
    cache, claimed = SnapshotCache(), Counter[str]()

    def used(provider: str) -> int:
        snapshot = cache.current()
        columns = snapshot.classes["VCPU"]
        return int(columns.used[columns.position(snapshot.row_of(provider))])

    def live(number: int) -> None:
        draw, client = Random(number), PlacementClient()  # noqa: S311 - no secret
        with site.here():
            for _ in range(ROUNDS):
                host, amount = str(draw.choice(hosts).uuid), draw.randint(1, 5)
                assert client.allocate(uuid(), {host: {"VCPU": amount}}).status == 204
                with counting:
                    claimed[host] += amount
                for asked in draw.sample(hosts, 2):
                    known = claimed[str(asked.uuid)]
                    assert used(str(asked.uuid)) >= known

    def disturb() -> None:
        draw = Random(0)  # noqa: S311 - no secret
        while not is_over.wait(draw.random() / 5):
            hold_replay(site.standby)
            is_over.wait(draw.random() / 5)
            let_replay(site.standby)

    counting, is_over = threading.Lock(), threading.Event()
    before = answered("candidates")
    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        disturbing = pool.submit(disturb)
        try:
            for one in [pool.submit(live, number) for number in range(CLIENTS)]:
                one.result()
        finally:
            is_over.set()
        disturbing.result()
    assert {str(host.uuid): used(str(host.uuid)) for host in hosts} == claimed
    assert answered("candidates")["standby"] > before["standby"]


def test_providers_are_the_same_after_any_moves_whoever_answered(site: Site) -> None:
    seed()
    cache, draw = SnapshotCache(), Random(7)  # noqa: S311 - no secret
    for number in range(60):
        draw.choice(MOVES)(draw.randrange(4096))
        if number % 10 == 9:
            (hold_replay if number % 20 == 9 else let_replay)(site.standby)
        assert facts(cache.current()) == facts(load_snapshot())
    assert cache.verify() == {}
