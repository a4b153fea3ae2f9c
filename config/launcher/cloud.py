"""``./run cloud``: a real Nova on this machine, with Headroom as its Placement (docs/cloud.md)."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.launcher.conformance import fresh_database
from config.launcher.environment import ensure_environment, ensure_own_environment
from config.launcher.places import Checkout, locked_or_none
from config.launcher.processes import ignore_stop, listen_for_stop, run_in_foreground
from config.launcher.services import start_services
from config.launcher.settings import tool_environment
from config.launcher.terminal import LauncherError, say, step

REQUIREMENTS = "requirements-cloud.txt"
DATABASE = "headroom_cloud"
ADDRESS = "127.0.0.1"
DEFAULT_PORT = 19000
PORTS_USED = 700
PROGRAMS: Mapping[str, Path] = {
    "mariadb-server": Path("/usr/sbin/mariadbd"),
    "rabbitmq-server": Path("/usr/sbin/rabbitmqctl"),
}
"""Debian packages, and a file of each."""
_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudOptions:
    """What was asked for on the command line; ``servers`` 0 leaves the exercise out."""

    hosts: int
    servers: int
    port: int
    is_kept: bool
    is_wiped: bool
    switches_over: bool


def parse_cloud(arguments: Sequence[str]) -> CloudOptions:
    """Read the options of ``./run cloud``."""
    parser = argparse.ArgumentParser(prog="./run cloud", description=__doc__)
    parser.add_argument("--hosts", type=_hosts, default=12, help="compute hosts (default 12)")
    parser.add_argument(
        "--servers", type=_servers, default=52, help="servers to boot (default 52); 0: no exercise"
    )
    parser.add_argument(
        "--port", type=_base_port, default=DEFAULT_PORT, help=f"first port ({DEFAULT_PORT})"
    )
    parser.add_argument("--keep", action="store_true", help="stay up afterwards, until Ctrl-C")
    parser.add_argument(
        "--wipe", action="store_true", help="delete .local/cloud, with what is installed there"
    )
    parser.add_argument(
        "--switch-over",
        action="store_true",
        help="only boots, while Headroom's database switches over to a standby",
    )
    known = parser.parse_args(arguments)
    return CloudOptions(
        hosts=known.hosts,
        servers=known.servers,
        port=known.port,
        is_kept=known.keep,
        is_wiped=known.wipe,
        switches_over=known.switch_over,
    )


def _between(text: str, least: int, most: int) -> int:
    number = int(text)
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"must be {least} to {most}")
    return number


def _hosts(text: str) -> int:
    """Evacuation and migration need a second host of each kind in a zone, which 12 have."""
    return _between(text, 12, 200)


def _servers(text: str) -> int:
    return 0 if int(text) == 0 else _between(text, 16, 1000)


def _base_port(text: str) -> int:
    return _between(text, 1024, _HIGHEST_PORT - PORTS_USED)


def run_cloud(checkout: Checkout, arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Install what is missing, bring the cloud up, exercise it, stop it; return the status."""
    listen_for_stop()
    options = parse_cloud(arguments)
    home = checkout.local / "cloud"
    with locked_or_none(checkout.local / "cloud.lock") as is_ours:
        if not is_ours:
            raise LauncherError("./run cloud is running in this checkout already")
        if options.is_wiped:
            shutil.rmtree(home, ignore_errors=True)
            say(f"deleted {home}")
            return os.EX_OK
        refuse_taken_ports(options.port, {0, 1, 2, 3, 4, 306, 369, 672, 673})
        ensure_environment(checkout, "dev")  # with what the listener needs
        ensure_programs()
        ensure_own_environment(
            checkout,
            home / "venv",
            checkout.root / REQUIREMENTS,
            title="installing Keystone, Glance, Neutron and Nova",
            log_name="pip-cloud.log",
        )
        with start_services(checkout, "test", environ, database=DATABASE) as services:
            variables = dict(services.variables)
            address = variables["DATABASE_URL"]
            variables["DATABASE_URL"] = fresh_database(checkout, address, DATABASE)
            env = tool_environment(checkout, environ, variables)
            code = _run_program(checkout, options, home, env)
            ignore_stop()
            return code


def _run_program(
    checkout: Checkout, options: CloudOptions, home: Path, env: Mapping[str, str]
) -> int:
    command = [str(checkout.python), "-m", "cloud", "--root", str(checkout.root)]
    command += ["--home", str(home), "--port", str(options.port)]
    command += ["--hosts", str(options.hosts), "--servers", str(options.servers)]
    command += ["--keep"] if options.is_kept else []
    command += ["--switch-over"] if options.switches_over else []
    return run_in_foreground(command, env={**env, "PYTHONUNBUFFERED": "1"}, cwd=checkout.root)


def refuse_taken_ports(base: int, offsets: Iterable[int]) -> None:
    """Look whether anything listens where the cloud will.

    Raises:
        LauncherError: something does.
    """
    for offset in sorted(offsets):
        with socket.socket(socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, base + offset))
            except OSError:
                raise LauncherError(
                    f"port {base + offset} is taken: choose others with --port"
                ) from None


def ensure_programs() -> None:
    """Install MariaDB and RabbitMQ from Debian, without starting them, unless they are there.

    Raises:
        LauncherError: they are not, and we may not install them or it failed.
    """
    missing = [package for package, program in PROGRAMS.items() if not program.exists()]
    if not missing and os.geteuid() == 0:
        return
    wanted = " ".join(missing or PROGRAMS)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise LauncherError(f"./run cloud needs root on a Debian machine with {wanted}")
    policy = Path("/usr/sbin/policy-rc.d")  # Debian asks it whether a new service may start
    is_made = not policy.exists()
    if is_made:
        policy.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
        policy.chmod(0o755)
    try:
        with step(f"installing {wanted}"):
            code = subprocess.run(
                [
                    *("apt-get", "install", "-y", "-q", "--no-install-recommends"),
                    *("-o", "DPkg::Lock::Timeout=300", *missing),
                ],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdout=subprocess.DEVNULL,
                check=False,
            ).returncode
    finally:
        if is_made:
            policy.unlink()
    if code != 0:
        raise LauncherError(f"apt-get could not install {wanted}: try apt-get update first")
