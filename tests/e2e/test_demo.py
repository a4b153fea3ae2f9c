"""``./run demo`` in a fresh clone: it comes up whole, and nothing of it is left at the end."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from config.launcher.demo import ADDRESS
from config.launcher.places import Checkout, this_checkout
from config.launcher.processes import wait_until
from tests.e2e.demo_lists import Visitor, missing_of
from tests.launcher.conftest import processes_of

pytestmark = pytest.mark.e2e

HOSTS = 60
MOST_LINES = 14
START_SECONDS = 300.0
BEAT_SECONDS = 60.0
LISTS_SECONDS = 400.0
STOP_SECONDS = 60.0
REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "requirements-services.txt")
OURS = ("HEADROOM_", "GRANIAN_", "DATABASE_URL", "REDIS_URL", "DJANGO_", "PROMETHEUS_")


@pytest.fixture
def clone() -> Iterator[Checkout]:
    """A clone of what is committed, with the virtual environment that runs the tests."""
    source = this_checkout()
    if not (source.root / ".git").exists():
        pytest.skip("not a git checkout")
    directory = Path(tempfile.mkdtemp(prefix="hd-"))  # short: Unix sockets live below it
    directory.chmod(0o755)
    made = Checkout(root=directory / "co")
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "clone",
        "--quiet",
        str(source.root),
        str(made.root),
    ]
    subprocess.run(command, check=True)  # noqa: S603 - no user input
    for name in REQUIREMENTS:
        if (source.root / name).read_bytes() != (made.root / name).read_bytes():
            pytest.skip(f"{name} is not committed as it is installed")
    made.local.mkdir()
    for name in ("venv", "wheels"):
        if (source.local / name).exists():
            (made.local / name).symlink_to(source.local / name)
    yield made
    left = processes_of(made)
    for process in left:
        process.kill()
    shutil.rmtree(directory)
    assert not left, left


@dataclass(slots=True)
class Demo:
    """A running ``./run demo`` and what it said."""

    checkout: Checkout
    lines: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    port: int = 0
    listener: threading.Thread | None = None

    def start(self) -> float:
        """Wait for ``ready:`` and return how many seconds that took."""
        started = time.monotonic()
        self.lines.clear()
        environ = {name: text for name, text in os.environ.items() if not name.startswith(OURS)}
        run = [sys.executable, str(self.checkout.root / "run")]
        self.process = subprocess.Popen(  # noqa: S603 - no user input
            [*run, "demo", "--port", "0", "--hosts", str(HOSTS)],
            cwd=self.checkout.root,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.listener = threading.Thread(target=self._listen)
        self.listener.start()
        assert wait_until(lambda: self._is_ready() or self._has_ended(), START_SECONDS), self.said()
        assert self._is_ready(), self.said()
        return time.monotonic() - started

    def said(self) -> str:
        return "".join(self.lines)

    def _listen(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line)

    def _is_ready(self) -> bool:
        match = re.search(r"^ready: http://127\.0\.0\.1:(\d+)$", self.said(), re.MULTILINE)
        self.port = int(match[1]) if match else 0
        return match is not None

    def _has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def get(self, path: str) -> tuple[int, bytes]:
        link = http.client.HTTPConnection(ADDRESS, self.port, timeout=30)
        try:
            link.request("GET", path)
            response = link.getresponse()
            return response.status, response.read()
        finally:
            link.close()

    def interrupt(self) -> None:
        """Press Ctrl-C and wait for the end."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(STOP_SECONDS) == 0, self.said()
        assert self.listener is not None
        self.listener.join(STOP_SECONDS)
        assert wait_until(lambda: not processes_of(self.checkout), STOP_SECONDS), processes_of(
            self.checkout
        )


def identities(checkout: Checkout) -> dict[Path, str]:
    """Return what the agents of the demo are known by, by file."""
    files = (checkout.local / "demo" / "agents").glob("*/var/lib/headroom/identity.json")
    return {path: json.loads(path.read_text(encoding="utf-8"))["kid"] for path in files}


def has_reported(demo: Demo, host: str) -> bool:
    status, page = demo.get(f"/api/v1/hosts/{host}/resources")
    return status == 200 and json.loads(page)["cpu"]["capacity"] > 0


def test_demo_of_a_fresh_clone_comes_up_answers_and_leaves_no_process(
    clone: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = Demo(clone)
    first = demo.start()
    assert len(demo.lines) <= MOST_LINES, demo.said()
    assert "{" not in demo.said()
    assert (clone.logs / "set_up_demo.log").stat().st_size > 1000
    assert demo.get("/healthz") == (200, b"ok")
    assert wait_until(lambda: demo.get("/readyz")[0] == 200, BEAT_SECONDS), demo.get("/readyz")
    status, page = demo.get("/commitments/v1/info")
    assert status == 200
    info: dict[str, Any] = json.loads(page)
    assert any(name.endswith("_ram") for name in info["resources"])
    assert demo.get("/admin/login/")[0] == 200
    keys = identities(clone)
    assert len(keys) == 3
    hosts = [path.parents[3].name for path in keys]
    assert wait_until(lambda: all(has_reported(demo, host) for host in hosts), BEAT_SECONDS)
    visitor = Visitor(demo.port)
    visitor.sign_in("admin", (clone.local / "demo-admin-password").read_text().strip())
    left = missing_of(visitor.empty_lists())
    known = time.monotonic()

    def have_rows() -> bool:
        nonlocal left
        left = missing_of(visitor.empty_lists(left))
        return not left

    assert wait_until(have_rows, LISTS_SECONDS), left
    filled = time.monotonic() - known
    demo.interrupt()

    second = demo.start()
    assert json.loads(demo.get("/commitments/v1/info")[1]) == info
    assert identities(clone) == keys  # known from before
    demo.interrupt()
    with capsys.disabled():
        sys.stdout.write(
            f"\ndemo ready after {first:.1f} s, rows in all lists {filled:.1f} s after the first"
            f" look, second start {second:.1f} s\n"
        )
