"""``manage.py host_agent token`` and ``key``: what operators do about agents (spec hosts, D.4)."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

from django.core.management.base import OutputWrapper

from hosts.agents.commands import AgentCommand, command_agent
from hosts.agents.enrolment import create_token, revoke_key, revoke_token
from hosts.agents.exporting import results_export
from hosts.agents.leases import fence
from hosts.agents.models import AgentMode, EnrolmentToken, HostKey, ServerKey
from hosts.agents.modes import decommission, renew_timelines, set_mode
from hosts.agents.rollout_models import AgentRollout
from hosts.agents.rollouts import look_at_rollout, resume_rollout, start_rollout, stop_rollout
from hosts.agents.server_keys import rotate_server_key, signer
from hosts.agents.workloads import delete_forgotten
from journal.actors import Actor, command_actor
from journal.errors import InvalidInput

OF_AGENTS = ("fence", "mode", "tell", "decommission", "remove", "timeline", "export")
COMMANDS = ("token", "key", "server-key", "rollout", *OF_AGENTS)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def operate(arguments: Sequence[str], *, program: str, out: OutputWrapper) -> None:
    """Run a command.

    Raises:
        InvalidInput: What is asked is out of bounds.
        SystemExit: The arguments are wrong.
    """
    options = _parser(program).parse_args(arguments)
    actor, request_id = command_actor("host_agent"), str(uuid4())
    match (options.command, getattr(options, "work", "")):
        case ("token", "create"):
            token = create_token(
                name_glob=options.name,
                uses=options.uses,
                lifetime=options.ttl,
                actor=actor,
                request_id=request_id,
            )
            out.write(token)
        case ("token", "revoke"):
            revoke_token(pk=options.id, actor=actor, request_id=request_id)
        case (command, _) if command in OF_AGENTS:
            _agent(options, actor=actor, request_id=request_id, out=out)
        case ("token", "list"):
            for token_row in EnrolmentToken.objects.all():
                out.write(
                    f"{token_row.pk}  {token_row.name_glob}  {token_row.uses_left} uses left  "
                    f"until {token_row.expires_at:%Y-%m-%d %H:%M} UTC  by {token_row.created_by}"
                )
        case ("rollout" | "server-key", work):
            of = _rollout if options.command == "rollout" else _server_key
            of(work, options, actor=actor, request_id=request_id, out=out)
        case ("key", "revoke"):
            row = HostKey.objects.filter(kid=options.kid).first()
            if row is None:
                raise InvalidInput(f"there is no key {options.kid!r}", field="kid")
            revoke_key(pk=row.pk, actor=actor, request_id=request_id)
        case _:
            for key in HostKey.objects.select_related("agent").order_by("agent__host_name", "pk"):
                out.write(f"{key.kid}  {key.agent.host_name}  {key.state}")


def _agent(
    options: argparse.Namespace, *, actor: Actor, request_id: str, out: OutputWrapper
) -> None:
    match options.command:
        case "export":
            out.write(json.dumps(results_export(options.host), indent=1))
        case "fence":
            epoch = fence(options.host, actor=actor, request_id=request_id, reason=options.reason)
            out.write(f"{options.host} is down, its epoch is {epoch}")
        case "mode":
            set_mode(
                options.host,
                AgentMode(options.mode),
                actor=actor,
                request_id=request_id,
                reason=options.reason,
            )
        case "tell":
            identity = command_agent(
                options.host,
                AgentCommand(options.order),
                actor=actor,
                request_id=request_id,
                reason=options.reason,
            )
            out.write(f"{options.order} is told as {identity}")
        case "remove":
            state = delete_forgotten(
                options.host,
                options.id,
                options.type,
                actor=actor,
                request_id=request_id,
                reason=options.reason,
            )
            out.write(f"{options.id} is {state}")
        case "decommission":
            decommission(
                options.host,
                actor=actor,
                request_id=request_id,
                reason=options.reason,
                is_forced=options.force,
            )
        case _:
            count = renew_timelines(actor=actor, request_id=request_id)
            out.write(f"{count} agents ask for everything anew")


def _rollout(
    work: str, options: argparse.Namespace, *, actor: Actor, request_id: str, out: OutputWrapper
) -> None:
    match work:
        case "start":
            start_rollout(
                options.version, actor=actor, request_id=request_id, reason=options.reason
            )
        case "resume":
            resume_rollout(actor=actor, request_id=request_id, reason=options.reason)
        case "stop":
            stop_rollout(actor=actor, request_id=request_id, reason=options.reason)
        case _:
            look_at_rollout(actor=actor, request_id=request_id)
    row = AgentRollout.objects.first()
    if row is None:
        out.write("no version was ever rolled out")
        return
    stands = "is halted" if row.halted_at else "goes on" if row.is_open else "is over"
    out.write(f"{row.version} {stands}; waves: {', '.join(row.waves) or 'none yet'}")
    for host in row.failing:
        out.write(f"fails: {host}")


def _server_key(
    work: str, _: argparse.Namespace, *, actor: Actor, request_id: str, out: OutputWrapper
) -> None:
    if work == "rotate":
        out.write(rotate_server_key(actor=actor, request_id=request_id))
        return
    signer()
    for row in ServerKey.objects.all():
        out.write(f"{row.kid}  {row.state}")


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    token = commands.add_parser("token").add_subparsers(dest="work", required=True)
    create = token.add_parser("create", help="let agents enrol; the token is printed this once")
    create.add_argument("--name", required=True, help="pattern of the hosts' names: 'node0*'")
    create.add_argument("--uses", type=int, default=1, help="how many agents may enrol")
    create.add_argument("--ttl", type=_duration, default=_duration("1h"), help="30m, 1h, 7d")
    token.add_parser("list", help="tokens that there were, the last first")
    token.add_parser("revoke", help="let no agent enrol any more").add_argument("id", type=int)
    key = commands.add_parser("key").add_subparsers(dest="work", required=True)
    key.add_parser("list", help="keys of agents")
    key.add_parser("revoke", help="take nothing more of an agent").add_argument("kid")
    ours = commands.add_parser("server-key").add_subparsers(dest="work", required=True)
    ours.add_parser("list", help="keys that we sign with, the last first")
    ours.add_parser("rotate", help="sign with a new key; before HEADROOM_SECRET_KEY changes")
    rollout = commands.add_parser("rollout").add_subparsers(dest="work", required=True)
    start = rollout.add_parser("start", help="have hosts run a version, wave after wave")
    start.add_argument("version", help="of the agent, such as 1.2.3")
    words = {"resume": "go on after a halt", "stop": "tell no host a version any more"}
    for made in (start, *(rollout.add_parser(name, help=told) for name, told in words.items())):
        made.add_argument("--reason", required=True)
    rollout.add_parser("status", help="look how it stands")
    export = commands.add_parser("export", help="what an agent signed, for verify --offline")
    export.add_argument("host", help="its name")
    fencing = commands.add_parser("fence", help="end what an agent was told, at once")
    fencing.add_argument("host", help="its name")
    fencing.add_argument("--reason", required=True)
    mode = commands.add_parser("mode", help="let an agent make the slots of its host, or not")
    mode.add_argument("host", help="its name")
    mode.add_argument("mode", choices=AgentMode.values)
    mode.add_argument("--reason", default="")
    telling = commands.add_parser("tell", help="have an agent do something")
    telling.add_argument("host", help="its name")
    telling.add_argument("order", choices=AgentCommand.values)
    telling.add_argument("--reason", required=True)
    ending = commands.add_parser("decommission", help="have nothing more to do with an agent")
    ending.add_argument("host", help="its name")
    ending.add_argument("--reason", required=True)
    ending.add_argument("--force", action="store_true", help="in spite of workloads and VMs")
    removing = commands.add_parser("remove", help="have an agent remove what a backup forgot")
    removing.add_argument("host", help="its name")
    removing.add_argument("id", help="what the agent calls it: 42-1")
    removing.add_argument("--type", required=True, help="of its provisioner, as the agent says")
    removing.add_argument("--reason", required=True)
    timeline = commands.add_parser("timeline").add_subparsers(dest="work", required=True)
    timeline.add_parser("renew", help="after a backup was restored: agents ask for all anew")
    return parser


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"([0-9]{1,7})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration like 30m, 1h or 7d")
    return timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
