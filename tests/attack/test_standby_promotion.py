"""A standby that was behind becomes the primary; a backup takes the primary's place.

Processes have seen what the new server never had, and it gives the same keys and transaction
numbers to other rows. Whoever goes on from where he was answers from both pasts.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from config.launcher import servers
from config.launcher.processes import wait_until
from tests.api.scheduler_client import READ_ONLY, recorded_request
from tests.e2e.own_postgres import (
    DATABASE,
    PATIENCE_SECONDS,
    OwnPostgres,
    either,
    standby_of,
)
from tests.e2e.processes import ADMIN, WebServer

pytestmark = [pytest.mark.django_db, pytest.mark.e2e]

LATEST = {"OpenStack-API-Version": "placement 1.39"}
TOKENS = [{"token": ADMIN, "name": "operator", "roles": ["cloud_resource_admin", "admin"]}]
RELOADS = "cortex_database_history_reloads_total"
KEPT, LOST, NEW = (str(UUID(int=number)) for number in (1, 2, 3))


@pytest.fixture
def standby(postgres: OwnPostgres, tmp_path: Path) -> Iterator[OwnPostgres]:
    """A standby of ``postgres``."""
    with standby_of(postgres, tmp_path) as server:
        yield server


def web_on(directory: Path, url: str) -> WebServer:
    """Start a web server of one process, so that every answer comes from the same caches."""
    server = WebServer(
        directory=directory,
        overrides={
            "DATABASE_URL": url,
            "GRANIAN_WORKERS": "1",
            "HEADROOM_TOKENS": json.dumps(TOKENS),
        },
    )
    server.start()
    return server


@pytest.fixture
def web(postgres: OwnPostgres, standby: OwnPostgres, tmp_path: Path) -> Iterator[WebServer]:
    server = web_on(tmp_path, either(postgres, standby))
    yield server
    server.end()


def placement(web: WebServer, method: str, path: str, body: Any = None) -> Any:
    answer = web.send(method, f"/placement{path}", body, headers=LATEST)
    assert answer.status < 300, (answer.status, answer.body)
    return answer.json() if answer.body else None


def answers(web: WebServer) -> bool:
    return web.send("GET", "/placement/resource_classes", headers=LATEST).status == 200


def add_provider(web: WebServer, uuid: str) -> None:
    placement(web, "POST", "/resource_providers", {"name": uuid, "uuid": uuid})
    inventory = {"resource_provider_generation": 0, "inventories": {"CUSTOM_X": {"total": 1}}}
    placement(web, "PUT", f"/resource_providers/{uuid}/inventories", inventory)


def candidates(web: WebServer) -> set[str]:
    found = placement(web, "GET", "/allocation_candidates?resources=CUSTOM_X:1")
    return set(found["provider_summaries"])


def chosen_hosts(web: WebServer, hosts: tuple[str, ...]) -> set[str]:
    """Ask the scheduler which of some hosts would do."""
    body = recorded_request()
    body["hosts"] = [{"host": name, "hypervisor_hostname": name} for name in hosts]
    body["weights"] = dict.fromkeys(hosts, 0.0)
    answer = web.send("POST", "/scheduler/nova/external", {**body, **READ_ONLY})
    assert answer.status == 200, answer.body
    return set(answer.json()["hosts"])


def set_in_service(server: OwnPostgres, host: str, *, is_in_service: bool) -> None:
    with server.connect() as link:
        status = "enabled" if is_in_service else "disabled"
        link.execute("UPDATE hosts_host SET status = %s WHERE name = %s", [status, host])


def reuse_keys_of(server: OwnPostgres, provider_key: int) -> None:
    """Let the next provider get a key that another history gave to another one."""
    with server.connect() as link:
        link.execute(
            "SELECT setval(pg_get_serial_sequence('placement_provider', 'id'), %s, false)",
            [provider_key],
        )


def key_of(server: OwnPostgres, uuid: str) -> int:
    with server.connect() as link:
        row = link.execute("SELECT id FROM placement_provider WHERE uuid = %s", [uuid]).fetchone()
    assert row is not None
    return int(str(row[0]))


def test_standby_promotion_behind_the_primary(
    web: WebServer, postgres: OwnPostgres, standby: OwnPostgres
) -> None:
    usable = sorted(chosen_hosts(web, every_host(postgres)))
    first, second = usable[:2]
    placement(web, "PUT", "/resource_classes/CUSTOM_X")
    add_provider(web, KEPT)
    assert candidates(web) == {KEPT}
    assert wait_until(lambda: standby.has_all_of(postgres), PATIENCE_SECONDS), standby.log()

    standby.lose_primary()
    add_provider(web, LOST)
    set_in_service(postgres, first, is_in_service=False)
    assert candidates(web) == {KEPT, LOST}
    assert chosen_hosts(web, tuple(usable)) == set(usable) - {first}
    lost_key = key_of(postgres, LOST)
    postgres.stop()
    standby.promote()
    reuse_keys_of(standby, lost_key)
    set_in_service(standby, second, is_in_service=False)
    assert wait_until(lambda: answers(web), PATIENCE_SECONDS)

    assert candidates(web) == {KEPT}
    assert chosen_hosts(web, tuple(usable)) == set(usable) - {second}
    add_provider(web, NEW)
    assert key_of(standby, NEW) == lost_key
    assert candidates(web) == {KEPT, NEW}
    told = web.send("GET", "/metrics").body.decode()
    for reader in ("placement", "host_table"):
        assert f'{RELOADS}{{reader="{reader}",reason="other_timeline"}} 1.0' in told


def every_host(server: OwnPostgres) -> tuple[str, ...]:
    with server.connect() as link:
        rows = link.execute("SELECT name FROM hosts_host ORDER BY name").fetchall()
    return tuple(str(name) for (name,) in rows)


def pass_by(server: OwnPostgres, position: str, transaction: int) -> None:
    """Let a server write WAL and begin transactions beyond those that were seen elsewhere."""
    with server.connect() as link:
        emit = "SELECT pg_logical_emit_message(false, 'attack', repeat('x', 100000))"
        while link.execute("SELECT pg_current_wal_lsn() <= %s::pg_lsn", [position]).fetchone() == (
            True,
        ):
            link.execute(emit)
        begin = "SELECT pg_current_xact_id()::text::bigint <= %s"
        while link.execute(begin, [transaction]).fetchone() == (True,):
            pass


def test_backup_in_the_place_of_the_primary_on_the_same_timeline(
    postgres: OwnPostgres, tmp_path: Path
) -> None:
    web = web_on(tmp_path, postgres.url)
    parent = postgres.spec.home.parent
    with tempfile.TemporaryDirectory(prefix="own-pg-", dir=parent) as home:
        placement(web, "PUT", "/resource_classes/CUSTOM_X")
        add_provider(web, KEPT)
        restored = postgres.copy_to(Path(home))
        restored.spec = replace(restored.spec, sockets=postgres.spec.sockets)
        add_provider(web, LOST)
        assert candidates(web) == {KEPT, LOST}
        lost_key = key_of(postgres, LOST)
        with postgres.connect() as link:
            seen = link.execute(
                "SELECT pg_current_wal_lsn()::text, pg_current_xact_id()::text::bigint"
            ).fetchone()
        assert seen is not None
        postgres.stop()
        restored.start()
        try:
            reuse_keys_of(restored, lost_key)
            pass_by(restored, str(seen[0]), int(str(seen[1])))
            assert wait_until(lambda: answers(web), PATIENCE_SECONDS)
            assert candidates(web) == {KEPT}
            add_provider(web, NEW)
            assert key_of(restored, NEW) == lost_key
            assert candidates(web) == {KEPT, NEW}
        finally:
            web.end()
            restored.stop()


def test_nothing_is_told_from_a_standby(
    postgres: OwnPostgres, standby: OwnPostgres, tmp_path: Path
) -> None:
    """As when an address that is moved at a failover leads to a standby for a while."""
    web = web_on(tmp_path, either(postgres, standby, attributes="any"))
    try:
        placement(web, "PUT", "/resource_classes/CUSTOM_X")
        add_provider(web, KEPT)
        assert candidates(web) == {KEPT}
        assert wait_until(lambda: standby.has_all_of(postgres), PATIENCE_SECONDS), standby.log()
        postgres.stop()
        for path in ("allocation_candidates?resources=CUSTOM_X:1", "resource_providers"):
            answer = web.send("GET", f"/placement/{path}", headers=LATEST)
            assert (answer.status, "retry-after" in answer.headers) == (503, True)
        standby.promote()
        assert wait_until(lambda: answers(web), PATIENCE_SECONDS)
        assert candidates(web) == {KEPT}
    finally:
        web.end()


def sessions_on(server: OwnPostgres) -> list[int]:
    """Return the sessions that others have on a server."""
    with psycopg.connect(servers.url(server.spec, "postgres")) as link:
        rows = link.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = %s ORDER BY pid", [DATABASE]
        ).fetchall()
    return [int(pid) for (pid,) in rows]


def ask_at_once(web: WebServer, count: int) -> list[set[str]]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: candidates(web), range(count)))


def test_sessions_on_a_former_primary_that_nobody_fenced_are_closed(
    web: WebServer, postgres: OwnPostgres, standby: OwnPostgres
) -> None:
    placement(web, "PUT", "/resource_classes/CUSTOM_X")
    add_provider(web, KEPT)
    assert wait_until(lambda: standby.has_all_of(postgres), PATIENCE_SECONDS), standby.log()
    standby.lose_primary()
    add_provider(web, LOST)

    def has_several() -> bool:
        return bool(ask_at_once(web, 8)) and len(sessions_on(postgres)) > 1

    assert wait_until(has_several, PATIENCE_SECONDS)
    with psycopg.connect(servers.url(postgres.spec, "postgres"), autocommit=True) as operator:
        operator.execute(f"ALTER DATABASE {DATABASE} ALLOW_CONNECTIONS false".encode())
        standby.promote()
        operator.execute("SELECT pg_terminate_backend(%s)", [sessions_on(postgres)[0]])

    def has_left() -> bool:
        with contextlib.suppress(AssertionError):  # 503 for a session that is closed just now
            ask_at_once(web, 8)
        return not sessions_on(postgres)

    assert wait_until(has_left, PATIENCE_SECONDS), web.log()
    assert ask_at_once(web, 8) == [{KEPT}] * 8
