"""Pages, lists and reports are read from a standby, and never worse than from the primary.

The server of these tests has a standby whose replay is held up, so that what an answer says tells
who gave it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from config.launcher.processes import wait_until
from core.changes import changed_rows, unseen_by
from tests.e2e.own_postgres import PATIENCE_SECONDS, OwnPostgres, standby_of
from tests.e2e.processes import ADMIN, WebServer, manage

pytestmark = [pytest.mark.django_db, pytest.mark.e2e]

TOKENS = [{"token": ADMIN, "name": "operator", "roles": ["cloud_resource_admin", "admin"]}]
LONG = "3600"
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
CANCEL = """
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
"""
WRITE = "UPDATE hosts_host SET reserved_disk_gib = reserved_disk_gib + 1 WHERE name = %s"
CHANGED = f"""
SELECT host.name FROM {changed_rows("hosts_host", "host", since="%s")} ORDER BY 1
"""  # noqa: S608 - constants only
SNAPSHOT = "SELECT pg_current_snapshot()::text"
READS = re.compile(
    r'^cortex_standby_reads_total\{answered_by="(\w+)",(?:pid="\d+",)?reader="(\w+)"\} (\S+)$',
    re.MULTILINE,
)


@pytest.fixture
def standby(postgres: OwnPostgres, tmp_path: Path) -> Iterator[OwnPostgres]:
    with standby_of(postgres, tmp_path) as server:
        yield server


def web_on(directory: Path, primary: OwnPostgres, standby: OwnPostgres, most_lag: str) -> WebServer:
    return WebServer(
        directory=directory,
        overrides={
            "DATABASE_URL": primary.url,
            "HEADROOM_REPLICA_URLS": standby.url,
            "HEADROOM_REPLICAS__MOST_LAG_SECONDS": most_lag,
            "HEADROOM_REPLICAS__LOOK_SECONDS": "0.1",
            "HEADROOM_SECURE_COOKIES": "false",
            "GRANIAN_WORKERS": "1",
            "HEADROOM_TOKENS": json.dumps(TOKENS),
        },
    )


def name_projects(server: OwnPostgres, name: str) -> None:
    with server.connect() as link:
        link.execute("UPDATE hosts_project SET name = %s", [name])


def hold_replay(standby: OwnPostgres) -> None:
    """Let the standby receive, and replay nothing more."""
    with standby.connect() as link:
        link.execute("SELECT pg_wal_replay_pause()")
        state = "SELECT pg_get_wal_replay_pause_state()"
        assert wait_until(lambda: link.execute(state).fetchone() == ("paused",), PATIENCE_SECONDS)


def let_replay(standby: OwnPostgres) -> None:
    with standby.connect() as link:
        link.execute("SELECT pg_wal_replay_resume()")


def project_names(web: WebServer, **headers: str) -> set[str]:
    answer = web.send("GET", "/api/v1/projects", headers=headers)
    assert answer.status == 200, answer.body
    return {row["name"] for row in answer.json()["items"]}


def reads(web: WebServer, reader: str = "pages") -> dict[str, float]:
    page = web.send("GET", "/metrics", headers={"Authorization": f"Bearer {ADMIN}"})
    found = READS.findall(page.body.decode())
    return {by: float(number) for by, one, number in found if one == reader}


def comes_from_standby(web: WebServer) -> bool:
    before = reads(web).get("standby", 0.0)
    project_names(web)
    return reads(web)["standby"] > before


def hold_with(postgres: OwnPostgres, standby: OwnPostgres, web: WebServer) -> None:
    """Have projects be called ``old`` on the standby and ``new`` on the primary."""
    name_projects(postgres, "old")
    assert wait_until(lambda: standby.has_all_of(postgres), PATIENCE_SECONDS), standby.log()
    assert wait_until(lambda: comes_from_standby(web), PATIENCE_SECONDS), web.log()
    hold_replay(standby)
    name_projects(postgres, "new")


def test_pages_and_lists_come_from_a_standby_that_is_fresh(
    postgres: OwnPostgres, standby: OwnPostgres, tmp_path: Path
) -> None:
    for most_lag, look in ((LONG, look_at_reads), ("1", look_at_what_is_left_out)):
        web = web_on(tmp_path, postgres, standby, most_lag)
        web.start()
        try:
            look(web, postgres, standby)
        finally:
            web.end()


def look_at_reads(web: WebServer, postgres: OwnPostgres, standby: OwnPostgres) -> None:
    """Bear any lag: a standby that is held up is read from, but for those who know better."""
    hold_with(postgres, standby, web)
    assert project_names(web) == {"old"}
    assert reads(web, "metrics")["standby"] > 0
    assert project_names(web, **{"Cache-Control": "no-cache"}) == {"new"}
    with postgres.connect() as link:
        row = link.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        link.execute("UPDATE hosts_project SET openstack_id = 'renamed' || openstack_id")
        (uuid,) = link.execute("SELECT openstack_id FROM hosts_project").fetchone() or ("",)
    assert row
    # What a browser wrote it sees from then on, and a row that the standby lacks is no 404.
    login = signed_in(web)
    assert "new" not in page_of_projects(web, login)
    login.cookies.set("headroom_written", str(row[0]), path="/admin/")
    assert "new" in page_of_projects(web, login)
    assert web.send("GET", f"/api/v1/projects/{uuid}").status == 200
    let_replay(standby)
    assert wait_until(lambda: project_names(web) == {"new"}, PATIENCE_SECONDS)
    cancel_on_the_way(web, postgres, standby)
    before = reads(web)
    body = {"allAZs": ["az-a"]}
    assert web.send("POST", "/commitments/v1/report-capacity", body).status in {200, 400}
    assert sum(reads(web).values()) == sum(before.values()) + 1


def cancel_on_the_way(web: WebServer, postgres: OwnPostgres, standby: OwnPostgres) -> None:
    """Cancel a question on the standby, as recovery does: the primary answers it."""
    before = reads(web)["primary_again"]
    with (
        ThreadPoolExecutor(1) as pool,
        postgres.connect() as link,
        postgres.connect() as here,
        standby.connect() as there,
    ):
        with link.transaction():
            link.execute("LOCK TABLE hosts_project IN ACCESS EXCLUSIVE MODE")
            here.execute("SELECT txid_current()")  # has the lock's record written
            held = "SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock'"
            assert wait_until(lambda: bool(there.execute(held).fetchall()), PATIENCE_SECONDS)
            answer = pool.submit(project_names, web)
            assert wait_until(lambda: bool(there.execute(WAITING).fetchall()), PATIENCE_SECONDS)
            there.execute(CANCEL)
            assert wait_until(lambda: bool(here.execute(WAITING).fetchall()), PATIENCE_SECONDS)
        assert answer.result(PATIENCE_SECONDS) == {"new"}
    assert reads(web)["primary_again"] == before + 1


def signed_in(web: WebServer) -> requests.Session:
    """Sign in to the admin; sessions are the primary's, whatever the standby knows."""
    overrides = {"DJANGO_SUPERUSER_PASSWORD": "a-long-password", **web.overrides}
    options = ("--noinput", "--username", "root", "--email", "root@example.org")
    manage(web.directory, "createsuperuser", *options, **overrides)
    session = requests.Session()
    address = f"http://127.0.0.1:{web.port}/admin/login/"
    session.get(address, timeout=30)
    form = {
        "username": "root",
        "password": "a-long-password",
        "csrfmiddlewaretoken": session.cookies["csrftoken"],
    }
    answer = session.post(address, data=form, timeout=30, allow_redirects=False)
    assert answer.status_code == 302, answer.text
    assert "headroom_written" in answer.cookies
    session.cookies.clear(domain="127.0.0.1", path="/admin/", name="headroom_written")
    return session


