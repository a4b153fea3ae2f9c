"""How to prepare, start, ask and stop each server that the launcher can run."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from config.launcher.places import private_directory
from config.launcher.processes import Account, stop_processes_in
from config.launcher.terminal import LauncherError

SUPERUSER = "headroom"
POSTGRES_SOCKET = ".s.PGSQL.5432"
REDIS_SOCKET = "redis.sock"
MAX_CONNECTIONS = 300
MAX_LOCKS_PER_TRANSACTION = 256
_PROBE_TIMEOUT_SECONDS = 2.0
_POSTGRES_PROTOCOL = 196608  # 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One server of one checkout: what to run, where, as whom.

    ``durable`` servers survive a power cut; the others trade that for speed (tests) and may be
    rebuilt from nothing when they do not start.
    """

    kind: Literal["postgres", "redis"]
    program: Path
    home: Path
    sockets: Path
    log: Path
    lock: Path
    account: Account | None
    durable: bool

    @property
    def data(self) -> Path:
        """The server's data directory, which is also its working directory."""
        return self.home / "data"

    @property
    def keeper_socket(self) -> Path:
        """Where users of the server register with its keeper."""
        return self.sockets / f"{self.kind}.keeper"

    def to_json(self) -> str:
        """Return this as text that :meth:`from_json` reads."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> ServerSpec:
        """Read what :meth:`to_json` wrote."""
        raw = json.loads(text)
        account = Account(**raw["account"]) if raw["account"] else None
        paths = {name: Path(raw[name]) for name in ("program", "home", "sockets", "log", "lock")}
        return cls(kind=raw["kind"], durable=raw["durable"], account=account, **paths)


def server_environment() -> dict[str, str]:
    """Return the environment of servers: nothing of the caller's settings reaches them."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def prepare(spec: ServerSpec) -> None:
    """Clear what a crashed predecessor left behind, and create the data directory if missing.

    Raises:
        LauncherError: the data directory cannot be used or made.
    """
    try:
        stop_processes_in(spec.data, stop_signals(spec))
        for socket_name in (POSTGRES_SOCKET, f"{POSTGRES_SOCKET}.lock", REDIS_SOCKET):
            if socket_name.startswith(POSTGRES_SOCKET) == (spec.kind == "postgres"):
                (spec.sockets / socket_name).unlink(missing_ok=True)
        if spec.kind == "redis":
            private_directory(spec.data, spec.account)
            return
        # No process works in the directory any more, so whatever this names is not our server.
        (spec.data / "postmaster.pid").unlink(missing_ok=True)
        if not (spec.data / "PG_VERSION").exists():
            _initialise(spec)
    except PermissionError as error:
        raise LauncherError(
            f"{error.filename} belongs to another user (an earlier start as root?): "
            f"delete {spec.home} or start as that user"
        ) from error


def wipe(spec: ServerSpec) -> None:
    """Delete the server's data."""
    shutil.rmtree(spec.data, ignore_errors=True)


def _initialise(spec: ServerSpec) -> None:
    wipe(spec)
    account = spec.account
    fresh = spec.data.with_name("data.new")
    stop_processes_in(fresh, ())
    shutil.rmtree(fresh, ignore_errors=True)
    private_directory(fresh, spec.account)
    command = [str(spec.program.with_name("initdb")), "--pgdata", str(fresh)]
    command += ["--username", SUPERUSER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C"]
    if not spec.durable:
        command.append("--no-sync")
    with spec.log.open("ab") as output:
        code = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=server_environment(),
            cwd=fresh,
            check=False,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
        ).returncode
    if code != 0:
        raise LauncherError(f"initdb failed with exit status {code}")
    fresh.rename(spec.data)


def command(spec: ServerSpec) -> list[str]:
    """Return the command line that runs the server in the foreground, on Unix sockets only."""
    if spec.kind == "redis":
        line = [str(spec.program), "--port", "0", "--daemonize", "no", "--appendonly", "no"]
        line += ["--unixsocket", str(spec.sockets / REDIS_SOCKET), "--unixsocketperm", "700"]
        return [*line, "--dir", str(spec.data), "--save", ""]
    sockets = str(spec.sockets).replace('"', '""')
    options = {
        "listen_addresses": "",
        "unix_socket_directories": f'"{sockets}"',
        "unix_socket_permissions": "0700",
        "max_connections": str(MAX_CONNECTIONS),
        "max_locks_per_transaction": str(MAX_LOCKS_PER_TRANSACTION),
        "log_timezone": "UTC",
        "timezone": "UTC",
    }
    if not spec.durable:
        options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    line = [str(spec.program), "-D", str(spec.data)]
    for name, setting in options.items():
        line += ["-c", f"{name}={setting}"]
    return line


def url(spec: ServerSpec, database: str) -> str:
    """Return the address for ``DATABASE_URL`` or ``REDIS_URL``.

    Args:
        spec: The server.
        database: Name of the PostgreSQL database; Redis has none.
    """
    if spec.kind == "redis":
        return f"unix://{quote(str(spec.sockets / REDIS_SOCKET))}"
    return f"postgresql://{SUPERUSER}@/{database}?host={quote(str(spec.sockets), safe='/')}"


def stop_signals(spec: ServerSpec) -> tuple[tuple[int, float], ...]:
    """Return the signals that stop the server, gentlest first, each with its patience (seconds)."""
    if spec.kind == "redis":
        return ((signal.SIGTERM, 5.0),)
    return ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0))


def answers(spec: ServerSpec) -> bool:
    """Return whether the server takes connections."""
    probe: Callable[[socket.socket], bool]
    if spec.kind == "redis":
        path, probe = spec.sockets / REDIS_SOCKET, _redis_answers
    else:
        path, probe = spec.sockets / POSTGRES_SOCKET, _postgres_answers
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_PROBE_TIMEOUT_SECONDS)
            connection.connect(str(path))
            return probe(connection)
    except OSError:
        return False


def _redis_answers(connection: socket.socket) -> bool:
    connection.sendall(b"PING\r\n")
    return connection.recv(64).startswith(b"+PONG")


def _postgres_answers(connection: socket.socket) -> bool:
    """Log in; an error answer (still starting, shutting down) begins with E, a welcome with R."""
    words = b"user\0" + SUPERUSER.encode() + b"\0database\0postgres\0\0"
    connection.sendall(struct.pack("!ii", len(words) + 8, _POSTGRES_PROTOCOL) + words)
    welcome = connection.recv(1) == b"R"
    connection.sendall(b"X\0\0\0\4")
    return welcome
