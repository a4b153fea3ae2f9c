"""Addresses with passwords may come from files, as other secrets may."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.launcher.addresses import address, missing_addresses
from config.launcher.places import this_checkout
from config.launcher.terminal import LauncherError


def test_a_variable_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("postgresql://from-file\n")
    given = {"DATABASE_URL_FILE": str(file)}
    assert address(given, "DATABASE_URL") == "postgresql://from-file"
    assert address({**given, "DATABASE_URL": "other"}, "DATABASE_URL") == "other"
    assert missing_addresses(given) == ["REDIS_URL"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=f"REDIS_URL_FILE: cannot read {tmp_path}/no"):
        address({"REDIS_URL_FILE": str(tmp_path / "no")}, "REDIS_URL")


def test_the_settings_read_the_files(tmp_path: Path) -> None:
    for name, text in (("database", "postgresql://u:p@db.example/name"), ("redis", "redis://r/3")):
        (tmp_path / name).write_text(text)
    shown = (
        "from django.conf import settings as s; d = s.DATABASES['default'];"
        " print(d['HOST'], d['PASSWORD'], s.REDIS_URL)"
    )
    others = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith("HEADROOM_") and name not in {"DATABASE_URL", "REDIS_URL"}
    }
    done = subprocess.run(
        [sys.executable, "-c", shown],
        cwd=this_checkout().root,
        env={
            **others,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "HEADROOM_SECRET_KEY": "k" * 32,
            "DATABASE_URL_FILE": str(tmp_path / "database"),
            "REDIS_URL_FILE": str(tmp_path / "redis"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["db.example", "p", "redis://r/3"]
