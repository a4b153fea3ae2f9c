"""The agent's commands. ``discover`` needs no server, ``enrol`` and ``run`` speak to Headroom."""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from headroom_host_agent.configuration import DEFAULT_FILE, ConfigurationError, load_settings
from headroom_host_agent.process.agent import Agent, Parts
from headroom_host_agent.process.commands import handlers, readings
from headroom_host_agent.process.control import Control, ControlError, ask
from headroom_host_agent.process.metrics import serve
from headroom_host_agent.process.rotation import rotate
from headroom_host_agent.process.settings import AgentSettings
from headroom_host_agent.provision.built_in import built_in
from headroom_host_agent.provision.built_in.base import Place
from headroom_host_agent.provision.proofs import verify_export
from headroom_host_agent.provision.provisioners import load_provisioners
from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.provision.stored import StoreError
from headroom_host_agent.resources.facts import ResourceError, ResourceType
from headroom_host_agent.resources.libvirt import LibvirtLister
from headroom_host_agent.resources.listers import Listers, configured_listers, load_listers
from headroom_host_agent.resources.manager import Manager
from headroom_host_agent.resources.sizes import binary_size
from headroom_host_agent.resources.status import FullResourceStatus, ResourceStatus
from headroom_host_agent.resources.tree import SYSTEM, read_or_none
from headroom_host_agent.server.client import (
    Address,
    Client,
    RefusedError,
    ServerError,
    host_name,
)
from headroom_host_agent.server.identity import (
    Enrolled,
    Identity,
    IdentityError,
    load_identity,
    new_identity,
    save_identity,
)
from headroom_host_agent.server.refusals import EndedError

RUNTIME, CONFIGURATION, REFUSED, ENDED = 1, 2, 3, 4
GPU_HEALTH = "gpu-health.json"  # in the data folder
LOCK = "run.lock"  # in the data folder
STORE = "agent.sqlite"  # likewise
BOOT_ID = "proc/sys/kernel/random/boot_id"

log = logging.getLogger(__name__)
_Work = Callable[[argparse.Namespace, AgentSettings], None]
_ASKED = {
    "status": "how the running agent is",
    "counters": "what runs, a line every two seconds",
    "decommission": "remove a workload that is beyond repair, and tell why",
    "cleanup": "remove what was left behind",
    "verify": "look whether all is as it was made",
    "confirm": "take what is stored as all there is, after a damaged store was moved aside",
}


class AgentRunsError(IdentityError):
    """Another agent runs on the data folder."""


def main(arguments: Sequence[str] | None = None, *, program: str = "headroom-host-agent") -> int:
    """Run a command and return its exit code.

    0, 1 for a failure, 2 for a wrong configuration, 3 when the server refuses the enrolment, 4 when
    it takes nothing more of this agent.
    """
    options = _parser(program).parse_args(arguments)
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr)
    file = options.config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    try:
        settings = load_settings(file, os.environ)
        options.work(options, settings)
    except ConfigurationError as error:
        return _refused(program, error, CONFIGURATION)
    except RefusedError as error:
        is_enrolment = options.command == "enrol"
        return _refused(program, error, REFUSED if is_enrolment else RUNTIME)
    except EndedError as error:
        return _refused(program, error, ENDED)
    except (
        ResourceError,
        IdentityError,
        ServerError,
        StoreError,
        ControlError,
        OSError,
        ValueError,
    ) as error:
        return _refused(program, error, RUNTIME)
    return 0


def _discover(options: argparse.Namespace, settings: AgentSettings) -> None:
    listers = _listers(options, settings)
    report = _manager(options, settings, listers).get_full_status()
    text = json.dumps(report.to_json()) if options.json else "\n".join(_lines(report))
    sys.stdout.write(text + "\n")


def _enrol(options: argparse.Namespace, settings: AgentSettings) -> None:
    """Enrol with a key that is kept before it is sent: a lost answer is asked for again."""
    folder = _data_folder(options, settings)
    identity = load_identity(folder)
    if identity is not None and identity.is_enrolled and not options.again:
        raise IdentityError(f"enrolled already as {identity.host_id}; --again makes a new key")
    if identity is None or identity.is_enrolled:
        identity = new_identity()
    client = _client(settings)
    token = options.token or sys.stdin.readline().strip()
    if not token:
        raise ConfigurationError("--token", "", "must be the token that an operator created")
    save_identity(folder, identity)
    enrolled = client.enrol(identity, token=token, name=options.name or host_name())
    save_identity(folder, enrolled)
    sys.stdout.write(f"enrolled as {enrolled.host_id}, key {enrolled.kid}\n")


