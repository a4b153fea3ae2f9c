"""``./run serve`` from a directory of code that its user cannot write to."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from config.celery_app import app
from config.launcher.demo import answers_healthz, choose_port
from config.launcher.places import this_checkout
from config.launcher.processes import Child, start_child, stop_children, wait_until
from config.queues import QUEUES
from journal.models import Heartbeat, Lease
from tests.e2e.processes import PATIENCE_SECONDS, WebServer, process_environment

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
NOT_COPIED = shutil.ignore_patterns(".git", ".local", ".*_cache", "tests")
WRITE_BITS = 0o222


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A copy of the code that nobody may write to, and a directory for what is written."""

    code: Path
    state: Path

    def contents(self) -> dict[Path, int]:
        """Return each file and directory of the code with the time of its last change."""
        return {path: path.lstat().st_mtime_ns for path in self.code.rglob("*")}

    def read_only(self) -> list[str]:
        """Return what makes the code read-only for root as well: a mount of its own."""
        if os.geteuid() != 0:
            return []
        mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && cd "$0" && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, str(self.code)]

    def start(self, role: str, **variables: str) -> Child:
        """Start a role as its user would: nothing but the state directory is given."""
        env = process_environment(self.state, **variables)
        del env["PROMETHEUS_MULTIPROC_DIR"]
        extra = ["--without-mingle", "--without-gossip"] if role == "worker" else []
        return start_child(
            role,
            [*self.read_only(), sys.executable, "run", "serve", role, *extra],
            log=self.state.parent / f"{role}.log",
            env={
                **env,
                "HEADROOM_STATE_DIRECTORY": str(self.state),
                "TMPDIR": str(self.state),
                "HOME": "/nonexistent",
            },
            cwd=self.code,
            death_signal=signal.SIGKILL,
        )


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    if os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode:  # noqa: S607
        pytest.skip("root writes everywhere and may not mount here: read-only code is NOT tested")
    checkout = this_checkout()
    top = tmp_path / "installed"
    top.mkdir()
    code, state = top / "code", top / "state"
    shutil.copytree(checkout.root, code, ignore=NOT_COPIED)
    (code / ".local").mkdir()
    (code / ".local/venv").symlink_to(checkout.venv)
    state.mkdir(mode=0o700)
    paths = [code, *(path for path in code.rglob("*") if not path.is_symlink())]
    for path in paths:
        path.chmod(path.stat().st_mode & ~WRITE_BITS)
    yield Installation(code=code, state=state)
    for path in paths:
        path.chmod(path.stat().st_mode | stat.S_IWUSR)  # else pytest cannot delete it


@contextmanager
def stopped_at_the_end(child: Child) -> Iterator[Child]:
    try:
        yield child
    finally:
        stop_children([child], ((signal.SIGTERM, PATIENCE_SECONDS),))


def test_every_role_serves_and_writes_to_its_state_directory_alone(
    installation: Installation,
) -> None:
    before, port = installation.contents(), choose_port(0)
    works: dict[str, Callable[[], bool]] = {
        "web": lambda: answers_healthz(port),
        "worker": lambda: all(
            Heartbeat.objects.filter(name=f"queue:{queue}").exists() for queue in QUEUES
        ),
        "beat": lambda: Lease.objects.filter(name="beat").exists(),
    }
    app.control.purge()  # what other tests asked for would have to be done first
    for queue in QUEUES:
        app.send_task("journal.beat_queue", [queue], queue=queue, expires=600)
    roles: dict[str, Child] = {}
    with ExitStack() as stack:
        for role, is_there in works.items():
            child = installation.start(role, GRANIAN_PORT=str(port))
            roles[role] = stack.enter_context(stopped_at_the_end(child))
            assert wait_until(is_there, PATIENCE_SECONDS), child.log.read_text()[-4000:]
        web = WebServer(directory=installation.state, port=port)
        for path in ("/readyz", "/metrics", "/admin/login/", "/static/headroom/admin.css"):
            assert web.send("GET", path).status == 200, path
        kept = {
            path.name.partition("-")[0] for path in (installation.state / "prometheus").iterdir()
        }
        assert kept == {"web", "worker", "beat"}

    for role, child in roles.items():
        assert child.process.wait() == os.EX_OK, child.log.read_text()[-4000:]
        log = child.log.read_text()
        assert not any(f"Errno {number}" in log for number in (errno.EROFS, errno.EACCES)), role
    assert installation.contents() == before
