"""``./run conformance``: the public Placement tests against a served Headroom.

Four servers, one per profile of the tests, share a fresh database; the test programs of
``conformance/`` run in the reference's environment and speak HTTP only.
"""

from __future__ import annotations

import argparse
import fnmatch
import http.client
import json
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from config.launcher.demo import answers_healthz, choose_port, migrate
from config.launcher.environment import ensure_environment
from config.launcher.peers import ADDRESS, Peer, ensure_peer, start_reference
from config.launcher.places import Checkout
from config.launcher.processes import (
    Child,
    ignore_stop,
    listen_for_stop,
    run_in_foreground,
    start_child,
    stop_children,
    wait_until,
)
from config.launcher.production import serve_command
from config.launcher.services import create_database, start_services
from config.launcher.settings import tool_environment
from config.launcher.terminal import LauncherError, last_lines, say, step

DATABASE = "headroom_conformance"
CLIENT_PREFIX = "osc-"
MOUNT = "placement"
NEW_DEFAULTS = "HEADROOM_PLACEMENT__ENFORCE_NEW_DEFAULTS"
GROUPS = (
    "root", "resourceProviders", "traits", "resourceProviderTraits", "resourceClasses",
    "inventories", "aggregates", "allocations", "usages", "allocationCandidates", "reshaper",
)  # fmt: skip
_READY_SECONDS = 180.0
_POLL_SECONDS = 0.2
_WORD_ORDER = ("passed", "failed", "skipped", "untestable")

