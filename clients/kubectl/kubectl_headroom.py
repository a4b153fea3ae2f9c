#!/usr/bin/env python3
"""kubectl headroom: ask Headroom about commitments and hosts of the cluster that kubectl speaks to.

Where Headroom is, the ConfigMap ``headroom`` says (key ``url``, and ``ca.crt`` for a certificate of
one's own); kubectl itself reads it, with the kubeconfig, context and login that it has anyway. Who
asks, the environment says: HEADROOM_TOKEN, or a file named by HEADROOM_TOKEN_FILE.

Exit status: 0 for yes, 1 for no (a host that is not safe to drain, a batch that is refused), 2 when
there is no answer.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

CONFIG_MAP = "headroom"
TIMEOUT_SECONDS = 120
GIB = 1 << 30
INTERRUPTED = 130
#: A commitment as ``kubectl get -o name`` has it, with the region that its name may end with.
OBJECT_NAME = re.compile(r"(?:[^/]+/)?commitment-([0-9a-fA-F-]{36})(?:\..*)?")


class NoAnswerError(Exception):
    """Nobody answered, or nobody could be asked."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, print the answer, and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        answer = options.ask(Platform(options), options)
        lines, status = _shown(answer, options)
    except NoAnswerError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    try:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _shown(answer: Any, options: argparse.Namespace) -> tuple[list[str], int]:
    """Return lines and exit status."""
    try:
        status = 0 if options.is_yes(answer) else 1
        shown = list(options.show(answer))
    except (KeyError, TypeError, AttributeError) as error:
        raise NoAnswerError("this is no answer of Headroom: does the url lead to it?") from error
    return ([json.dumps(answer, indent=2)] if options.output == "json" else shown), status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl headroom", description="Ask Headroom about commitments and hosts."
    )
    parser.set_defaults(kubeconfig=None, context=None, namespace="headroom", output="text")
    _add_common(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    explain = commands.add_parser("explain", help="what a commitment holds, where, and why")
    explain.add_argument("commitment", metavar="COMMITMENT", help="its UUID, or its object's name")
    explain.set_defaults(ask=ask_explain, show=show_explain, is_yes=lambda answer: True)

    what_if = commands.add_parser("what-if", help="would a new commitment be accepted?")
    what_if.add_argument("--zone", help="availability zone")
    what_if.add_argument("--project", help="id of the project")
    what_if.add_argument("--resource", help="such as hw_version_hana_v1_ram")
    what_if.add_argument("--amount", type=int, help="in units of the resource")
    what_if.add_argument("--expires", metavar="TIME", default="2100-01-01T00:00:00Z")
    what_if.add_argument("--drained", metavar="HOST", action="append", default=[])
    what_if.add_argument("--failed", metavar="HOST", action="append", default=[])
    what_if.add_argument("--added", metavar="LIKE=COUNT", action="append", default=[])
    what_if.add_argument("-f", "--file", help="the whole question as JSON; - is the input")
    what_if.set_defaults(ask=ask_what_if, show=show_what_if, is_yes=lambda a: a["accepted"])

    drain = commands.add_parser("drain-check", help="is it safe to empty these hosts together?")
    drain.add_argument("hosts", metavar="HOST", nargs="+")
    drain.set_defaults(ask=ask_drain, show=show_drain, is_yes=lambda answer: answer["safe"])
    for command in (explain, what_if, drain):
        _add_common(command)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Take these before the command as well as after it."""
    left_out = argparse.SUPPRESS
    parser.add_argument("--kubeconfig", default=left_out, help="as of kubectl")
    parser.add_argument("--context", default=left_out, help="as of kubectl")
    parser.add_argument(
        "-n", "--namespace", default=left_out, help="where the ConfigMap headroom is (headroom)"
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default=left_out)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as it is: it would take the token to another place."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


class Platform:
    """Headroom, as the cluster knows it."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Look it up."""
        found = _config_map(options)
        self._url = (found.get("url") or "").strip().rstrip("/")
        if not _is_url(self._url):
            raise NoAnswerError(f"the ConfigMap {CONFIG_MAP} has no url of http or https")
        self._token = _token()
        try:
            context = ssl.create_default_context(cadata=found.get("ca.crt") or None)
        except (OSError, ValueError) as error:
            raise NoAnswerError(f"ca.crt of the ConfigMap {CONFIG_MAP}: {error}") from error
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _NoRedirects
        )

    def ask(self, path: str, question: Any = None) -> Any:  # Any: JSON, here and below
        """Return the answer: of a GET, or of a POST if there is a question."""
        body = None if question is None else json.dumps(question).encode()
        headers = {"X-Auth-Token": self._token, "Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, body, headers)  # noqa: S310 - checked
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise NoAnswerError(_refusal(error)) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise NoAnswerError(f"{self._url}: {error or type(error).__name__}") from error


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _refusal(error: urllib.error.HTTPError) -> str:
    try:
        problem = json.load(error)
        return f"{problem['detail']} ({error.code}, {problem['code']})"
    except (ValueError, KeyError, TypeError, OSError):
        return f"{error.url}: status {error.code}"


def _token() -> str:
    token = os.environ.get("HEADROOM_TOKEN", "")
    file = os.environ.get("HEADROOM_TOKEN_FILE")
    if not token and file:
        try:
            token = Path(file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise NoAnswerError(f"HEADROOM_TOKEN_FILE: {error}") from error
    token = token.strip()
    if not token:
        raise NoAnswerError("HEADROOM_TOKEN or HEADROOM_TOKEN_FILE has to say who asks")
    if not (token.isascii() and token.isprintable()):  # and never in a message
        raise NoAnswerError("HEADROOM_TOKEN or HEADROOM_TOKEN_FILE is no token: odd characters")
    return token


def _config_map(options: argparse.Namespace) -> dict[str, str]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise NoAnswerError("no kubectl on the path")
    command = [kubectl, "get", "configmap", CONFIG_MAP, "-o", "json", "-n", options.namespace]
    for name in ("kubeconfig", "context"):
        if getattr(options, name):
            command += [f"--{name}", getattr(options, name)]
    try:
        done = subprocess.run(  # noqa: S603 - the user's own words
            command, capture_output=True, check=False, timeout=TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswerError(f"kubectl: {error}") from error
    if done.returncode != 0:
        *_, said = ["", *done.stderr.decode(errors="replace").strip().splitlines()]
        raise NoAnswerError(f"the ConfigMap {CONFIG_MAP} in {options.namespace}: {said}")
    found: dict[str, str] = json.loads(done.stdout).get("data") or {}
    return found


def ask_explain(platform: Platform, options: argparse.Namespace) -> Any:
    """Ask what a commitment holds."""
    named = OBJECT_NAME.fullmatch(options.commitment)
    uuid = named.group(1) if named else options.commitment
    return platform.ask(f"/api/v1/explanations/commitments/{quote(uuid, safe='')}")


def show_explain(answer: Any) -> Iterator[str]:
    """Yield the lines of an explanation."""
    yield f"commitment {answer['commitment_uuid']}: {answer['state']}, {answer['condition']}"
    yield (
        f"{answer['flavor_group']} {answer['resource_type']} in {answer['zone']}, "
        f"project {answer['project_name'] or answer['project_id']}"
    )
    yield f"why: {answer['why']}"
    for slot in answer["slots"]:
        where = f"on {slot['host']}" if slot["host"] else f"not placed: {slot['message']}"
        yield f"  slot {slot['slot_index']}: {slot['flavor']}, {where}"
        for vm in slot["vms"]:
            yield f"    VM {vm['vm_uuid']} {vm['state']}"
    for event in answer["events"]:
        yield f"  {event['created_at']}  {event['action']} by {event['actor']}"
        if event["reason"]:
            yield f"    {event['reason']}"


def ask_what_if(platform: Platform, options: argparse.Namespace) -> Any:
    """Ask what would be decided."""
    return platform.ask("/api/v1/commitments/what-if", _question(options))


def _question(options: argparse.Namespace) -> Any:
    if options.file:
        try:
            with sys.stdin if options.file == "-" else Path(options.file).open() as stream:
                return json.load(stream)
        except (OSError, ValueError) as error:
            raise NoAnswerError(f"{options.file}: {error}") from error
    missing = [
        f"--{name}"
        for name in ("zone", "project", "resource", "amount")
        if getattr(options, name) is None
    ]
    if missing:
        raise NoAnswerError(f"what-if needs {', '.join(missing)}, or a question in a file (-f)")
    commitment = {
        "uuid": "what-if-1",
        "oldStatus": None,
        "newStatus": "confirmed",
        "amount": options.amount,
        "expiresAt": options.expires,
    }
    resources = {options.resource: {"commitments": [commitment]}}
    return {
        "batch": {"az": options.zone, "byProject": {options.project: {"byResource": resources}}},
        "edit": {
            "hosts_added": [_added(text) for text in options.added],
            "hosts_drained": options.drained,
            "hosts_failed": options.failed,
        },
    }


def _added(text: str) -> dict[str, Any]:
    like, _, count = text.partition("=")
    if not count.isdigit():
        raise NoAnswerError(f"--added {text}: has to be a host and a number, such as node001=2")
    return {"like": like, "count": int(count)}


def show_what_if(answer: Any) -> Iterator[str]:
    """Yield the lines of what would be decided."""
    yield "accepted" if answer["accepted"] else "refused"
    for decision in answer["decisions"]:
        if decision["message"]:
            yield f"  {decision['message']}"
        if decision["cause"]:
            yield f"  {decision['cause']}"
        if decision["fits_now_units"] is not None:
            yield f"  fits now: {decision['fits_now_units']} units"
        for host, count in decision["new_slots_by_host"].items():
            yield f"  {count} slots on {host}"
    for one in answer["unplaced"]:
        yield f"  no room for {one['what']}: {one['memory_bytes'] / GIB:g} GiB"
    if answer["fits_in_zones"]:
        yield f"  fits in {', '.join(answer['fits_in_zones'])}"
    if answer["retry_at"]:
        yield f"  fits from {answer['retry_at']}"


def ask_drain(platform: Platform, options: argparse.Namespace) -> Any:
    """Ask whether hosts may be emptied."""
    return platform.ask("/api/v1/failover/drain-check", {"hosts": options.hosts})


def show_drain(answer: Any) -> Iterator[str]:
    """Yield the lines of a drain check."""
    hosts = ", ".join(answer["hosts"])
    yield f"{hosts}: {'safe' if answer['safe'] else 'not safe to drain'}"
    for blocker in answer["blockers"]:
        yield f"  {blocker}"
    for one in answer["stranded_commitments"]:
        yield f"  commitment {one['commitment']} loses {one['slots']} slots"
    for one in answer["stuck"]:
        yield f"  {one['kind']} {one['key']} on {one['host']}: {one['reason']}"
    for one in answer["weakened_vms"]:
        yield f"  VM {one['vm']}: {one['slots_after']} of {one['required']} failover slots left"
    for one in answer["moves"]:
        yield f"  {one['kind']} {one['key']} goes from {one['from']} to {one['to']}"
    window = answer["next_safe_window"]
    if window and not answer["safe"]:
        yield f"  safe from {window['starts_at']}"


if __name__ == "__main__":
    sys.exit(main())
