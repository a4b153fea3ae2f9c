"""``./run demo``: the whole of Headroom on this machine, with a region to look at."""

from __future__ import annotations

import argparse
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from config.launcher.environment import ensure_environment
from config.launcher.places import Checkout, locked_or_none
from config.launcher.processes import (
    Child,
    StopRequested,
    die_with_parent,
    ignore_stop,
    listen_for_stop,
    start_child,
    stop_children,
)
from config.launcher.receiver import Receiver, is_ours, start_receiver
from config.launcher.services import Services, start_services, wipe_profile
from config.launcher.settings import demo_environment, with_placement_checks
from config.launcher.terminal import LauncherError, last_lines, say, step
from config.launcher.workers import SILENT
from config.queues import LONG, SOON, STEADY

ADDRESS = "127.0.0.1"
DEFAULT_PORT = 8000
_PORTS_TRIED = 100
# Below those that the kernel gives to connections.
_NO_CLIENTS_PORTS = range(16_384, 32_768)
_READY_SECONDS = 90.0
MOST_SPEED = 20.0
_WATCH_SECONDS = 0.3
AGENT = "import sys; from headroom_host_agent.cli import main; sys.exit(main())"
_LOGIN = "admin login:"
_PROGRESS = "[demo] "
_STOP_SIGNALS = ((signal.SIGTERM, 6.0), (signal.SIGQUIT, 3.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What was asked for on the command line.

    ``port`` None means the default or the next free one, 0 means any free one. ``is_quiet``:
    nothing happens in the region by itself; ``speed`` None leaves that of the last start.
    """

    port: int | None
    hosts: int | None
    imports: tuple[Path, ...]
    with_worker: bool
    with_agents: bool
    with_receiver: bool
    is_quiet: bool
    speed: float | None
    fresh: bool
    is_verbose: bool


def parse_demo(arguments: list[str]) -> DemoOptions:
    """Read the options of ``./run demo``."""
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__)
    parser.add_argument("--port", type=_port, help="web port (default 8000 or the next free one)")
    parser.add_argument("--hosts", type=_positive, help="hosts of the made-up region")
    parser.add_argument(
        "--import",
        dest="imports",
        type=_existing,
        action="append",
        default=[],
        metavar="FILE",
        help="load a region file instead of the made-up region; may be repeated",
    )
    parser.add_argument("--no-agents", action="store_true", help="no agents on hosts")
    parser.add_argument("--no-worker", action="store_true", help="web only: no worker, no beat")
    parser.add_argument(
        "--quiet-region", action="store_true", help="nothing happens in the region by itself"
    )
    parser.add_argument(
        "--speed", type=_speed, help="how fast the region lives: 1 is usual, 0 pauses it"
    )
    parser.add_argument("--fresh", action="store_true", help="delete the demo's data first")
    parser.add_argument(
        "--verbose", action="store_true", help="show what is logged while the region is loaded"
    )
    known = parser.parse_args(arguments)
    return DemoOptions(
        port=known.port,
        hosts=known.hosts,
        imports=tuple(known.imports),
        with_worker=not known.no_worker,
        with_agents=not (known.no_agents or known.no_worker or known.imports),
        with_receiver=not (known.no_worker or known.imports),
        is_quiet=known.quiet_region or known.no_worker or bool(known.imports),
        speed=known.speed,
        fresh=known.fresh,
        is_verbose=known.verbose,
    )


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:  # noqa: PLR2004 - the port range
        raise argparse.ArgumentTypeError("a port is 0 to 65535")
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _speed(text: str) -> float:
    number = float(text)
    if not 0 <= number <= MOST_SPEED:
        raise argparse.ArgumentTypeError(f"a speed is 0 to {MOST_SPEED:g}")
    return number


def _existing(text: str) -> Path:
    path = Path(text).resolve()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no such file: {text}")
    return path


def run_demo(checkout: Checkout, options: DemoOptions, environ: Mapping[str, str]) -> int:
    """Bring the demo up, keep it up until a signal or a death, take it down; return the status."""
    listen_for_stop()
    with ExitStack() as held:
        if not held.enter_context(locked_or_none(checkout.local / "demo" / "demo.lock")):
            raise LauncherError("./run demo is running in this checkout already")
        port = choose_port(options.port)
        ensure_environment(checkout, "runtime")
        if options.fresh:
            with step("deleting the demo's data"):
                wipe_profile(checkout, "demo")
                speed_file(checkout).unlink(missing_ok=True)
        with step("PostgreSQL and Redis"):
            services = held.enter_context(start_services(checkout, "demo", environ))
        held.callback(ignore_stop)  # whatever ends us, the services are left in peace
        env = demo_environment(checkout, environ, services.variables)
        env = with_placement_checks(env, f"http://{ADDRESS}:{port}/placement")
        with step("database migrations"):
            migrate(checkout, env)
        receiver = None
        if options.with_receiver and is_ours(checkout, env):
            receiver = start_receiver(checkout, env, choose_port(0))
            held.callback(_stop_all, [receiver.child])  # whose end ends nothing else, either
        login = _set_up(checkout, env, options, receiver)
        children: list[Child] = []
        held.callback(_stop_all, children)
        _start_processes(checkout, env, options, port, children)
        with step("web" + (", worker, beat" if options.with_worker else "")):
            _wait_for_web(port, children, services)
        if options.with_agents:
            with step("agents on hosts"):
                agents = _start_agents(checkout, env, port)
            held.callback(_stop_all, agents)  # which nobody else needs: their end ends nothing
        if not options.is_quiet:
            region = _start_region(checkout, env, options, port)
            held.callback(_stop_all, [region])  # likewise
        welcome = [f"ready: http://{ADDRESS}:{port}", *login, "Ctrl-C stops it and keeps the data"]
        return _watch(children, services, welcome)


def choose_port(wanted: int | None) -> int:
    """Return a free port: the wanted one, any (0), or the first from 8000 up (None).

    Any port means one that no connection is given before it is bound.

    Raises:
        LauncherError: the wanted one is taken.
    """
    several: Sequence[int] = range(DEFAULT_PORT, DEFAULT_PORT + _PORTS_TRIED)
    if wanted is not None:
        several = [wanted] if wanted else random.sample(_NO_CLIENTS_PORTS, _PORTS_TRIED)
    for candidate in several:
        with socket.socket(socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, candidate))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    if wanted:
        raise LauncherError(f"port {wanted} is taken: choose another with --port, or --port 0")
    raise LauncherError(f"ports {min(several)} to {max(several)} are all taken")


def migrate(checkout: Checkout, env: Mapping[str, str]) -> None:
    """Bring a database up to date, with a log that is shown only when it fails.

    Raises:
        LauncherError: it failed.
    """
    log = checkout.logs / "migrate.log"
    log.unlink(missing_ok=True)
    command = [str(checkout.python), "manage.py", "migrate", "--no-input", "--verbosity", "0"]
    child = start_child("migrate", command, log=log, env=env, cwd=checkout.root)
    try:
        code = child.process.wait()
    except StopRequested:
        stop_children([child], ((signal.SIGTERM, 5.0),))
        raise
    if code != 0:
        raise LauncherError(f"manage.py migrate failed ({log}):\n{last_lines(log, 20)}")


def _set_up(
    checkout: Checkout, env: Mapping[str, str], options: DemoOptions, receiver: Receiver | None
) -> list[str]:
    """Load the region and the admin user; return the login lines.

    What is being done is shown, everything that is said and logged goes to a log. Progress bars
    need a terminal as standard error, so log lines do not go there, unless all is to be shown.
    """
    command = [str(checkout.python), "manage.py", "set_up_demo"]
    if options.hosts is not None:
        command += ["--hosts", str(options.hosts)]
    for path in options.imports:
        command += ["--import", str(path)]
    if receiver is not None:
        command += ["--webhook-url", receiver.url]
    log = checkout.logs / "set_up_demo.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    logging_to = {} if options.is_verbose else {"HEADROOM_LOG_FILE": str(log)}
    with step("demo region"):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if options.is_verbose else None,
            text=True,
            env={**env, **logging_to},
            cwd=checkout.root,
            process_group=0,
            preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - one prctl call
        )
        try:
            login = _pass_on(process.stdout or (), log, is_verbose=options.is_verbose)
            code = process.wait()
        except StopRequested:
            process.terminate()
            process.wait()
            raise
    if code != 0:
        raise LauncherError(f"manage.py set_up_demo failed ({log}):\n{last_lines(log, 20)}")
    return login


def _pass_on(lines: Iterable[str], log: Path, *, is_verbose: bool) -> list[str]:
    """Log all lines but the login, and show what a person waits for; return the login lines."""
    login: list[str] = []
    for line in lines:
        if line.startswith(_LOGIN):
            login.append(line.rstrip())
            continue
        with log.open("a", encoding="utf-8") as kept:  # the process logs to it, too
            kept.write(line)
        if is_verbose or line.startswith(_PROGRESS):
            say(f"  {line.removeprefix(_PROGRESS).rstrip()}")
    return login


def _start_processes(
    checkout: Checkout,
    env: Mapping[str, str],
    options: DemoOptions,
    port: int,
    children: list[Child],
) -> None:
    metrics = checkout.local / "prometheus"
    shutil.rmtree(metrics, ignore_errors=True)
    metrics.mkdir(parents=True)
    shared = {**env, "PROMETHEUS_MULTIPROC_DIR": str(metrics), "PYTHONUNBUFFERED": "1"}
    for name, arguments in process_commands(port).items():
        if name == "web" or options.with_worker:
            log = checkout.logs / f"{name}.log"
            log.unlink(missing_ok=True)
            command = [str(checkout.python), "-m", *arguments]
            death = signal.SIGTERM if name == "web" else signal.SIGQUIT
            kind = {"HEADROOM_PROCESS": "web" if name == "web" else "worker"}
            if name == "worker-soon":  # the other worker tells the metrics of both
                kind |= SILENT
            child = start_child(
                name, command, log=log, env=shared | kind, cwd=checkout.root, death_signal=death
            )
            children.append(child)


def speed_file(checkout: Checkout) -> Path:
    """Return the file that says how fast the region lives."""
    return checkout.local / "demo-speed"


def _start_region(
    checkout: Checkout, env: Mapping[str, str], options: DemoOptions, port: int
) -> Child:
    """Start what lets the region live; ``.local/demo-speed`` steers it."""
    if options.speed is not None:
        speed_file(checkout).write_text(f"{options.speed:g}\n", encoding="utf-8")
    log = checkout.logs / "region.log"
    log.unlink(missing_ok=True)
    command = [str(checkout.python), "manage.py", "simulate_region", "--port", str(port)]
    return start_child("region", command, log=log, env=env, cwd=checkout.root)


def _start_agents(checkout: Checkout, env: Mapping[str, str], port: int) -> list[Child]:
    """Start agents of a few hosts, each with a root of its own; none when they cannot enrol."""
    url = f"http://{ADDRESS}:{port}"
    places = checkout.local / "demo" / "agents"
    command = [str(checkout.python), "manage.py", "set_up_demo_agents"]
    command += ["--url", url, "--places", str(places)]
    log = checkout.logs / "agents.log"
    with log.open("w", encoding="utf-8") as said:
        done = subprocess.run(
            command, env=env, cwd=checkout.root, stdout=subprocess.PIPE, stderr=said, check=False
        )
    if done.returncode != 0:
        say(f"no agents: {last_lines(log, 1)}")
        return []
    ours = {
        "PATH": env.get("PATH", ""),
        "PYTHONPATH": str(checkout.root / "clients" / "agent"),
        "HEADROOM_AGENT__SERVER__URL": url,
        "HEADROOM_AGENT__CAPACITY__DISK": "1TiB",
    }
    return [
        start_child(
            "agent",
            [str(checkout.python), "-c", AGENT, "run", "--sysroot", root],
            log=log,
            env=ours,
            cwd=checkout.root,
        )
        for root in done.stdout.decode().splitlines()
    ]


def process_commands(port: int) -> dict[str, list[str]]:
    """Return the module and arguments of each process of the demo."""
    celery = ["celery", "-A", "config.celery_app"]
    web = ["config.server", "--interface", "wsgi", "--host", ADDRESS, "--port", str(port)]
    web += ["--workers", "2", "--blocking-threads", "4", "--no-ws", "--respawn-failed-workers"]
    web += ["--workers-kill-timeout", "5", "--access-log", "config.wsgi:application"]
    worker = [*celery, "worker", "--loglevel", "INFO"]
    soon = ["--queues", SOON, "--concurrency", "1", "--hostname", f"{SOON}@%h"]
    return {
        "web": web,
        "worker": [*worker, "--queues", f"{STEADY},{LONG}", "--concurrency", "2"],
        "worker-soon": [*worker, *soon],
        "beat": [*celery, "beat", "--loglevel", "INFO"],
    }


def _wait_for_web(port: int, children: list[Child], services: Services) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not answers_healthz(port):
        _raise_if_dead(children, services)
        if time.monotonic() > deadline:
            log = children[0].log
            raise LauncherError(f"web does not answer /healthz ({log}):\n{last_lines(log)}")
        time.sleep(_WATCH_SECONDS)
    _raise_if_dead(children, services)


def answers_healthz(port: int) -> bool:
    """Return whether the web process on a local port says it is alive."""
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=5)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _raise_if_dead(children: list[Child], services: Services) -> None:
    for child in children:
        code = child.process.poll()
        if code is not None:
            raise LauncherError(
                f"{child.name} ended with exit status {code} ({child.log}):\n"
                f"{last_lines(child.log)}"
            )
    lost = services.lost()
    if lost is not None:
        raise LauncherError(f"{lost.label} has gone ({lost.log}):\n{last_lines(lost.log)}")


def _watch(children: list[Child], services: Services, welcome: list[str]) -> int:
    """Say that all is up; return 0 once asked to stop, raise when a process dies on its own."""
    try:
        for line in welcome:
            say(line)
        while True:
            _raise_if_dead(children, services)
            time.sleep(_WATCH_SECONDS)
    except StopRequested:
        say("stopping")
        return os.EX_OK


def _stop_all(children: list[Child]) -> None:
    ignore_stop()
    stop_children(children, _STOP_SIGNALS)