PROFILES: Mapping[str, Mapping[str, str]] = {
    "legacy": {"HEADROOM_PLACEMENT__ENFORCE_NEW_DEFAULTS": "false", "GRANIAN_WORKERS": "2"},
    "secure": {"HEADROOM_PLACEMENT__ENFORCE_NEW_DEFAULTS": "true"},
    "open": {"HEADROOM_PLACEMENT__POLICY_FILE": "conformance/open-policy.yaml"},
    "cors": {
        "HEADROOM_PLACEMENT__ENFORCE_NEW_DEFAULTS": "false",
        "HEADROOM_PLACEMENT__CORS_ALLOWED_ORIGIN": '["http://valid.example.com"]',
        "HEADROOM_PLACEMENT__CORS_ALLOW_HEADERS": '["openstack-api-version"]',
    },
}
"""Settings that differ between the servers; two processes must agree where most tests run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceOptions:
    """What was asked for on the command line.

    Attributes:
        only: Patterns of file names; every file when empty.
        with_details: Whether to print why tests failed.
        report: Where the JSON report goes.
        gateway: Mode in which every server stands before a real openstack-placement; empty is none.
    """

    only: tuple[str, ...]
    with_details: bool
    report: Path
    gateway: str = ""


def parse_conformance(checkout: Checkout, arguments: Sequence[str]) -> ConformanceOptions:
    """Read the options of ``./run conformance``."""
    parser = argparse.ArgumentParser(prog="./run conformance", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="files to run, such as 'allocation-*' or 'osc-*'; may be repeated",
    )
    parser.add_argument("--details", action="store_true", help="print why tests failed")
    parser.add_argument(
        "--gateway",
        choices=("passthrough", "hybrid"),
        default="",
        help="put the servers before a real openstack-placement, all groups in this mode",
    )
    default = checkout.local / "conformance" / "report.json"
    parser.add_argument("--report", type=Path, default=default, help=f"default {default}")
    known = parser.parse_args(arguments)
    return ConformanceOptions(
        only=tuple(known.only),
        with_details=known.details,
        report=known.report.resolve(),
        gateway=known.gateway,
    )


def run_conformance(
    checkout: Checkout, arguments: Sequence[str], environ: Mapping[str, str]
) -> int:
    """Serve Headroom in every profile, run the tests, print the totals; return the status."""
    listen_for_stop()
    options = parse_conformance(checkout, arguments)
    ensure_environment(checkout, "runtime")
    peer = ensure_peer(checkout)
    with ExitStack() as held:
        services = held.enter_context(start_services(checkout, "test", environ, database=DATABASE))
        held.callback(ignore_stop)
        variables = dict(services.variables)
        variables["DATABASE_URL"] = fresh_database(checkout, variables["DATABASE_URL"])
        env = {**tool_environment(checkout, environ, variables), "PYTHONUNBUFFERED": "1"}
        with step("database migrations"):
            migrate(checkout, env)
        settings = PROFILES
        if options.gateway:
            with step("openstack-placement"):
                settings = _start_upstreams(checkout, peer, options.gateway, environ, held)
        with step("servers"):
            urls = _start_servers(checkout, env, held, settings)
        return _run_programs(checkout, peer, options, urls)


def database_beside(address: str, ours: str = DATABASE) -> tuple[str, str]:
    """Return name and address of a database of our own on the server of another.

    Args:
        address: A ``DATABASE_URL``; its own database is never touched, unless it is one of ours.
        ours: What the names of ours begin with.
    """
    parts = urlsplit(address)
    given = parts.path.lstrip("/")
    name = given if given.startswith(ours) else f"{given}_{ours.removeprefix('headroom_')}"
    before, _, query = address.partition("?")
    own = f"{before.removesuffix(parts.path)}/{name}"
    return name, f"{own}?{query}" if query else own


def fresh_database(checkout: Checkout, address: str, ours: str = DATABASE) -> str:
    """Create a database of our own beside another, anew if it is there, and return its address.

    Raises:
        LauncherError: it failed.
    """
    name, own = database_beside(address, ours)
    create_database(checkout, address, name, is_anew=True)
    return own


def _start_servers(
    checkout: Checkout,
    env: Mapping[str, str],
    held: ExitStack,
    profiles: Mapping[str, Mapping[str, str]],
) -> Mapping[str, str]:
    """Start a server per profile and wait until each answers; return their addresses."""
    children: list[Child] = []
    held.callback(lambda: stop_children(children, ((signal.SIGTERM, 10.0),)))
    ports: dict[str, int] = {}
    for profile, settings in profiles.items():
        port = choose_port(0)
        metrics = checkout.local / "conformance" / f"prometheus-{profile}"
        metrics.mkdir(parents=True, exist_ok=True)
        shared = {
            **env,
            "HEADROOM_PROCESS": "web",
            "HEADROOM_DEBUG": "true",
            "HEADROOM_AUTH": "noauth",
            "HEADROOM_LOG_LEVEL": "WARNING",
            "GRANIAN_HOST": ADDRESS,
            "GRANIAN_PORT": str(port),
            "GRANIAN_WORKERS": "1",
            "GRANIAN_BLOCKING_THREADS": "4",
            "GRANIAN_WEBSOCKETS": "false",
            "PROMETHEUS_MULTIPROC_DIR": str(metrics),
            **settings,
        }
        log = checkout.logs / f"conformance-{profile}.log"
        log.unlink(missing_ok=True)
        command = serve_command(checkout, "web", [])
        children.append(start_child(profile, command, log=log, env=shared, cwd=checkout.root))
        ports[profile] = port
    for child in children:
        _wait_for(child, ports[child.name])
    return {profile: f"http://{ADDRESS}:{port}/{MOUNT}" for profile, port in ports.items()}


def _start_upstreams(
    checkout: Checkout, peer: Peer, mode: str, environ: Mapping[str, str], held: ExitStack
) -> Mapping[str, Mapping[str, str]]:
    """Start the reference for each profile, on one database; return the settings before them."""
    children: list[Child] = []
    held.callback(lambda: stop_children(children, ((signal.SIGTERM, 10.0),)))
    directory = checkout.local / "conformance"
    database = directory / "upstream.sqlite"
    database.unlink(missing_ok=True)
    found = {}
    for profile, settings in PROFILES.items():
        port = choose_port(0)
        policy = settings.get("HEADROOM_PLACEMENT__POLICY_FILE", "")
        child = start_reference(
            peer,
            directory / f"upstream-{profile}",
            port=port,
            database_url=f"sqlite:///{database}",
            environ={"PATH": environ.get("PATH", "")},
            mount=f"/{MOUNT}",
            policy_file=str(checkout.root / policy) if policy else "",
            enforces_new_defaults=settings.get(NEW_DEFAULTS, "true") == "true",
        )
        children.append(child)
        if not wait_until(partial(_answers_versions, port), _READY_SECONDS):
            raise LauncherError(
                f"openstack-placement does not answer ({child.log}):\n{last_lines(child.log, 20)}"
            )
        found[profile] = {
            **settings,
            "HEADROOM_GATEWAY__UPSTREAM_URL": f"http://{ADDRESS}:{port}/{MOUNT}",
            "HEADROOM_GATEWAY__MODES": json.dumps(dict.fromkeys(GROUPS, mode)),
            "HEADROOM_GATEWAY__TOKEN": "admin",
        }
    return found


def _answers_versions(port: int) -> bool:
    link = http.client.HTTPConnection(ADDRESS, port, timeout=_POLL_SECONDS * 10)
    try:
        link.request("GET", f"/{MOUNT}/")
        return link.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        link.close()


def _wait_for(child: Child, port: int) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not answers_healthz(port):
        if child.process.poll() is not None or time.monotonic() > deadline:
            raise LauncherError(
                f"the server of profile {child.name} does not answer ({child.log}):\n"
                f"{last_lines(child.log, 20)}"
            )
        time.sleep(_POLL_SECONDS)


def _run_programs(
    checkout: Checkout, peer: Peer, options: ConformanceOptions, urls: Mapping[str, str]
) -> int:
    """Run both programs, merge their reports, print the totals; return the exit status."""
    options.report.parent.mkdir(parents=True, exist_ok=True)
    env = {"PATH": f"{peer.python.parent}:/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
    addresses = [word for profile, url in urls.items() for word in (f"--{profile}", url)]
    programs = {
        "public_suite.py": addresses,
        "client_suite.py": ["--url", urls["legacy"]],
    }
    reports, codes = [], []
    for program, arguments in programs.items():
        if not is_wanted(program, options.only):
            continue
        part = options.report.with_name(f"{Path(program).stem}.json")
        part.unlink(missing_ok=True)
        command = [str(peer.python), str(checkout.root / "conformance" / program), *arguments]
        command += ["--report", str(part)]
        command += [word for pattern in options.only for word in ("--only", pattern)]
        command += ["--details"] if options.with_details else []
        codes.append(run_in_foreground(command, env=env, cwd=options.report.parent))
        if part.exists():
            reports.append(json.loads(part.read_text(encoding="utf-8")))
            part.unlink()
    options.report.write_text(json.dumps(reports, indent=1) + "\n", encoding="utf-8")
    return conclude(options, reports, codes)


def is_wanted(program: str, only: Sequence[str]) -> bool:
    """Return whether patterns can match files of a program."""
    if not only:
        return True
    of_client = [each.startswith((CLIENT_PREFIX, "*")) for each in only]
    return (
        any(of_client)
        if program.startswith("client")
        else not all(fnmatch.fnmatch(each, f"{CLIENT_PREFIX}*") for each in only)
    )


def conclude(
    options: ConformanceOptions, reports: Sequence[Mapping[str, object]], codes: Sequence[int]
) -> int:
    """Print the totals and return the exit status: 0 only if every test program passed.

    Raises:
        LauncherError: no test was run.
    """
    totals = dict.fromkeys(_WORD_ORDER, 0)
    for report in reports:
        counted = report["totals"]
        if isinstance(counted, dict):
            for word, number in counted.items():
                totals[word] += number
        say(f"{report['suite']}: {_words(counted)}")
    say(f"report: {options.report}")
    say(f"{totals['passed']} passed, {totals['failed']} failed")
    if not sum(totals.values()):
        raise LauncherError("no test was run")
    if any(code > 1 for code in codes):
        return max(codes)
    return int(totals["failed"] > 0 or any(codes))


def _words(counted: object) -> str:
    if not isinstance(counted, dict):
        return ""
    return ", ".join(f"{counted[word]} {word}" for word in _WORD_ORDER if counted.get(word))
