"""``DATABASE_URL`` and ``REDIS_URL``, or the files they are in: they hold passwords."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from config.launcher.terminal import LauncherError

NAMES = ("DATABASE_URL", "REDIS_URL")


def address(environ: Mapping[str, str], name: str) -> str:
    """Return the address that a variable holds, or the file that ``NAME_FILE`` names; else nothing.

    Raises:
        LauncherError: the file cannot be read.
    """
    place = environ.get(f"{name}_FILE", "")
    if environ.get(name) or not place:
        return environ.get(name, "")
    try:
        return Path(place).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise LauncherError(f"{name}_FILE: cannot read {place}: {error.strerror}") from None


def missing_addresses(environ: Mapping[str, str]) -> list[str]:
    """Return the names of those that are not given."""
    return [name for name in NAMES if not address(environ, name)]