def page_of_projects(web: WebServer, session: requests.Session) -> str:
    address = f"http://127.0.0.1:{web.port}/admin/hosts/project/"
    answer = session.get(address, timeout=30, allow_redirects=False)
    assert answer.status_code == 200, answer.status_code
    return answer.text


def look_at_what_is_left_out(web: WebServer, postgres: OwnPostgres, standby: OwnPostgres) -> None:
    """Leave out a standby that is too late, gone, or on another timeline."""
    hold_with(postgres, standby, web)
    assert wait_until(lambda: project_names(web) == {"new"}, PATIENCE_SECONDS)
    let_replay(standby)
    assert wait_until(lambda: comes_from_standby(web), PATIENCE_SECONDS)
    standby.stop()
    name_projects(postgres, "newer")
    assert project_names(web) <= {"new", "newer"}
    assert wait_until(lambda: project_names(web) == {"newer"}, PATIENCE_SECONDS)
    standby.start()
    assert wait_until(lambda: comes_from_standby(web), PATIENCE_SECONDS)
    standby.promote()
    name_projects(standby, "of another timeline")
    assert wait_until(lambda: not comes_from_standby(web), PATIENCE_SECONDS)
    assert project_names(web) == {"newer"}


def changed(server: OwnPostgres, since: str) -> set[str]:
    with server.connect() as link:
        return {str(name) for (name,) in link.execute(CHANGED.encode(), [since]).fetchall()}


def position(server: OwnPostgres) -> str:
    with server.connect() as link:
        return str((link.execute(SNAPSHOT).fetchone() or ("",))[0])


def test_whoever_follows_changes_on_a_standby_reads_again_from_its_xmin(
    postgres: OwnPostgres, standby: OwnPostgres
) -> None:
    """A transaction that began early stays open across later commits, and then commits.

    A standby knows of it, and does not name it among those that run: by its snapshot alone the
    commit would count as seen. From the snapshot's xmin on nothing is missed.
    """

    def replay() -> None:
        assert wait_until(lambda: standby.has_all_of(postgres), PATIENCE_SECONDS), standby.log()

    with postgres.connect() as early, postgres.connect() as late:
        names = [name for (name,) in late.execute("SELECT name FROM hosts_host LIMIT 3").fetchall()]
        first, second, third = map(str, names)
        early.execute("BEGIN")
        early.execute(WRITE, [first])
        late.execute(WRITE, [second])
        replay()
        looks = [position(standby)]
        assert changed(standby, looks[0]) == set()
        late.execute(WRITE, [third])
        replay()
        assert third in changed(standby, looks[0])
        looks.append(position(standby))
        early.execute("COMMIT")
        replay()
    for look in looks:
        parts = unseen_by(look)
        assert parts["running"] == [], "a standby names none"
        assert first not in changed(standby, look), "so the early one counts as seen"
        assert parts["xmin"] < parts["xmax"]
        assert first in changed(standby, f"{parts['xmin']}:{parts['xmin']}:")
