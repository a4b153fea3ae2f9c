"""A user with the rights that the feed's manual asks for, and no others, reads the cloud."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
from openstack.exceptions import SDKException

from cloud.api import Api, CallError, host_of
from cloud.bringup import serve_headroom
from cloud.configs import policy_file
from cloud.feed import FLAVOR_IS, VM_ON, Feed, feed_variables
from cloud.layout import PASSWORD, PROJECTS
from cloud.processes import answers
from cloud.region import manage

Json = Any  # bodies keep the APIs' own shapes
READER: Final = "headroom-reader"
ROLE: Final = "headroom_reader"
FLAVOR: Final = "g_c2_m8"
HIDDEN_FLAVOR: Final = "g_hidden"
CHECKS: Final = ("cloud login", "cloud identity", "cloud compute", "cloud image", "cloud placement")
#: What the rules of each service say by default, and how their names begin.
SERVICES: Final[Mapping[str, tuple[str, str]]] = {
    "keystone": ("identity:", "rule:admin_required"),
    "nova": ("os_compute_api:", "rule:context_is_admin"),
    "placement": ("placement:", "role:admin or role:service"),
}
_FEED_MANUAL: Final = Path("docs", "feed.md")
_SECTION: Final = re.compile(r"^## What its user may do$(.*?)^## ", re.DOTALL | re.MULTILINE)
_RULE: Final = re.compile(r"`([a-z_]+:[a-z_:-]+)`")
READ_ANEW: Final = "DELETE FROM hosts_listedprovider"
HOSTS: Final = "SELECT count(*) FROM hosts_host WHERE zone <> ''"
QUIET: Final = """
SELECT 1 WHERE NOT EXISTS (
    SELECT FROM journal_lease
     WHERE starts_with(name, 'hosts.') AND expires_at > clock_timestamp())
"""


def documented_rules(root: Path) -> tuple[str, ...]:
    """Return the access rules that the manual of the feed names.

    Args:
        root: The checkout.
    """
    section = _SECTION.search((root / _FEED_MANUAL).read_text(encoding="utf-8"))
    return tuple(_RULE.findall(section[1])) if section else ()


def policies(rules: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return the text of each rule with the reader's role, by service."""
    return {
        service: {rule: f"{text} or role:{ROLE}" for rule in rules if rule.startswith(prefix)}
        for service, (prefix, text) in SERVICES.items()
    }


def _let_in(feed: Feed) -> str:
    rules = documented_rules(feed.layout.root)
    for service, texts in policies(rules).items():
        path = policy_file(feed.layout, service)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(texts), encoding="utf-8")
        fresh.replace(path)
    identity = feed.api.connection.identity
    try:
        project = identity.find_project("service")
        user = identity.create_user(name=READER, password=PASSWORD, domain_id="default")
        for role in (identity.create_role(name=ROLE), identity.find_role("reader")):
            identity.assign_project_role_to_user(project, user, role)
    except SDKException as error:
        raise CallError(f"no user was made: {error}") from error
    for name in ("beat", "worker", "web"):
        feed.processes.stop(name)
    feed.environ = {
        **feed.environ,
        **feed_variables(feed.layout),
        "HEADROOM_PLACEMENT__POLICY_FILE": str(policy_file(feed.layout, "placement")),
    }
    feed.seen("that no pass is on", QUIET)
    serve_headroom(feed.layout, feed.processes, feed.environ, ("web",))
    feed.processes.wait("Headroom", partial(answers, f"{feed.layout.url('headroom')}/healthz"))
    return f"{len(rules)} rules"


def _as_reader(feed: Feed, *words: str, good: tuple[int, ...] = (0,)) -> Json:
    login = {"OS_USERNAME": READER, "OS_PROJECT_NAME": "service"}
    said = manage(feed.layout, feed.environ, *words, "--json", login=login, good=good)
    try:
        return json.loads(said)
    except ValueError:
        raise CallError(f"manage.py {words[0]} said no JSON: {said[:200]!r}") from None


def _doctor(feed: Feed) -> str:
    chosen = [word for name in CHECKS for word in ("--check", name)]
    findings = _as_reader(feed, "doctor", *chosen, good=(0, 1, 2))["findings"]
    if broken := [one["found"] for one in findings if one["severity"] == "error"]:
        raise CallError("; ".join(broken[:3]))
    warnings = [one["found"] for one in findings if one["severity"] == "warning"]
    return f"{len(findings)} findings; warnings: {'; '.join(warnings) or 'none'}"


def _full_pass(feed: Feed) -> str:
    """Have the reader see a server of a project that it is not in, and what hosts are made of."""
    domain, (project, *_) = next(iter(PROJECTS.items()))
    owner = Api(feed.layout, project, domain)
    wanted = {"name": "read", "flavorRef": feed.flavors[FLAVOR], "imageRef": feed.image}
    server = owner.wait(owner.boot(wanted), "ACTIVE")
    feed.servers[server["id"]] = server
    hidden = {"name": HIDDEN_FLAVOR, "vcpus": 1, "ram": 4096, "disk": 20}
    hidden["os-flavor-access:is_public"] = False
    feed.api.nova("POST", "/flavors", {"flavor": hidden})
    with psycopg.connect(feed.environ["DATABASE_URL"]) as connection:
        connection.execute(READ_ANEW)
        before = connection.execute(HOSTS).fetchone()
    said = _as_reader(feed, "sync_nova")
    feed.seen("the server", VM_ON, server["id"], host_of(server))
    with psycopg.connect(feed.environ["DATABASE_URL"]) as connection:
        after = connection.execute(HOSTS).fetchone()
        if connection.execute(FLAVOR_IS, (HIDDEN_FLAVOR,)).fetchone():
            raise CallError("a flavor that is not public was seen: the manual says it is not")
    skipped = [one for report in said.values() for one in report["remarks"] if not one["is_kept"]]
    if before != after or skipped:
        raise CallError(f"{before} hosts before, {after} after, skipped {skipped[:3]}")
    listed = sum(
        counts["created"] + counts["updated"] + counts["unchanged"]
        for report in said.values()
        for counts in report["sections"]
    )
    return f"{listed} elements of {len(said)} kinds, no host the worse for it"


def _changes(feed: Feed) -> str:
    server_id = next(reversed(feed.servers), "none")
    feed.api.nova("DELETE", f"/servers/{server_id}")
    feed.api.wait_gone(server_id)
    _as_reader(feed, "sync_nova", "--kind", "changes")
    feed.gone(server_id)
    feed.servers.clear()
    return "a server of another project is gone, as it is listed as deleted"


READER_STEPS: Final[Mapping[str, Callable[[Feed], str]]] = {
    "a user with the manual's rights": _let_in,
    "its doctor": _doctor,
    "its full pass": _full_pass,
    "its look at changes": _changes,
}