def _run(options: argparse.Namespace, settings: AgentSettings) -> None:
    folder = _data_folder(options, settings)
    identity = _enrolled_identity(folder)
    with _alone(folder):
        _run_alone(options, settings, folder, identity)


def _run_alone(
    options: argparse.Namespace, settings: AgentSettings, folder: Path, identity: Identity
) -> None:
    store = SqliteStore(folder / STORE)
    provisioners, failed = load_provisioners(
        settings.provisioners,
        built_in(
            Place(
                sysroot=options.sysroot,
                data_dir=folder,
                enforce=settings.enforce,
                cap_slices=settings.cap_slices,
            )
        ),
    )
    client = _client(settings)

    def before_epoch() -> None:
        log.warning("another epoch begins: all is compared")
        store.begin_resync(ends_epoch=True)
        client.cut()

    listers = _listers(options, settings)
    agent = Agent(
        Parts(
            settings=settings,
            folder=folder,
            manager=_manager(options, settings, listers),
            instances=(
                None if listers.instances is None else listers.instances.list_instance_allocations
            ),
            sysroot=options.sysroot,
            client=client,
            enrolled=Enrolled(folder, identity, before_epoch=before_epoch),
            store=store,
            provisioners=provisioners,
            failed_provisioners=failed,
            boot_id=read_or_none(options.sysroot / BOOT_ID) or "",
            takes_over=options.takeover,
        )
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop.set())
    try:
        if settings.metrics_port:
            serve(settings.metrics_port, lambda: readings(agent), agent.stop)
        beside = [Control(folder, handlers(agent)).run]
        if isinstance(listers.instances, LibvirtLister):
            listers.instances.changed = agent.report_soon
            beside.append(listers.instances.watch)
        agent.run(*beside)
    finally:
        store.close()


def _asks(command: str) -> _Work:
    """Return a command that the running agent carries out."""

    def work(options: argparse.Namespace, settings: AgentSettings) -> None:
        names = ("gwid", "reason", "dry_run")
        facts = {name: getattr(options, name) for name in names if hasattr(options, name)}
        failed = False
        for line in ask(_data_folder(options, settings), command, **facts):
            text = line if isinstance(line, str) else json.dumps(line)
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
            failed |= isinstance(line, dict) and line.get("ok") is False
        if failed:
            raise ControlError("something is not as it was made")

    return work


def _verify(options: argparse.Namespace, settings: AgentSettings) -> None:
    """Have the running agent look; or verify what agents signed, with nothing but a file."""
    if options.offline is None:
        if options.key:
            raise ConfigurationError("--key", options.key[0], "is for --offline")
        _asks("verify")(options, settings)
        return
    holds = problems = 0
    try:
        findings = list(verify_export(json.loads(options.offline.read_bytes()), options.key))
    except RecursionError:
        raise ValueError(f"{options.offline}: it is too deep") from None
    for finding in findings:
        holds += not finding.problem
        problems += bool(finding.problem)
        line = {
            "reservation": finding.reservation_id,
            "attempt": finding.attempt,
            "state": finding.state,
            "key": finding.kid,
            "ok": not finding.problem,
        }
        if finding.problem:
            line["problem"] = finding.problem
        sys.stdout.write(json.dumps(line) + "\n")
    if problems:
        raise ControlError(f"{holds} results hold, {problems} do not")


def _rotate_key(options: argparse.Namespace, settings: AgentSettings) -> None:
    """Have the running agent do it, which has the key in memory; without one do it here."""
    folder = _data_folder(options, settings)
    try:
        with _alone(folder):
            identity = _enrolled_identity(folder)
            kid = rotate(folder, _client(settings), Enrolled(folder, identity))
            sys.stdout.write(f"the key is {kid}\n")
    except AgentRunsError:
        _asks("rotate-key")(options, settings)


