"""The database switches over to a standby under load: nothing that was answered is lost.

Web processes, workers and beat go on by themselves, whether the primary was stopped or killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from config.celery_app import app
from config.launcher.processes import wait_until
from config.queues import QUEUES
from tests.e2e.own_pooler import OwnPooler, own_pooler
from tests.e2e.own_postgres import OwnPostgres, either, own_postgres, standby_of
from tests.e2e.processes import PATIENCE_SECONDS, Process, WebServer, Worker
from tests.e2e.switch_load import (
    HOSTS,
    TOKENS,
    SwitchLoad,
    assert_ledger_holds_on,
    seed,
    shown_used,
    used,
)

pytestmark = [pytest.mark.django_db, pytest.mark.e2e]

#: A pooler gives a session to each transaction; all that run at once have one.
SESSIONS = 20
#: More than enough to meet each of two web processes.
LOOKS = 16
BEATEN = "SELECT 1 FROM journal_heartbeat WHERE name = 'beat' AND beaten_at > %s::timestamptz"
COMPUTED = "SELECT 1 FROM capacity_capacitycomputation WHERE computed_at > %s::timestamptz"
NOW = "SELECT clock_timestamp()::text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An installation on a primary and its standby.

    Attributes:
        pooler: None where the processes know both servers.
    """

    primary: OwnPostgres
    standby: OwnPostgres
    web: WebServer
    worker: Worker
    beat: Process
    pooler: OwnPooler | None


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, migrated: Path) -> Iterator[Site]:
    with ExitStack() as held:
        primary = held.enter_context(own_postgres(tmp_path, os.environ, migrated, is_durable=True))
        standby = held.enter_context(standby_of(primary, tmp_path))
        seed(tmp_path, primary)
        pooler = (
            held.enter_context(own_pooler(tmp_path / "pgbouncer.log", primary, sessions=SESSIONS))
            if request.param
            else None
        )
        url = pooler.url if pooler else either(primary, standby)

        app.control.purge()
        overrides = {
            "DATABASE_URL": url,
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
        yield Site(
            primary=primary,
            standby=standby,
            web=web,
            worker=worker,
            beat=beat,
            pooler=pooler,
        )


def stop(site: Site) -> None:
    """End the primary as planned: its standby gets all that it wrote."""
    site.primary.stop()


def kill(site: Site) -> None:
    """Take the primary away; before, it answered no commit that the standby did not have."""
    site.primary.kill()


@pytest.mark.parametrize(
    ("end", "site"),
    [(stop, True), (kill, False)],
    ids=["planned, behind a pooler", "killed, all servers named"],
    indirect=["site"],
)
def test_switch_over_under_load_loses_nothing_and_all_processes_follow(
    site: Site, end: Callable[[Site], None]
) -> None:
    if end is kill:
        site.primary.commit_on_standbys()
    with SwitchLoad(site.web) as load:
        load.go_on()
        end(site)
        load.meet_outage()
        site.standby.promote()
        if site.pooler is not None:
            site.pooler.lead_to(site.standby)
        load.go_on()
    load.assert_only_told_to_come_back()
    load.assert_all_kept_by(site.standby)
    assert_all_follow(site)
    assert_ledger_holds_on(site.web.directory, site.standby)


def assert_all_follow(site: Site) -> None:
    """Candidates of every web process show all claims; beat sends and a worker works."""
    claimed = used(site.standby)

    def show_all() -> bool:
        return all(shown_used(site.web) == claimed for _ in range(LOOKS))

    assert wait_until(show_all, PATIENCE_SECONDS), (claimed, shown_used(site.web))
    with site.standby.connect() as link:
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
