"""The agent's process killed at each point of its writes (spec hosts, D.8)."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from headroom_host_agent.provision.store import SqliteStore

from config.launcher.places import this_checkout
from tests.agent.process.served import PATIENCE_SECONDS, Headroom, Run, served, until
from tests.agent.trees import host_tree

KILLED = """
import os, signal, sys
from headroom_host_agent.cli import main
from headroom_host_agent.provision.built_in.disk_quota import DiskQuota
from headroom_host_agent.provision.store import SqliteStore

owner = {"SqliteStore": SqliteStore, "DiskQuota": DiskQuota}[sys.argv.pop(1)]
name, when = sys.argv.pop(1), sys.argv.pop(1)
real = getattr(owner, name)

def killed(self, *arguments, **named):
    if name == "take_page" and not arguments[0]:
        return real(self, *arguments, **named)
    if when == "after":
        real(self, *arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, name, killed)
sys.exit(main())
"""
MAIN = "import sys; from headroom_host_agent.cli import main; sys.exit(main())"
MADE = [
    ("SqliteStore", "take_page", "before"),
    ("SqliteStore", "take_page", "after"),
    ("SqliteStore", "begin", "after"),
    ("DiskQuota", "provision", "after"),
    ("SqliteStore", "finish", "after"),
    ("SqliteStore", "told", "before"),
]
REMOVED = [
    ("SqliteStore", "begin_removal", "after"),
    ("DiskQuota", "decommission", "after"),
    ("SqliteStore", "forget", "after"),
    ("SqliteStore", "told", "before"),
]


class Host:
    """A host whose agent is a process."""

    def __init__(self, root: Path, url: str, headroom: Headroom) -> None:
        self.run = Run(host_tree(root), url, headroom)
        self.run.agent.parts.store.close()
        self.quotas = self.run.folder / "quotas"
        self.environment = {
            "PYTHONPATH": str(this_checkout().root / "clients/agent"),
            "PATH": "",  # no tools that set quotas
            "HEADROOM_AGENT__SERVER__URL": url,
            "HEADROOM_AGENT__ENFORCE": "true",
            "HEADROOM_AGENT__PROVISIONERS__ENABLED": "disk_quota",
            "HEADROOM_AGENT__POLL__MIN_INTERVAL": "1",
        }

    @contextmanager
    def process(self, *code: str) -> Iterator[subprocess.Popen[bytes]]:
        started = subprocess.Popen(  # noqa: S603 - our own interpreter and text
            [sys.executable, "-c", *code, "run", "--sysroot", str(self.run.root)],
            env=self.environment,
        )
        try:
            yield started
        finally:
            started.kill()
            started.wait()

    def dies(self, point: tuple[str, str, str]) -> None:
        with self.process(KILLED, *point) as process:
            assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


@pytest.fixture
def headroom() -> Headroom:
    return Headroom()


@pytest.fixture
def host(tmp_path: Path, headroom: Headroom) -> Iterator[Host]:
    with served(headroom) as url:
        yield Host(tmp_path, url, headroom)


@pytest.mark.parametrize("point", MADE, ids="-".join)
def test_a_kill_while_something_is_made_neither_loses_nor_repeats(
    host: Host, headroom: Headroom, point: tuple[str, str, str]
) -> None:
    headroom.assign("1-1", "disk_quota", data=b'{"size_bytes":4096,"soft":true}')
    host.dies(point)
    with host.process(MAIN):
        until(lambda: headroom.said("1-1"))
        headroom.assign("2-1", "disk_quota", data=b'{"size_bytes":0}')
        until(lambda: headroom.said("2-1") == [("error", 1)])
    documents = [one for _, one in headroom.told if one["reservation_id"] == "1-1"]
    assert all(one == documents[0] for one in documents)
    assert documents[0]["state"] == "ok"
    assert len(documents) == (2 if point[1] == "told" else 1)
    assert [path.name for path in host.quotas.iterdir()] == ["1-1"]


@pytest.mark.parametrize("point", REMOVED, ids="-".join)
def test_a_kill_while_something_is_removed_ends_with_it_gone(
    host: Host, headroom: Headroom, point: tuple[str, str, str]
) -> None:
    headroom.assign("1-1", "disk_quota", data=b'{"size_bytes":4096,"soft":true}')
    with host.process(MAIN):
        until(lambda: headroom.said("1-1") == [("ok", 1)])
        until(lambda: _outbox(host) == 0)
    headroom.assign("1-1", "disk_quota", data=b'{"size_bytes":4096,"soft":true}', to_delete=True)
    host.dies(point)
    with host.process(MAIN):
        until(lambda: ("deleted", 1) in headroom.said("1-1"))
        until(lambda: _outbox(host) == 0)
    documents = [one for _, one in headroom.told if one["state"] == "deleted"]
    assert all(one == documents[0] for one in documents)
    assert list(host.quotas.iterdir()) == []
    store = SqliteStore(host.run.folder / "agent.sqlite")
    assert (store.list(), store.artifacts()) == ((), ())
    store.close()


def test_a_process_logs_no_secret_and_says_when_it_is_ready(
    host: Host, headroom: Headroom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # addresses of sockets are short
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("notify")
        heard.settimeout(PATIENCE_SECONDS)
        host.environment |= {"NOTIFY_SOCKET": "notify", "WATCHDOG_USEC": "3000000"}
        headroom.assign("1-1", "disk_quota", data=b'{"size_bytes":0}')
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and text
            [sys.executable, "-c", MAIN, "run", "--sysroot", str(host.run.root)],
            env=host.environment,
            stderr=subprocess.PIPE,
        )
        until(lambda: headroom.said("1-1"))
        told = {heard.recv(64) for _ in range(2)}
        headroom.fence()
        beats = len(headroom.beats)
        until(lambda: headroom.beats[-1]["resynced"] and False in _resynced(headroom)[beats:])
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, told) == (0, {b"READY=1", b"WATCHDOG=1"})
    assert b"another epoch begins" in said
    assert host.run.identity.seed.encode() not in said


def _resynced(headroom: Headroom) -> list[bool]:
    return [beat["resynced"] for beat in headroom.beats]


def _outbox(host: Host) -> int:
    store = SqliteStore(host.run.folder / "agent.sqlite")
    try:
        return store.outbox_depth()
    finally:
        store.close()
