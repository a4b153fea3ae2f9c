"""The socket of the running agent, its metrics, and what it tells systemd (spec hosts, D.10)."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from headroom_host_agent.cli import main
from headroom_host_agent.process.commands import handlers, readings
from headroom_host_agent.process.control import SOCKET, Control, ControlError, ask
from headroom_host_agent.process.metrics import serve
from headroom_host_agent.process.notify import Systemd

from tests.agent.process.served import Headroom, Run, served, until


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    headroom = Headroom()
    headroom.assign("1-1")
    with served(headroom) as url:
        made = Run(tmp_path, url, headroom)
        with made.running(Control(made.folder, handlers(made.agent)).run):
            until(lambda: headroom.said("1-1") == [("ok", 1)])
            yield made


def test_an_operator_asks_the_running_agent(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert (run.folder / SOCKET).stat().st_mode & 0o777 == 0o600

    def said(*arguments: str) -> tuple[int, list[str]]:
        code = main([*arguments, "--sysroot", str(run.root)])
        return code, capsys.readouterr().out.splitlines()

    code, lines = said("status")
    status = json.loads(lines[0])
    assert (code, status["reservations"], status["outbox_depth"]) == (0, {"deployed": 1}, 0)
    assert run.identity.seed not in lines[0]

    assert said("verify") == (0, ['{"reservation": "1-1", "type": "file", "ok": true}'])
    (run.files.folder / "1-1").unlink()
    assert said("verify")[0] == 1

    code, lines = said("cleanup", "--dry-run")
    assert (code, json.loads(lines[0])["fate"]) == (0, "keep")

    assert said("decommission", "7-1", "--reason", "dead")[0] == 1
    assert said("decommission", "1-1", "--reason", "dead") == (0, ["1-1 is removed"])
    assert json.loads(said("status")[1][0])["reservations"] == {}

    usage = next(iter(ask(run.folder, "counters")))
    assert isinstance(usage, dict)
    assert usage["workloads"] == {}
    with pytest.raises(ControlError, match="unknown command"):
        next(iter(ask(run.folder, "none")))


def test_without_a_running_agent_commands_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "var/lib/headroom").mkdir(parents=True)
    assert main(["status", "--sysroot", str(tmp_path)]) == 1
    assert "no agent runs" in capsys.readouterr().err


def test_metrics_are_served_on_the_loopback_address(run: Run) -> None:
    port = serve(0, lambda: readings(run.agent), run.agent.stop)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    assert 'headroom_agent_job_seconds_count{type="file"} 1' in lines
    assert "headroom_agent_outbox_depth 0" in lines
    assert any(line.startswith("headroom_agent_lease_remaining_seconds ") for line in lines)


def test_systemd_hears_that_the_agent_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("notify")
        times = itertools.chain([0.0, 5.0, 9.0, 11.0, 12.0])
        systemd = Systemd(
            {"NOTIFY_SOCKET": "notify", "WATCHDOG_USEC": "30000000"},
            monotonic=lambda: next(times),
        )
        systemd.ready()
        for _ in range(5):
            systemd.alive()
        systemd.stopping()
        heard.setblocking(False)
        told = [heard.recv(64) for _ in range(4)]
        with pytest.raises(BlockingIOError):
            heard.recv(64)
    assert told == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"STOPPING=1"]
    Systemd({}).ready()


def test_one_who_asks_and_leaves_harms_nobody(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.folder)  # addresses of sockets are short
    before = threading.active_count()
    for asked in (b"", b"\n", b"[]\n", b"{\n", b'{"command": "counters"}\n'):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.connect(SOCKET)
            asking.sendall(asked)
    assert list(ask(run.folder, "verify"))
    assert threading.active_count() < before + 10
