from __future__ import annotations

import os
from pathlib import Path

import pytest

from config.launcher import places
from config.launcher.places import Checkout
from config.launcher.processes import Account
from config.launcher.terminal import LauncherError

STRANGER = Account(name="stranger", uid=54321, gid=54321)
pytestmark = pytest.mark.usefixtures("place")
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: services drop privileges")


def test_short_socket_directory_is_used_as_it_is(place: Path, tmp_path: Path) -> None:
    wanted = place / "run"
    chosen = places.socket_directory(wanted, None, tmp_path / "memory.sockets")
    assert chosen == wanted
    assert wanted.stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "memory.sockets").exists()


def test_socket_directory_with_the_longest_allowed_path_is_kept(
    place: Path, tmp_path: Path
) -> None:
    parent = place
    room = places.LONGEST_SOCKET_PATH_BYTES - len(places.LONGEST_SOCKET_NAME) - len(str(parent)) - 1
    memory = tmp_path / "memory.sockets"
    fits, too_long = parent / ("x" * room), parent / ("x" * (room + 1))
    assert places.socket_directory(fits, None, memory) == fits
    assert places.socket_directory(too_long, None, memory) != too_long


def test_long_socket_directory_is_replaced_by_one_private_directory_for_good(
    tmp_path: Path,
) -> None:
    wanted = tmp_path / ("long" * 30)
    memory = tmp_path / "memory.sockets"
    first = places.socket_directory(wanted, None, memory)
    assert len(str(first / ".s.PGSQL.5432")) <= 107
    assert first.stat().st_mode & 0o777 == 0o700
    assert places.socket_directory(wanted, None, memory) == first


def test_remembered_socket_directory_that_others_can_enter_is_not_reused(tmp_path: Path) -> None:
    memory = tmp_path / "memory.sockets"
    first = places.socket_directory(tmp_path / ("long" * 30), None, memory)
    first.chmod(0o777)
    second = places.socket_directory(tmp_path / ("long" * 30), None, memory)
    assert second != first
    assert second.stat().st_mode & 0o777 == 0o700


def test_remembered_socket_directory_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    memory = tmp_path / "memory.sockets"
    first = places.socket_directory(tmp_path / ("long" * 30), None, memory)
    first.rmdir()
    assert places.socket_directory(tmp_path / ("long" * 30), None, memory).is_dir()


def test_service_data_stays_in_the_checkout_when_its_user_can_enter(checkout: Checkout) -> None:
    assert places.service_home(checkout, None) == checkout.local
    assert places.service_home(checkout, STRANGER) == checkout.local


def test_service_data_goes_outside_when_a_parent_is_closed_to_its_user(
    checkout: Checkout, place: Path
) -> None:
    checkout.root.chmod(0o700)
    outside = place / "outside"
    outside.mkdir(mode=0o755)
    home = places.service_home(checkout, STRANGER, (outside,))
    assert home.parent == outside
    assert places.can_enter(home, STRANGER)
    assert places.service_home(checkout, STRANGER, (outside,)) == home
    assert (checkout.local / "services-directory").read_text().strip() == str(home)


def test_outside_directory_that_somebody_else_can_write_is_not_trusted(
    checkout: Checkout, place: Path
) -> None:
    checkout.root.chmod(0o700)
    outside = place / "outside"
    outside.mkdir(mode=0o755)
    places.service_home(checkout, STRANGER, (outside,)).chmod(0o777)
    with pytest.raises(LauncherError, match="cannot enter"):
        places.service_home(checkout, STRANGER, (outside,))


def test_file_lock_is_held_once(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    with places.locked_or_none(lock) as first, places.locked_or_none(lock) as second:
        assert (first, second) == (True, False)
    with places.locked_or_none(lock) as again:
        assert again


@only_root
def test_root_runs_services_as_somebody_else() -> None:
    account = places.service_account()
    assert account is not None
    assert account.uid != 0


@pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user")
def test_ordinary_user_runs_services_as_themselves() -> None:
    assert places.service_account() is None
