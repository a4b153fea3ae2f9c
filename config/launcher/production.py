"""``./run serve``: a server of ours against a given database and broker, nothing embedded."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from config.launcher.addresses import missing_addresses
from config.launcher.places import Checkout
from config.launcher.state import counters_directory
from config.launcher.terminal import LauncherError
from config.launcher.workers import names_queues, run_workers
from config.queues import QUEUES

LISTENER = "listener"
AGENTS = "agents"
COMMANDS = {
    LISTENER: "listen",
    "bridge": "mirror",
    "hypervisors": "watch_hypervisors",
    AGENTS: "hold_polls",
}
#: Roles that answer requests, which have the deadlines of requests.
ANSWERING = ("web", AGENTS)
ROLES = ("web", "worker", "beat", *COMMANDS)
APPLICATION = "config.wsgi:application"
_WEB_DEFAULTS = {
    "GRANIAN_PORT": "8000",
    "GRANIAN_WORKERS": "2",
    "GRANIAN_BLOCKING_THREADS": "8",
    "GRANIAN_BLOCKING_THREADS_IDLE_TIMEOUT": "600",  # a thread takes its session of a standby along
    "GRANIAN_WORKERS_KILL_TIMEOUT": "30",
    "GRANIAN_RESPAWN_FAILED_WORKERS": "true",
    "GRANIAN_WEBSOCKETS": "false",
    "GRANIAN_HTTP": "1",  # whoever speaks HTTP/2 to clients is in front of us
    "GRANIAN_BACKPRESSURE": "4096",  # connections of a process; a slow body holds nothing else
    "HEADROOM_PLACEMENT__WARM_UP": "true",
    # What large answers took is given back instead of kept by each thread (ADR 41): of the C
    # library, and of granian's own allocator.
    "MALLOC_ARENA_MAX": "1",
    "_RJEM_MALLOC_CONF": "narenas:1,dirty_decay_ms:1000",
}


def serve_command(checkout: Checkout, role: str, extra: list[str]) -> list[str]:
    """Return the command line of a role; ``extra`` goes to granian or Celery unchanged."""
    python = str(checkout.python)
    if role == "web":
        return [python, "-m", "config.server", "--interface", "wsgi", *extra, APPLICATION]
    if role in COMMANDS:
        return [python, str(checkout.root / "manage.py"), COMMANDS[role], *extra]
    celery = [python, "-m", "celery", "-A", "config.celery_app", role, "--loglevel", "INFO"]
    if role == "worker" and not names_queues(extra):
        extra = ["--queues", ",".join(QUEUES), *extra]
    return [*celery, *extra]


def serve_environment(environ: Mapping[str, str], extra: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of production: the given one, with server defaults filled in.

    Our address is the one that the web server binds, whichever way it was given: its option in
    ``extra``, our setting, its own variable.

    Raises:
        LauncherError: the database or the broker is not given.
    """
    if missing := missing_addresses(environ):
        raise LauncherError(f"./run serve needs {' and '.join(missing)} (./run demo does not)")
    ours = environ.get("HEADROOM_LISTEN_ADDRESS", "")
    address = ours or environ.get("GRANIAN_HOST", "") or "127.0.0.1"
    return {
        **_WEB_DEFAULTS,
        **environ,
        "GRANIAN_HOST": address,
        "HEADROOM_LISTEN_ADDRESS": _host_option(extra) or address,
    }


def _host_option(extra: Sequence[str]) -> str:
    given = ""
    for option, following in itertools.pairwise([*extra, ""]):
        name, _, joined = option.partition("=")
        if name == "--host":
            given = joined or following
    return given


def serve(checkout: Checkout, role: str, extra: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Check that the database is migrated, then become the server process.

    Raises:
        LauncherError: something is not given, or migrations are missing.
    """
    env = serve_environment(environ, extra if role == "web" else ())
    check = [str(checkout.python), "manage.py", "migrate", "--check"]
    if subprocess.run(check, env=env, cwd=checkout.root, check=False).returncode != 0:
        raise LauncherError(
            "the database is not reachable or not migrated: see above, then ./run manage migrate"
        )
    given = env.get("PROMETHEUS_MULTIPROC_DIR")
    # Each role tells its own counters, so each has a directory of its own.
    counters = Path(given) / role if given else counters_directory(env, role)
    counters.mkdir(parents=True, exist_ok=True)
    env["PROMETHEUS_MULTIPROC_DIR"] = str(counters)
    env["HEADROOM_PROCESS"] = "web" if role in ANSWERING else "worker"
    os.chdir(checkout.root)
    if role == "worker" and not names_queues(extra):
        sys.exit(run_workers(checkout, extra, env))
    command = serve_command(checkout, role, extra)
    os.execve(command[0], command, env)  # noqa: S606 - no shell is the point
