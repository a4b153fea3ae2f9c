"""PostgreSQL and Redis for demo and tests: those given, else our own under ``.local/``.

``DATABASE_URL`` and ``REDIS_URL`` win. What is not given is found (:mod:`.binaries`) and run by a
keeper (:mod:`.keeper`) that several ``./run`` of one checkout share. The profiles ``demo``
(durable) and ``test`` (fast, disposable) have servers of their own.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from config.launcher import servers
from config.launcher.binaries import find_postgres, find_redis, program_tree, usable_by
from config.launcher.keeper import LOCK_TAKEN
from config.launcher.places import (
    OUTSIDE,
    Checkout,
    locked_or_none,
    service_account,
    service_home,
    socket_directory,
)
from config.launcher.processes import is_alive, stop_processes_in, wait_until
from config.launcher.servers import ServerSpec
from config.launcher.terminal import LauncherError, last_lines

Profile = Literal["demo", "test"]
_START_SECONDS = 120.0
_STOP_SECONDS = 40.0
_RETRY_SECONDS = 0.05
_SLOTS = 16
_SPAWNED: list[subprocess.Popen[bytes]] = []  # keepers we are the parent of, to be reaped
_LABELS = {"postgres": "PostgreSQL", "redis": "Redis"}


def postgres_spec(
    checkout: Checkout,
    profile: Profile,
    environ: Mapping[str, str],
    outside: Sequence[Path] = OUTSIDE,
) -> ServerSpec:
    """Describe the PostgreSQL server of a profile."""
    found = find_postgres(checkout, environ)
    name = f"pg-{found.major}"
    program = found.programs / "postgres"
    return _spec(checkout, profile, "postgres", name=name, program=program, outside=outside)


def redis_spec(
    checkout: Checkout,
    profile: Profile,
    environ: Mapping[str, str],
    outside: Sequence[Path] = OUTSIDE,
    *,
    slot: int = 0,
) -> ServerSpec:
    """Describe the Redis server of a profile; parallel test runs use a slot of their own."""
    name = f"redis-{slot}" if slot else "redis"
    program = find_redis(checkout, environ)
    return _spec(checkout, profile, "redis", name=name, program=program, outside=outside)


def _spec(
    checkout: Checkout,
    profile: Profile,
    kind: Literal["postgres", "redis"],
    *,
    name: str,
    program: Path,
    outside: Sequence[Path],
) -> ServerSpec:
    account = service_account()
    base = service_home(checkout, account, outside)
    home = base / profile / name
    home.mkdir(parents=True, exist_ok=True)
    if account is not None:
        for directory in (home.parent, home):
            directory.chmod(0o711)
    tree = program_tree(checkout, program)
    remembered = checkout.local / profile / f"{name}.sockets"
    remembered.parent.mkdir(exist_ok=True)
    return ServerSpec(
        kind=kind,
        program=usable_by(program, tree, account, base),
        home=home,
        sockets=socket_directory(home / "run", account, remembered),
        log=checkout.logs / f"{profile}-{name}.log",
        lock=checkout.local / profile / f"{name}.lock",
        account=account,
        durable=profile == "demo",
    )


class ServiceUse:
    """A running server we are a registered user of; leaving stops it if we are the last."""

    def __init__(self, spec: ServerSpec, connection: socket.socket) -> None:
        self._spec = spec
        self._connection = connection

    @property
    def label(self) -> str:
        """What people call the server."""
        return _LABELS[self._spec.kind]

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._spec.log

    def is_lost(self) -> bool:
        """Return whether the server has gone although we still use it."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            return bool(selector.select(0)) and not self._connection.recv(1)

    def leave(self) -> None:
        """Stop using the server; returns when it has stopped, or at once if others use it."""
        keeper = keeper_pid(self._connection)
        with suppress(OSError):  # the keeper may be gone already
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(_STOP_SECONDS)
            while self._connection.recv(64):
                pass
        self._connection.close()
        if not servers.answers(self._spec):
            wait_until(lambda: not is_alive(keeper), 2.0)
        _SPAWNED[:] = [process for process in _SPAWNED if process.poll() is None]


