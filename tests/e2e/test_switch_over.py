"""The database switches over to a standby under load: nothing that was answered is lost.

Web processes, workers and beat go on by themselves, whether the primary was stopped or killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from config.celery_app import app
from config.launcher.processes import wait_until
from config.queues import QUEUES
from tests.e2e.processes import PATIENCE_SECONDS, Process, WebServer, Worker
from tests.e2e.switch_load import (
    HOSTS,
    TOKENS,
    SwitchLoad,
    assert_ledger_holds_on,
    shown_used,
    used,
)
from tests.e2e.switched import Servers, switched

pytestmark = [pytest.mark.django_db, pytest.mark.e2e]

#: More than enough to meet each of two web processes.
LOOKS = 16
BEATEN = "SELECT 1 FROM journal_heartbeat WHERE name = 'beat' AND beaten_at > %s::timestamptz"
COMPUTED = "SELECT 1 FROM capacity_capacitycomputation WHERE computed_at > %s::timestamptz"
NOW = "SELECT clock_timestamp()::text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An installation on a primary and its standby."""

    servers: Servers
    web: WebServer
    worker: Worker
    beat: Process


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, migrated: Path) -> Iterator[Site]:
    with ExitStack() as held:
        servers = held.enter_context(switched(tmp_path, migrated, is_pooled=request.param))
        app.control.purge()
        overrides = {
            "DATABASE_URL": servers.url,
            "HEADROOM_TOKENS": TOKENS,
            "GRANIAN_WORKERS": "2",
            "HEADROOM_CAPACITY__MIN_RECONCILE_INTERVAL_SECONDS": "0",
        }
        web = WebServer(directory=tmp_path, overrides=dict(overrides))
        worker = Worker(
            directory=tmp_path, queue=",".join(QUEUES), processes=2, overrides=dict(overrides)
        )
        beat = Process(role="beat", directory=tmp_path, overrides=dict(overrides))
        held.callback(app.control.purge)
        for process, end in ((web, web.end), (worker, worker.forget), (beat, beat.end)):
            held.callback(end)
            process.start()
        yield Site(servers=servers, web=web, worker=worker, beat=beat)


def stop(servers: Servers) -> None:
    """End the primary as planned: its standby gets all that it wrote."""
    servers.primary.stop()


def kill(servers: Servers) -> None:
    """Take the primary away; before, it answered no commit that the standby did not have."""
    servers.primary.kill()


@pytest.mark.parametrize(
    ("end", "site"),
    [(stop, True), (kill, False)],
    ids=["planned, behind a pooler", "killed, all servers named"],
    indirect=["site"],
)
def test_switch_over_under_load_loses_nothing_and_all_processes_follow(
    site: Site, end: Callable[[Servers], None]
) -> None:
    servers = site.servers
    if end is kill:
        servers.primary.commit_on_standbys()
    with SwitchLoad(site.web) as load:
        load.go_on()
        end(servers)
        load.meet_outage()
        servers.promote()
        load.go_on()
    load.assert_only_told_to_come_back()
    load.assert_all_kept_by(servers.standby)
    assert_all_follow(site)
    assert_ledger_holds_on(site.web.directory, servers.standby)


def assert_all_follow(site: Site) -> None:
    """Candidates of every web process show all claims; beat sends and a worker works."""
    standby = site.servers.standby
    claimed = used(standby)

    def show_all() -> bool:
        return all(shown_used(site.web) == claimed for _ in range(LOOKS))

    assert wait_until(show_all, PATIENCE_SECONDS), (claimed, shown_used(site.web))
    with standby.connect() as link:
        (now,) = link.execute(NOW).fetchone() or ("",)

        def has(query: str) -> bool:
            return bool(link.execute(query.encode(), [now]).fetchall())

        link.execute("UPDATE hosts_host SET reserved_disk_gib = 7 WHERE name = %s", [HOSTS[0]])
        app.send_task("capacity.refresh_group_capacity")
        assert wait_until(lambda: has(BEATEN), PATIENCE_SECONDS), site.beat.log()
        assert wait_until(lambda: has(COMPUTED), PATIENCE_SECONDS), site.worker.log()
    for process in (site.web, site.worker, site.beat):
        assert process.child is not None
        assert process.child.process.poll() is None, process.log()
