from __future__ import annotations

import stat
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management.base import CommandError

from commitments.management.commands import set_up_demo
from tests import factories

pytestmark = pytest.mark.django_db


class Calls:
    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []

    def __call__(self, name: str, *args: object, **options: object) -> None:
        options.pop("stdout", None)
        self.made.append((name, args, options))

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.made]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    recorded = Calls()
    monkeypatch.setattr(set_up_demo, "call_command", recorded)
    monkeypatch.setattr(set_up_demo, "get_commands", lambda: {"refresh_capacity": "capacity"})
    return recorded


def run(folder: Path, **options: object) -> list[str]:
    out = StringIO()
    command = set_up_demo.Command(stdout=out)
    defaults: dict[str, object] = {
        "hosts": 5, "imports": [], "fresh_admin": False, "webhook_url": "",
    }  # fmt: skip
    command.handle(**{**defaults, "password_file": folder / "kept" / "password", **options})
    return out.getvalue().splitlines()


def test_an_empty_database_gets_a_generated_region(calls: Calls, tmp_path: Path) -> None:
    run(tmp_path)

    assert calls.names == ["generate_region", "import_region", "refresh_capacity"]
    generated = calls.made[0][2]
    assert (generated["profile"], generated["hosts"], generated["seed"]) == ("demo", 5, 7)
    assert calls.made[1][1] == (generated["output"], "--with-ended")


def test_the_receiver_is_told_of_what_happens_after_the_region_was_loaded(
    calls: Calls, tmp_path: Path
) -> None:
    run(tmp_path, webhook_url="http://127.0.0.1:20001/")

    assert calls.made[-1] == ("set_up_demo_webhooks", (), {"url": "http://127.0.0.1:20001/"})


def test_steps_are_told_on_the_terminal_that_shows_their_bars(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    lines = run(tmp_path)

    assert "  generating a region of 5 hosts\n" in terminal.getvalue()
    assert "generating a region of 5 hosts" in lines
    assert not [line for line in lines if line.startswith(set_up_demo.PROGRESS_MARK)]


def test_a_loaded_region_is_kept(calls: Calls, tmp_path: Path) -> None:
    factories.make_host()

    lines = run(tmp_path)

    assert calls.names == []
    assert "keeping the region of 1 hosts" in lines[0]


def test_given_files_are_imported_also_over_a_loaded_region(calls: Calls, tmp_path: Path) -> None:
    factories.make_host()

    run(tmp_path, imports=["a.json", "b.json"])

    assert calls.names == ["import_region", "refresh_capacity"]
    assert calls.made[0][1] == ("a.json", "b.json", "--with-ended")


def test_the_login_is_the_last_line_and_stays_the_same(calls: Calls, tmp_path: Path) -> None:
    first, second = run(tmp_path)[-1], run(tmp_path)[-1]

    name, _, password = first.removeprefix("admin login: ").partition(" / ")
    user = User.objects.get()
    assert first == second
    assert (name, user.username, user.is_superuser) == ("admin", "admin", True)
    assert user.check_password(password)


def test_only_the_owner_can_read_the_password(calls: Calls, tmp_path: Path) -> None:
    run(tmp_path)

    mode = (tmp_path / "kept" / "password").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_a_fresh_admin_gets_another_password(calls: Calls, tmp_path: Path) -> None:
    first = run(tmp_path)[-1]

    second = run(tmp_path, fresh_admin=True)[-1]

    assert first != second
    assert User.objects.get().check_password(second.rpartition(" / ")[2])


def test_a_password_set_by_a_person_is_kept(calls: Calls, tmp_path: Path) -> None:
    User.objects.create_superuser("admin", password="chosen by a person")

    line = run(tmp_path)[-1]

    assert "--fresh-admin" in line
    assert User.objects.get().check_password("chosen by a person")


def test_a_region_needs_a_host(calls: Calls, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--hosts"):
        run(tmp_path, hosts=0)
