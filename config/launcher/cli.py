"""The commands of ``./run``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from config.launcher.addresses import missing_addresses
from config.launcher.checks import run_lint
from config.launcher.cloud import run_cloud
from config.launcher.conformance import run_conformance
from config.launcher.demo import parse_demo, run_demo
from config.launcher.environment import ensure_environment, pip_install, require_environment
from config.launcher.locks import run_lock
from config.launcher.places import Checkout, this_checkout
from config.launcher.processes import StopRequested, ignore_stop, listen_for_stop, run_in_foreground
from config.launcher.production import LISTENER, ROLES, serve
from config.launcher.services import Profile, start_services
from config.launcher.settings import demo_environment, tool_environment
from config.launcher.terminal import LauncherError, complain, say, step

USAGE = """usage: ./run COMMAND ...

  demo   [--port N] [--hosts N] [--import FILE]... [--no-worker] [--no-agents] [--quiet-region]
         [--speed N] [--fresh] [--verbose]
  test   [pytest arguments]      the whole suite on real PostgreSQL and Redis
  lint                           every static check
  bench  NAME [--quick] [--only PATTERN] [--hosts N ...] [--parts]
                                 results in .local/bench/NAME.json
  conformance [--only PATTERN] [--gateway MODE]   the public Placement tests against Headroom
  cloud  [--hosts N] [--servers N] [--keep] [--switch-over]
                                 a real Nova with Headroom as its Placement
  manage COMMAND ...             manage.py on the demo's database (or DATABASE_URL)
  install [listener]             what serve needs, with hashes; serve itself installs nothing
  serve  [web|worker|beat|agents|listener|bridge|hypervisors] ...
                                 production: DATABASE_URL and REDIS_URL given
  lock                           the .lock files anew from requirements*.txt

docs/running.md tells the rest."""
_USAGE_ERROR = 2


def main(arguments: list[str]) -> int:
    """Run one command and return the exit status."""
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        say(USAGE)
        return os.EX_OK if arguments else _USAGE_ERROR
    command = COMMANDS.get(arguments[0])
    if command is None:
        complain(f"headroom: unknown command {arguments[0]}\n{USAGE}")
        return _USAGE_ERROR
    if arguments[0] in WITHOUT_ARGUMENTS and arguments[1:]:
        complain(f"headroom: ./run {arguments[0]} takes no arguments")
        return 1
    try:
        return command(this_checkout(), arguments[1:], os.environ)
    except LauncherError as error:
        complain(f"headroom: {error}")
        return 1
    except StopRequested as stop:
        return 128 + stop.signum


def _demo(checkout: Checkout, arguments: list[str], environ: Mapping[str, str]) -> int:
    return run_demo(checkout, parse_demo(arguments), environ)


def _test(checkout: Checkout, arguments: list[str], environ: Mapping[str, str]) -> int:
    """Run pytest; the whole suite, without arguments, on every core.

    One process more than there are cores: many tests wait for servers that they start or kill.
    Tests are dealt out some dozens at once, so that none is left alone with all that start servers.
    """
    whole = ["-n", str((os.cpu_count() or 1) + 1), "--maxschedchunk", "64"]
    return _tool(checkout, ["-m", "pytest", *(arguments or whole)], environ)


def _bench(checkout: Checkout, arguments: list[str], environ: Mapping[str, str]) -> int:
    module = ["-m", "benchmarks", *arguments]
    return _tool(checkout, module, environ, profile="demo", database="headroom_bench")


def _tool(
    checkout: Checkout,
    python_arguments: list[str],
    environ: Mapping[str, str],
    *,
    profile: Profile = "test",
    database: str = "headroom",
) -> int:
    """Run a Python program with services, in an environment of ours, and return its status."""
    listen_for_stop()
    ensure_environment(checkout, "dev")
    with start_services(checkout, profile, environ, database=database) as services:
        env = tool_environment(checkout, environ, services.variables)
        if profile == "test":
            env["HEADROOM_PROCESS"] = "web"  # most of what is tested answers requests
        command = [str(checkout.python), *python_arguments]
        code = run_in_foreground(command, env=env, cwd=checkout.root)
        ignore_stop()
        return code


def _lint(checkout: Checkout, _: list[str], environ: Mapping[str, str]) -> int:
    listen_for_stop()
    ensure_environment(checkout, "dev")
    with start_services(checkout, "test", environ) as services:
        code = run_lint(checkout, tool_environment(checkout, environ, services.variables))
        ignore_stop()
        return code


def _manage(checkout: Checkout, arguments: list[str], environ: Mapping[str, str]) -> int:
    listen_for_stop()
    ensure_environment(checkout, "runtime")
    command = [str(checkout.python), str(checkout.root / "manage.py"), *arguments]
    here = Path.cwd()  # file names among the arguments are relative to it
    if not missing_addresses(environ):
        return run_in_foreground(command, env=environ, cwd=here)
    with start_services(checkout, "demo", environ) as services:
        env = demo_environment(checkout, environ, services.variables)
        code = run_in_foreground(command, env=env, cwd=here)
        ignore_stop()
        return code


def _serve(checkout: Checkout, arguments: list[str], environ: Mapping[str, str]) -> int:
    role, extra = "web", arguments
    if arguments and not arguments[0].startswith("-"):
        role, extra = arguments[0], arguments[1:]
    if role not in ROLES:
        raise LauncherError(f"./run serve {role}: allowed are {', '.join(ROLES)}")
    require_environment(checkout, "runtime")
    serve(checkout, role, extra, environ)


def _install(checkout: Checkout, arguments: list[str], _: Mapping[str, str]) -> int:
    if arguments not in ([], [LISTENER]):
        raise LauncherError(f"./run install takes no arguments but {LISTENER}")
    ensure_environment(checkout, "runtime")
    if arguments:
        with step("installing what the listener needs"):
            pip_install(checkout, checkout.root / "requirements-listener.txt")
    return os.EX_OK


def _lock(checkout: Checkout, _: list[str], environ: Mapping[str, str]) -> int:
    listen_for_stop()
    ensure_environment(checkout, "dev")
    return run_lock(checkout, environ)


COMMANDS: dict[str, Callable[[Checkout, list[str], Mapping[str, str]], int]] = {
    "demo": _demo,
    "test": _test,
    "lint": _lint,
    "bench": _bench,
    "manage": _manage,
    "serve": _serve,
    "conformance": run_conformance,
    "cloud": run_cloud,
    "install": _install,
    "lock": _lock,
}
WITHOUT_ARGUMENTS = {"lint", "lock"}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
