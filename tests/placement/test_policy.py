"""Rules in a file of Placement's own (spec placement, 7.4)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from journal.actors import Actor
from journal.policy import UnusablePolicyError
from placement import policy as policies
from placement.access import Caller
from placement.policy import Policy

RULE = "placement:traits:list"
USAGES = "placement:usages"
LOOK_SECONDS = 5.0


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def caller(*roles: str, project_id: str = "own", **facts: str) -> Caller:
    return Caller(
        Actor(name="a", user_id="a", roles=frozenset(roles), project_id=project_id, **facts)  # type: ignore[arg-type]
    )


def policy_of(path: Path | None, clock: Clock | None = None) -> Policy:
    return Policy(
        policy_file=str(path or ""),
        enforces_new_defaults=True,
        reload_seconds=LOOK_SECONDS,
        clock=clock or Clock(),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def test_a_changed_file_is_read_again_and_earlier_decisions_are_forgotten(path: Path) -> None:
    clock, auditor = Clock(), caller("auditor")
    path.write_text(f'"{RULE}": "role:auditor"\n')
    policy = policy_of(path, clock)
    assert policy.allows(RULE, auditor, project_id="own")
    path.write_text(f'"{RULE}": "role:another"\n')
    assert policy.allows(RULE, auditor, project_id="own"), "not looked at yet"
    clock.now += LOOK_SECONDS
    assert not policy.allows(RULE, auditor, project_id="own")
    assert policy.allows(RULE, caller("another"), project_id="own")


def test_a_replaced_file_of_the_same_time_and_size_is_noticed(path: Path) -> None:
    clock = Clock()
    path.write_text(f'"{RULE}": "role:one"\n')
    policy = policy_of(path, clock)
    other = path.with_suffix(".new")
    other.write_text(f'"{RULE}": "role:two"\n')
    times = path.stat()
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)
    clock.now += LOOK_SECONDS
    assert policy.allows(RULE, caller("two"), project_id="own")


BROKEN = {
    "no YAML": '"x": [',
    "no mapping": "- a\n",
    "undefined rule": f'"{RULE}": "rule:nowhere"\n',
    "cycle": f'"{RULE}": "rule:admin_api"\n"admin_api": "rule:{RULE}"\n',
    "no text": "\udcff",
}
broken = pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)


@broken
def test_rules_in_force_stay_when_a_file_breaks(path: Path, text: str) -> None:
    clock = Clock()
    path.write_text(f'"{RULE}": "role:auditor"\n')
    policy = policy_of(path, clock)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    clock.now += LOOK_SECONDS
    assert policy.allows(RULE, caller("auditor"), project_id="own")
    path.write_text(f'"{RULE}": "role:mended"\n')
    clock.now += LOOK_SECONDS
    assert policy.allows(RULE, caller("mended"), project_id="own")


def test_rules_in_force_stay_while_a_file_is_gone(path: Path) -> None:
    clock = Clock()
    path.write_text(f'"{RULE}": "role:auditor"\n')
    policy = policy_of(path, clock)
    path.unlink()
    clock.now += LOOK_SECONDS
    assert policy.allows(RULE, caller("auditor"), project_id="own")


@broken
def test_a_broken_file_lets_nobody_start(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnusablePolicyError):
        policy_of(path)


def test_rules_may_build_on_rules_of_the_file(path: Path) -> None:
    path.write_text(
        f'"{RULE}": "(rule:watchers)"\n"watchers": "rule:guards or role:auditor"\n'
        '"guards": "role:guard"\n'
    )
    policy = policy_of(path)
    assert policy.allows(RULE, caller("guard"), project_id="own")
    assert policy.allows(RULE, caller("auditor"), project_id="own")
    assert not policy.allows(RULE, caller("admin"), project_id="own")


def test_rules_that_nothing_asks_for_change_nothing(path: Path) -> None:
    path.write_text('"liquid:get_info": "rule:readonly"\n"stray": "rule:stray"\n')
    policy = policy_of(path)
    assert policy.allows(RULE, caller("admin"), project_id="own")
    assert not policy.allows(RULE, caller("reader"), project_id="own")


def test_a_missing_file_lets_nobody_start(path: Path) -> None:
    with pytest.raises(UnusablePolicyError):
        policy_of(path)


def test_a_check_that_cannot_be_understood_lets_nobody_pass(path: Path) -> None:
    path.write_text(f'"{RULE}": "role admin or"\n')
    assert not policy_of(path).allows(RULE, caller("admin", "service"), project_id="own")


@pytest.mark.parametrize(
    ("asker", "project_id", "is_allowed"),
    [
        pytest.param(caller("reader"), "own", True, id="own project"),
        pytest.param(caller("reader"), "other", False, id="other project"),
        pytest.param(caller("reader", project_id=""), "", False, id="no project, none asked"),
        pytest.param(caller("reader", project_id=""), "None", False, id="project named None"),
        pytest.param(caller("reader", system_scope="all"), "own", False, id="system"),
        pytest.param(caller("admin", domain_id="d", project_id=""), "own", False, id="domain"),
        pytest.param(caller("admin", project_id=""), "own", True, id="admin without project"),
        pytest.param(caller("Reader"), "own", True, id="roles in any case"),
    ],
)
def test_usages_are_for_readers_of_the_project(
    asker: Caller, project_id: str, *, is_allowed: bool
) -> None:
    assert policy_of(None).allows(USAGES, asker, project_id=project_id) is is_allowed


def test_callers_that_differ_in_anything_are_told_apart(path: Path) -> None:
    path.write_text(f'"{RULE}": "user_domain_id:default"\n')
    policy = policy_of(path)
    for _ in range(2):
        assert policy.allows(RULE, caller(user_domain_id="default"), project_id="own")
        assert not policy.allows(RULE, caller(user_domain_id="other"), project_id="own")


def test_remembered_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "MAX_DECISIONS", 3)
    policy = policy_of(None)
    for number in range(10):
        asker = caller("reader", project_id=f"p{number}")
        assert policy.allows(USAGES, asker, project_id=f"p{number}")
        assert not policy.allows(USAGES, asker, project_id="other")
        assert len(policy._rules._decisions) <= 3


@pytest.fixture
def judge() -> Iterator[HTTPServer]:
    """A server that answers checks with its ``verdict``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.server.verdict)  # type: ignore[attr-defined]

        def log_message(self, *args: object) -> None:
            del args

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_check_that_asks_a_server_asks_each_time(path: Path, judge: Any) -> None:
    path.write_text(f'"{RULE}": "http://127.0.0.1:{judge.server_port}/may"\n')
    policy = policy_of(path)
    for verdict in (b"True", b"False", b"True"):
        judge.verdict = verdict
        assert policy.allows(RULE, caller("x"), project_id="own") is (verdict == b"True")
