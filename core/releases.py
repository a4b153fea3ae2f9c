"""Releases: which one this is, and the newest whose ``migrate`` the database has seen.

A release runs beside its predecessor and may be taken back without touching the database (ADR
0031): what a newer one brought is left as it is by ``migrate``, readiness and start of an older.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

Release = tuple[int, ...]
PROJECT = Path(__file__).parents[1] / "pyproject.toml"
#: Under this name releases stand among the applied migrations, where every version looks.
APP = "headroom"


def parsed(text: str) -> Release:
    """Return a version as numbers: ``0.2.0`` is (0, 2, 0), and the build ``0.2.0.57`` newer.

    Raises:
        ValueError: it has something else in it.
    """
    return tuple(int(part) for part in text.split("."))


@cache
def own_version() -> str:
    """Return the version of this code."""
    return str(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"])


def newest_version() -> str:
    """Return the newest version that has migrated the database; empty before there was one."""
    applied = MigrationRecorder(connection).applied_migrations()
    versions = [name for app, name in applied if app == APP]
    return max(versions, key=parsed, default="")


def newer_version() -> str:
    """Return the newest version that has migrated the database if it is newer than ours."""
    newest = newest_version()
    return newest if newest and parsed(newest) > parsed(own_version()) else ""


def record_version() -> None:
    """Note that this version has migrated the database."""
    if newest_version() != own_version():
        MigrationRecorder(connection).record_applied(APP, own_version())
