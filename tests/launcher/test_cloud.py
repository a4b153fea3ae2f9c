from __future__ import annotations

import os
import socket
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from config.launcher import cloud
from config.launcher.cloud import ensure_programs, parse_cloud, refuse_taken_ports, run_cloud
from config.launcher.conformance import database_beside, fresh_database
from config.launcher.places import Checkout, locked_or_none
from config.launcher.terminal import LauncherError


def test_without_options_twelve_hosts_run_fifty_two_servers_once() -> None:
    options = parse_cloud([])
    assert (options.hosts, options.servers, options.is_kept) == (12, 52, False)
    assert not options.switches_over
    assert parse_cloud(["--switch-over"]).switches_over


@pytest.mark.parametrize(
    "arguments", [["--hosts", "3"], ["--servers", "5"], ["--port", "65000"], ["up"]]
)
def test_what_cannot_work_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_cloud(arguments)


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LauncherError, match=f"port {port} is taken"):
            refuse_taken_ports(port - 4, {4})


def test_a_machine_without_the_servers_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cloud, "PROGRAMS", {"mariadb-server": tmp_path / "absent"})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LauncherError, match="mariadb-server"):
        ensure_programs()


def test_each_cloud_begins_with_an_empty_database(checkout: Checkout) -> None:
    given, ours = os.environ["DATABASE_URL"], f"headroom_cloud_{os.getpid()}"
    address = fresh_database(checkout, given, ours)
    assert address != given
    try:
        with psycopg.connect(address) as connection:
            connection.execute("create table left_over ()")
        assert fresh_database(checkout, given, ours) == address
        with psycopg.connect(address) as connection:
            assert connection.execute("select to_regclass('left_over')").fetchone() == (None,)
    finally:
        name, _ = database_beside(given, ours)
        with psycopg.connect(given, dbname="postgres", autocommit=True) as connection:
            connection.execute(sql.SQL("drop database {}").format(sql.Identifier(name)))


def test_a_second_cloud_in_the_same_checkout_is_refused(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "listen_for_stop", lambda: None)
    with (
        locked_or_none(checkout.local / "cloud.lock"),
        pytest.raises(LauncherError, match="running in this checkout already"),
    ):
        run_cloud(checkout, [], {})


def test_wiping_deletes_all_of_the_cloud(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "listen_for_stop", lambda: None)
    kept = checkout.local / "cloud" / "state" / "file"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert run_cloud(checkout, ["--wipe"], {}) == 0
    assert not (checkout.local / "cloud").exists()
