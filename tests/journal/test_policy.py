from __future__ import annotations

import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from journal import policy
from journal.actors import Actor
from journal.policy import Policy, PolicyRule, UnusablePolicyError

RULES = {
    rule.name: rule
    for rule in (
        PolicyRule(name="readwrite", check="role:admin", description="writes"),
        PolicyRule(name="readonly", check="role:viewer or rule:readwrite", description="reads"),
        PolicyRule(name="do:read", check="rule:readonly", description="x"),
        PolicyRule(name="do:write", check="rule:readwrite", description="x"),
        PolicyRule(
            name="do:own",
            check="role:reader and project_id:%(project_id)s",
            description="x",
        ),
        PolicyRule(name="do:scoped", check="role:viewer", description="x", scopes=("project",)),
    )
}
VIEWER = Actor(name="v", roles=frozenset({"viewer"}))
ADMIN = Actor(name="a", roles=frozenset({"admin"}))
READER = Actor(name="r", roles=frozenset({"reader"}), project_id="p1")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("actor", "rule", "target", "is_allowed"),
    [
        pytest.param(VIEWER, "do:read", {}, True, id="role"),
        pytest.param(VIEWER, "do:write", {}, False, id="other role"),
        pytest.param(ADMIN, "do:read", {}, True, id="through a base rule"),
        pytest.param(Actor(name="n"), "do:read", {}, False, id="no role"),
        pytest.param(READER, "do:own", {"project_id": "p1"}, True, id="own project"),
        pytest.param(READER, "do:own", {"project_id": "p2"}, False, id="other project"),
        pytest.param(READER, "do:own", {}, False, id="no target"),
        pytest.param(VIEWER, "do:scoped", {}, True, id="token of a project"),
        pytest.param(
            Actor(name="s", roles=VIEWER.roles, system_scope="all"),
            "do:scoped",
            {},
            False,
            id="token of the system",
        ),
        pytest.param(
            Actor(name="d", roles=VIEWER.roles, domain_id="d1"),
            "do:scoped",
            {},
            False,
            id="token of a domain",
        ),
        pytest.param(ADMIN, "do:unheard", {}, False, id="unknown rule"),
        pytest.param(
            Actor(name="u", roles=frozenset({"Viewer"})), "do:read", {}, True, id="case of a role"
        ),
    ],
)
def test_defaults(actor: Actor, rule: str, target: dict[str, object], is_allowed: bool) -> None:
    assert Policy(RULES).allows(actor, rule, target) is is_allowed


def override(path: Path, text: str) -> None:
    """Replace a file; its time moves on however coarse the clock of the file system is."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(before + 10**9, before + 10**9))


def test_a_file_replaces_rules_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    override(path, '"readonly": "role:reader"\n"do:write": "!"\n')
    policy = Policy(RULES, path)
    assert policy.allows(READER, "do:read", {})
    assert not policy.allows(VIEWER, "do:read", {})
    assert not policy.allows(ADMIN, "do:write", {})
    assert policy.allows(VIEWER, "do:scoped", {})


def test_a_file_may_look_at_every_fact_of_a_token(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    override(path, '"do:read": "user_name:limes and user_domain_name:Default"\n')
    policy = Policy(RULES, path)
    limes = Actor(name="x", user_name="limes", user_domain_name="Default")
    assert policy.allows(limes, "do:read", {})
    assert not policy.allows(Actor(name="x", user_name="limes"), "do:read", {})


def test_a_changed_file_holds_without_a_restart(tmp_path: Path) -> None:
    path, clock = tmp_path / "policy.yaml", Clock()
    override(path, "{}")
    policy = Policy(RULES, path, look_seconds=5, clock=clock)
    override(path, '"do:read": "!"')
    assert policy.allows(VIEWER, "do:read", {})
    clock.now = 5
    assert not policy.allows(VIEWER, "do:read", {})


@pytest.mark.parametrize("text", [":", "[1]", "a: 1", "'do:read': 'rule:nowhere'"])
def test_a_file_that_breaks_later_leaves_the_rules_in_force(tmp_path: Path, text: str) -> None:
    path, clock = tmp_path / "policy.yaml", Clock()
    override(path, '"do:read": "role:reader"')
    policy = Policy(RULES, path, look_seconds=5, clock=clock)
    override(path, text)
    clock.now = 5
    assert policy.allows(READER, "do:read", {})
    assert not policy.allows(VIEWER, "do:read", {})
    path.unlink()
    clock.now = 10
    assert policy.allows(READER, "do:read", {})
    override(path, '"do:read": "role:viewer"')
    clock.now = 15
    assert policy.allows(VIEWER, "do:read", {})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(":", id="not YAML"),
        pytest.param("[1]", id="a list"),
        pytest.param("a: 1", id="a number"),
        pytest.param("'do:read': 'rule:nowhere'", id="undefined rule"),
        pytest.param("'do:read': 'rule:do:read'", id="circle"),
        pytest.param(None, id="no file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "policy.yaml"
    if text is not None:
        override(path, text)
    with pytest.raises(UnusablePolicyError) as refusal:
        Policy(RULES, path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_check_that_cannot_be_parsed_lets_nobody_pass(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    override(path, '"do:read": "role:viewer or or"')
    assert not Policy(RULES, path).allows(VIEWER, "do:read", {})


def test_every_registered_rule_says_what_it_protects() -> None:
    rules = policy._registered.values()
    assert {"readonly", "readwrite", "liquid:set_quota", "scheduler:nova_external"} <= {
        rule.name for rule in rules
    }
    assert all(rule.description.endswith(".") for rule in rules)


class Judge(BaseHTTPRequestHandler):
    """Answers a check of the policy file, another way each time."""

    answers: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        body = self.answers.pop(0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_judge_outside_is_asked_each_time(tmp_path: Path) -> None:
    Judge.answers = [b"True", b"False"]
    server = HTTPServer(("127.0.0.1", 0), Judge)
    Thread(target=server.serve_forever, daemon=True).start()
    path = tmp_path / "policy.yaml"
    path.write_text(f'"do:read": "http://127.0.0.1:{server.server_port}/judge"')
    policy_in_force = Policy(RULES, path)
    try:
        assert [policy_in_force.allows(VIEWER, "do:read", {}) for _ in range(2)] == [True, False]
    finally:
        server.shutdown()
        server.server_close()
