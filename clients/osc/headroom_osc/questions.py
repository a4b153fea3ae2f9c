"""Commands about one thing: a commitment, a change that is not made, hosts to be drained."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from osc_lib.cli.format_columns import DictColumn, ListColumn, ListDictColumn
from osc_lib.command import command

from headroom_osc.client import Capacity, capacity_of

FAR_AWAY = "2100-01-01T00:00:00Z"


class ShowAnswer(command.ShowOne):
    """The members of an answer; the exit status is 1 where it is a no."""

    is_no = False

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Return the exit status."""
        status: int = super().run(parsed_args)
        return status or int(self.is_no)

    @property
    def capacity(self) -> Capacity:
        """What is asked."""
        return capacity_of(self.app.client_manager)

    def shown(self, answer: dict[str, Any]) -> Any:  # Any: cliff's
        """Return names and values; lists and objects stay such for programs."""
        return tuple(answer), tuple(_column(value) for value in answer.values())


class ShowCommitment(ShowAnswer):
    """Show one commitment."""

    where = "/commitments/"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare which."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("commitment", metavar="<uuid>")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:  # Any: cliff's
        """Return what is known of it."""
        return self.shown(self.capacity.get(self.where + quote(parsed_args.commitment, safe="")))


class ExplainCommitment(ShowCommitment):
    """Explain a commitment: what it holds, where, and why."""

    where = "/explanations/commitments/"


class WhatIf(ShowAnswer):
    """Say whether a new commitment would be accepted; writes nothing."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the commitment, and the hosts that are supposed to be gone."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--zone", required=True, metavar="<zone>")
        parser.add_argument("--project", required=True, metavar="<id>")
        parser.add_argument(
            "--resource", required=True, metavar="<name>", help="Such as hw_version_hana_v1_ram"
        )
        parser.add_argument(
            "--amount", required=True, type=int, metavar="<units>", help="In units of the resource"
        )
        parser.add_argument("--expires", default=FAR_AWAY, metavar="<time>")
        parser.add_argument("--at", metavar="<time>", help="When it is asked; now unless given")
        parser.add_argument(
            "--added",
            action="append",
            default=[],
            type=_added_hosts,
            metavar="<host>=<count>",
            help="Empty hosts that are supposed to be there, like one that is",
        )
        parser.add_argument("--drained", action="append", default=[], metavar="<host>")
        parser.add_argument("--failed", action="append", default=[], metavar="<host>")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:  # Any: cliff's
        """Ask, and return the decision."""
        commitment = {
            "uuid": "what-if-1",
            "oldStatus": None,
            "newStatus": "confirmed",
            "amount": parsed_args.amount,
            "expiresAt": parsed_args.expires,
        }
        by_resource = {parsed_args.resource: {"commitments": [commitment]}}
        question = {
            "batch": {
                "az": parsed_args.zone,
                "byProject": {parsed_args.project: {"byResource": by_resource}},
            },
            "at": parsed_args.at,
            "edit": {
                "hosts_added": parsed_args.added,
                "hosts_drained": parsed_args.drained,
                "hosts_failed": parsed_args.failed,
            },
        }
        answer = self.capacity.post("/commitments/what-if", question)
        self.is_no = not answer["accepted"]
        return self.shown(answer)


class CheckDrain(ShowAnswer):
    """Say whether hosts may be drained together, what would move, and when it is safe next."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the hosts."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("hosts", nargs="+", metavar="<host>")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:  # Any: cliff's
        """Ask, and return the answer."""
        answer = self.capacity.post("/failover/drain-check", {"hosts": parsed_args.hosts})
        self.is_no = not answer["safe"]
        return self.shown(answer)


def _added_hosts(text: str) -> dict[str, Any]:
    name, _, count = text.rpartition("=")
    if not name or not count.isdecimal():
        raise argparse.ArgumentTypeError("must be a host and how many like it, as in node001=20")
    return {"like": name, "count": int(count)}


def _column(value: Any) -> Any:  # Any: JSON
    if isinstance(value, dict):
        return DictColumn(value)
    if isinstance(value, list):
        return (
            ListDictColumn(value)
            if any(isinstance(one, dict) for one in value)
            else ListColumn(value)
        )
    return value