def _enrolled_identity(folder: Path) -> Identity:
    identity = load_identity(folder)
    if identity is None or not identity.is_enrolled:
        raise IdentityError("this agent is not enrolled: headroom-host-agent enrol --token TOKEN")
    return identity


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other agents off a data folder.

    Raises:
        AgentRunsError: Another agent runs on it.
    """
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AgentRunsError(f"another agent runs on {folder}") from None
        yield


def _listers(options: argparse.Namespace, settings: AgentSettings) -> Listers:
    listers = load_listers(configured_listers(settings, options.sysroot))
    if settings.libvirt_uri:
        return replace(listers, instances=LibvirtLister(settings.libvirt_uri))
    return listers


def _manager(options: argparse.Namespace, settings: AgentSettings, listers: Listers) -> Manager:
    manager = Manager(
        settings,
        listers,
        sysroot=options.sysroot,
        gpu_health_file=_data_folder(options, settings) / GPU_HEALTH,
    )
    manager.initialize()
    return manager


def _client(settings: AgentSettings) -> Client:
    if not settings.server_url:
        raise ConfigurationError("server.url", "", "must be the address of Headroom")
    return Client(Address(url=settings.server_url, ca=settings.server_ca))


def _data_folder(options: argparse.Namespace, settings: AgentSettings) -> Path:
    folder: Path = options.sysroot / settings.data_dir.relative_to("/")
    return folder


def _refused(program: str, error: Exception, code: int) -> int:
    sys.stderr.write(f"{program}: {error}\n")
    return code


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, prog=program)
    discover = commands.add_parser("discover", help="what this host has and gives away")
    discover.add_argument("--json", action="store_true", help="the whole report")
    enrol = commands.add_parser("enrol", help="become known to Headroom")
    enrol.add_argument("--token", help="that an operator created, else the first line of the input")
    enrol.add_argument("--name", help="of the host in Headroom, else its full name")
    enrol.add_argument("--again", action="store_true", help="with a new key, after a revocation")
    run = commands.add_parser("run", help="report to Headroom until stopped")
    run.add_argument("--takeover", action="store_true", help="take the lease of another run")
    works: list[tuple[argparse.ArgumentParser, _Work]] = [
        (discover, _discover),
        (enrol, _enrol),
        (run, _run),
    ]
    rotation = commands.add_parser("rotate-key", help="go on with a new key")
    works.append((rotation, _rotate_key))
    for name, text in _ASKED.items():
        command = commands.add_parser(name, help=text)
        works.append((command, _verify if name == "verify" else _asks(name)))
        if name == "decommission":
            command.add_argument("gwid", help="of the reservation, such as 42-1")
            command.add_argument("--reason", required=True, help="is told to Headroom")
        if name == "verify":
            command.add_argument(
                "--offline",
                type=Path,
                metavar="FILE",
                help="whether results of agents hold, as an export of Headroom has them",
            )
            command.add_argument(
                "--key",
                action="append",
                default=[],
                metavar="KID",
                help="trust no other keys of the export than those of these names",
            )
        if name == "cleanup":
            command.add_argument("--dry-run", action="store_true", help="say what would be done")
    for command, work in works:
        command.set_defaults(work=work)
        command.add_argument("--config", type=Path, help=f"configuration, else {DEFAULT_FILE}")
        command.add_argument(
            "--sysroot", type=Path, default=SYSTEM, help="where /proc and /sys are, for a copy"
        )
    return parser


def _lines(report: FullResourceStatus) -> list[str]:
    rows = [("", "capacity", "limit", "allocated", "available", "source")]
    rows += [_row(status) for status in report.resources.values()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    if report.gpu is not None:
        lines.append(f"gpu: {json.dumps(report.gpu.to_json())}")
    lines += [f"numa: {json.dumps(status.to_json())}" for status in report.cells]
    return lines


def _row(status: ResourceStatus) -> tuple[str, str, str, str, str, str]:
    def text(amount: int) -> str:
        if status.type == ResourceType.CPU:
            return str(amount)
        rates = (ResourceType.NETWORK, ResourceType.DISK_IO)
        return binary_size(amount) + ("/s" if status.type in rates else "")

    return (
        status.type.value,
        text(status.capacity),
        text(status.effective_limit),
        text(status.allocated),
        text(status.available),
        status.source.value,
    )
