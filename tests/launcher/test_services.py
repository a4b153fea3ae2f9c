from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from config.launcher import servers, services
from config.launcher.places import Checkout, this_checkout
from config.launcher.processes import processes_in, wait_until
from config.launcher.servers import ServerSpec
from config.launcher.services import ServiceUse, start_services, use_service, wipe_profile
from config.launcher.terminal import LauncherError
from tests.launcher.conftest import processes_of

pytestmark = pytest.mark.e2e

PATIENCE_SECONDS = 30.0


@pytest.fixture
def environ() -> Mapping[str, str]:
    """The caller's environment, without services of its own."""
    given = {"DATABASE_URL", "REDIS_URL"}
    return {name: text for name, text in os.environ.items() if name not in given}


@pytest.fixture
def closed_parent(checkout: Checkout, place: Path) -> Iterator[Checkout]:
    """A checkout below a folder that only its owner may enter."""
    place.chmod(0o711)
    checkout.root.chmod(0o700)
    yield checkout
    checkout.root.chmod(0o755)


def query(address: str, statement: str) -> object:
    with psycopg.connect(address, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    return None if row is None else row[0]


def postmaster(spec: ServerSpec) -> int:
    return int((spec.data / "postmaster.pid").read_text().split()[0])


def use_until_gone(spec: ServerSpec, use: ServiceUse) -> None:
    use.leave()
    assert processes_in(spec.data) == ()


def test_services_start_on_unix_sockets_and_leave_nothing_behind(
    checkout: Checkout, environ: Mapping[str, str]
) -> None:
    with start_services(checkout, "test", environ) as running:
        address = running.variables["DATABASE_URL"]
        assert query(address, "select current_database()") == "headroom"
        assert query(address, "show listen_addresses") == ""
        assert query(address, "show fsync") == "off"
        assert int(str(query(address, "show max_connections"))) >= 200
        with redis.Redis.from_url(running.variables["REDIS_URL"]) as client:
            assert client.ping()
            assert client.config_get("port") == {"port": "0"}
        owners = {psutil.Process(pid).uids().effective for pid in data_processes(checkout)}
        assert owners
        assert 0 not in owners
        assert running.lost() is None
    assert processes_of(checkout) == []


def data_processes(checkout: Checkout) -> tuple[int, ...]:
    return tuple(
        pid for data in (checkout.local / "test").glob("*/data") for pid in processes_in(data)
    )


def test_given_addresses_start_nothing(checkout: Checkout) -> None:
    given = {"DATABASE_URL": "postgresql:///elsewhere", "REDIS_URL": "redis://elsewhere"}
    with start_services(checkout, "demo", given) as running:
        assert running.variables == given
        assert running.in_use == []
        assert processes_of(checkout) == []


def test_demo_data_survives_a_restart_and_fresh_wipes_it(
    checkout: Checkout, environ: Mapping[str, str]
) -> None:
    with start_services(checkout, "demo", environ) as running:
        address = running.variables["DATABASE_URL"]
        assert query(address, "show fsync") == "on"
        query(address, "select 1 from set_config('a.b', 'c', false)")
        with psycopg.connect(address) as connection:
            connection.execute("create table kept (n int)")
        with pytest.raises(LauncherError, match="stop it first"):
            wipe_profile(checkout, "demo")
    with start_services(checkout, "demo", environ):
        assert query(address, "select to_regclass('kept')") == "kept"
    wipe_profile(checkout, "demo")
    with start_services(checkout, "demo", environ):
        assert query(address, "select to_regclass('kept')") is None


def test_server_stops_when_its_last_user_leaves_and_not_before(
    checkout: Checkout, environ: Mapping[str, str]
) -> None:
    spec = services.redis_spec(checkout, "demo", environ)
    first, second = use_service(spec), use_service(spec)
    assert len(processes_in(spec.data)) == 1
    first.leave()
    assert servers.answers(spec)
    assert not second.is_lost()
    use_until_gone(spec, second)


def test_server_stops_when_its_only_user_is_killed(
    checkout: Checkout, environ: Mapping[str, str]
) -> None:
    spec = services.redis_spec(checkout, "demo", environ)
    program = (
        "import signal, sys\n"
        "from config.launcher.services import use_service\n"
        "from config.launcher.servers import ServerSpec\n"
        "use = use_service(ServerSpec.from_json(sys.argv[1]))\n"
        "print('up', flush=True)\n"
        "signal.pause()\n"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", program, spec.to_json()],
        stdout=subprocess.PIPE,
        cwd=this_checkout().root,
    )
    assert user.stdout is not None
    assert user.stdout.readline() == b"up\n"
    user.kill()
    user.communicate()
    assert wait_until(lambda: processes_of(checkout) == [], PATIENCE_SECONDS)


def test_parallel_test_runs_get_databases_and_brokers_of_their_own(
    checkout: Checkout, environ: Mapping[str, str]
) -> None:
    with ExitStack() as held:
        first = held.enter_context(start_services(checkout, "test", environ)).variables
        second = held.enter_context(start_services(checkout, "test", environ)).variables
        assert query(first["DATABASE_URL"], "select current_database()") == "headroom"
        assert query(second["DATABASE_URL"], "select current_database()") == "headroom_1"
        assert first["REDIS_URL"] != second["REDIS_URL"]
    with start_services(checkout, "test", environ) as again:
        assert again.variables == first


def test_killed_keeper_takes_its_server_along_and_the_next_start_recovers(
    checkout: Checkout, environ: Mapping[str, str]
) -> None:
    spec = services.postgres_spec(checkout, "test", environ)
    use = use_service(spec)
    os.kill(psutil.Process(postmaster(spec)).ppid(), signal.SIGKILL)
    assert wait_until(use.is_lost, PATIENCE_SECONDS)
    assert wait_until(lambda: processes_in(spec.data) == (), PATIENCE_SECONDS)
    use.leave()
    use_until_gone(spec, use_service(spec))


def test_killed_server_is_noticed_by_its_users_and_the_next_start_recovers(
    checkout: Checkout, environ: Mapping[str, str]
) -> None:
    spec = services.postgres_spec(checkout, "test", environ)
    use = use_service(spec)
    os.kill(postmaster(spec), signal.SIGKILL)
    assert wait_until(use.is_lost, PATIENCE_SECONDS)
    use.leave()
    use_until_gone(spec, use_service(spec))


@pytest.mark.parametrize(
    "occupant",
    [
        pytest.param(2**22 + 1, id="its process is gone"),
        pytest.param(os.getpid(), id="its number belongs to another program"),
    ],
)
def test_stale_pid_file_does_not_stop_the_start(
    checkout: Checkout, environ: Mapping[str, str], occupant: int
) -> None:
    spec = services.postgres_spec(checkout, "test", environ)
    use = use_service(spec)
    lines = (spec.data / "postmaster.pid").read_text().splitlines()
    lock = (spec.sockets / ".s.PGSQL.5432.lock").read_text().splitlines()
    use_until_gone(spec, use)
    (spec.data / "postmaster.pid").write_text("\n".join([str(occupant), *lines[1:]]) + "\n")
    (spec.sockets / ".s.PGSQL.5432.lock").write_text("\n".join([str(occupant), *lock[1:]]) + "\n")
    (spec.sockets / ".s.PGSQL.5432").touch()
    spec.keeper_socket.touch()
    use_until_gone(spec, use_service(spec))


def test_server_left_running_without_a_keeper_is_replaced(
    checkout: Checkout, environ: Mapping[str, str]
) -> None:
    spec = services.redis_spec(checkout, "test", environ)
    use_until_gone(spec, use_service(spec))
    orphan = subprocess.Popen(
        servers.command(spec), stdout=subprocess.DEVNULL, cwd=spec.data, process_group=0
    )
    assert wait_until(lambda: servers.answers(spec), PATIENCE_SECONDS)
    use = use_service(spec)
    assert orphan.wait(PATIENCE_SECONDS) == 0
    use_until_gone(spec, use)


def test_ruined_test_data_is_made_anew(checkout: Checkout, environ: Mapping[str, str]) -> None:
    spec = services.postgres_spec(checkout, "test", environ)
    use_until_gone(spec, use_service(spec))
    (spec.data / "global" / "pg_control").unlink()
    use_until_gone(spec, use_service(spec))


def test_ruined_demo_data_is_kept_and_the_reason_told(
    checkout: Checkout, environ: Mapping[str, str]
) -> None:
    spec = services.postgres_spec(checkout, "demo", environ)
    use_until_gone(spec, use_service(spec))
    (spec.data / "global" / "pg_control").unlink()
    with pytest.raises(LauncherError, match="PostgreSQL did not start"):
        use_service(spec)
    assert (spec.data / "PG_VERSION").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: services drop privileges")
def test_root_starts_services_although_their_user_cannot_enter_the_checkout(
    closed_parent: Checkout, place: Path, environ: Mapping[str, str]
) -> None:
    outside = place / "outside"
    outside.mkdir(mode=0o755)
    spec = services.postgres_spec(closed_parent, "test", environ, (outside,))
    assert spec.data.is_relative_to(outside)
    use_until_gone(spec, use_service(spec))


def test_services_start_in_a_checkout_with_a_very_long_path(
    checkout: Checkout, environ: Mapping[str, str]
) -> None:
    deep = Checkout(root=checkout.root / ("deep" * 30))
    deep.local.mkdir(parents=True, mode=0o755)
    spec = services.postgres_spec(deep, "test", environ)
    assert not spec.sockets.is_relative_to(deep.root)
    use_until_gone(spec, use_service(spec))