def keeper_pid(connection: socket.socket) -> int:
    """Return the process at the other end of a keeper's socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], sys.byteorder)


def use_service(spec: ServerSpec, python: str = sys.executable) -> ServiceUse:
    """Register as a user of the server, starting its keeper when there is none.

    Raises:
        LauncherError: it does not start.
    """
    keeper: subprocess.Popen[bytes] | None = None
    try:
        for _ in range(round(_START_SECONDS / _RETRY_SECONDS)):
            connection = _connect(spec)
            if connection is not None:
                return ServiceUse(spec, connection)
            code = None if keeper is None else keeper.poll()
            if keeper is None or code == LOCK_TAKEN:
                keeper = _spawn_keeper(spec, python)
            elif code is not None:
                break
            time.sleep(_RETRY_SECONDS)
    except BaseException:  # asked to stop meanwhile: no keeper may wait for a user in vain
        if keeper is not None:
            keeper.terminate()
            keeper.wait()
        raise
    raise LauncherError(f"{_LABELS[spec.kind]} did not start ({spec.log}):\n{last_lines(spec.log)}")


def _connect(spec: ServerSpec) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(5.0)
        connection.connect(str(spec.keeper_socket))
        if connection.recv(6) == b"ready\n":
            connection.settimeout(None)
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _spawn_keeper(spec: ServerSpec, python: str) -> subprocess.Popen[bytes]:
    spec.log.parent.mkdir(parents=True, exist_ok=True)
    root = Path(__file__).resolve().parents[2]
    with spec.log.open("ab") as output:
        keeper = subprocess.Popen(
            [python, "-m", "config.launcher.keeper", spec.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=root,
            env={"PATH": os.defpath, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
    _SPAWNED.append(keeper)
    return keeper


@dataclass(slots=True)
class Services:
    """The database and the broker of one run; a context manager that lets go of them.

    Attributes:
        variables: ``DATABASE_URL`` and ``REDIS_URL``.
        in_use: The servers of our own, empty when both addresses were given.
        claims: What else is let go at the end.
    """

    variables: dict[str, str] = field(default_factory=dict)
    in_use: list[ServiceUse] = field(default_factory=list)
    claims: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self.claims:
            for use in reversed(self.in_use):
                use.leave()

    def lost(self) -> ServiceUse | None:
        """Return the first of our servers that has died."""
        return next((use for use in self.in_use if use.is_lost()), None)


def start_services(
    checkout: Checkout,
    profile: Profile,
    environ: Mapping[str, str],
    *,
    database: str = "headroom",
    outside: Sequence[Path] = OUTSIDE,
) -> Services:
    """Bring up what ``environ`` does not give; use the result in a ``with`` statement.

    Args:
        checkout: Whose services.
        profile: ``demo`` keeps data, ``test`` is fast and isolates parallel runs.
        environ: May give ``DATABASE_URL``, ``REDIS_URL``, ``RUN_POSTGRES``, ``RUN_REDIS``.
        database: Name of the database in our own PostgreSQL; created when missing.
        outside: Where data may go when the services' user cannot enter the checkout.

    Raises:
        LauncherError: a server was not found or does not start.
    """
    services = Services()
    try:
        slot = _claim_slot(checkout, services.claims) if profile == "test" else 0
        specs = []
        if not environ.get("DATABASE_URL"):
            specs.append(postgres_spec(checkout, profile, environ, outside))
        if not environ.get("REDIS_URL"):
            specs.append(redis_spec(checkout, profile, environ, outside, slot=slot))
        name = f"{database}_{slot}" if slot else database
        for spec in specs:
            services.in_use.append(use_service(spec))
            variable = "DATABASE_URL" if spec.kind == "postgres" else "REDIS_URL"
            services.variables[variable] = servers.url(spec, name)
        for variable in ("DATABASE_URL", "REDIS_URL"):
            services.variables.setdefault(variable, environ.get(variable, ""))
        if "postgres" in {spec.kind for spec in specs}:
            create_database(checkout, services.variables["DATABASE_URL"], name)
    except BaseException:
        services.__exit__(None, None, None)
        raise
    return services


def _claim_slot(checkout: Checkout, held: ExitStack) -> int:
    """Take the first free number for a test run, so that runs at once use different databases."""
    for slot in range(_SLOTS):
        attempt = ExitStack()
        if attempt.enter_context(locked_or_none(checkout.local / "test" / f"slot-{slot}.lock")):
            held.push(attempt)
            return slot
        attempt.close()
    raise LauncherError(f"{_SLOTS} test runs are active in this checkout already")


_CREATE = """
import sys, psycopg
from psycopg import sql
address, name, is_anew = sys.argv[1:]
identifier = sql.Identifier(name)
with psycopg.connect(address, dbname="postgres", autocommit=True) as connection:
    if is_anew:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(identifier))
    if not connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone():
        try:
            connection.execute(sql.SQL("create database {}").format(identifier))
        except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            pass  # another run was quicker
"""


def create_database(checkout: Checkout, address: str, name: str, *, is_anew: bool = False) -> None:
    """Create a database on a server unless it exists, or in its place.

    Raises:
        LauncherError: it failed.
    """
    command = [str(checkout.python), "-c", _CREATE, address, name, "anew" if is_anew else ""]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        problem = (made.stderr.strip().splitlines() or ["no message"])[-1]
        raise LauncherError(f"database {name} could not be created: {problem}")


def wipe_profile(checkout: Checkout, profile: Profile, outside: Sequence[Path] = OUTSIDE) -> None:
    """Delete the data of a profile's servers.

    Raises:
        LauncherError: another run uses them.
    """
    base = service_home(checkout, service_account(), outside)
    with ExitStack() as held:
        for lock in sorted((checkout.local / profile).glob("*.lock")):
            if lock.name.startswith(("pg-", "redis")) and not held.enter_context(
                locked_or_none(lock)
            ):
                raise LauncherError(
                    f"another ./run uses the {profile} services ({lock.stem}): stop it first"
                )
        for home in (base / profile).glob("*"):
            if home.is_dir() and home.name.startswith(("pg-", "redis")):
                _stop_and_delete(home)


def _stop_and_delete(home: Path) -> None:
    stop_processes_in(home / "data", ((signal.SIGINT, 10.0),))
    shutil.rmtree(home / "data", ignore_errors=True)
