"""The processes of the small cloud: started here, and gone when this program is."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cloud.layout import Layout
from config.launcher.processes import Child, is_alive, start_child, stop_children, wait_until
from config.launcher.terminal import LauncherError, last_lines

START_SECONDS = 600.0
"""Patience with one start; two busy cores need most of it."""
_POLL_SECONDS = 0.5
_STOP_SIGNALS = ((signal.SIGTERM, 30.0),)
_SERVER_ERROR = 500


class Processes:
    """Starts programs by name, and stops them all in the end, the last one first."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._children: dict[str, Child] = {}

    def start(
        self, name: str, command: Sequence[object], env: Mapping[str, str] | None = None
    ) -> Child:
        """Start a program, logging to the file of its name."""
        child = start_child(
            name,
            [str(word) for word in command],
            log=self._layout.logs / f"{name}.log",
            env=env if env is not None else self.environment(),
            cwd=self._layout.home,
        )
        self._children[name] = child
        return child

    def environment(self) -> dict[str, str]:
        """Return the environment of OpenStack's services; nothing of the caller's but PATH."""
        etc = self._layout.etc
        return {
            "PATH": f"{self._layout.venv / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "LC_ALL": "C.UTF-8",
            "PYTHONWARNINGS": "ignore",
            "OS_KEYSTONE_CONFIG_FILES": str(etc / "keystone.conf"),
            "OS_GLANCE_CONFIG_DIR": str(etc / "glance"),
            "OS_NEUTRON_CONFIG_DIR": str(etc / "neutron"),
            "OS_NOVA_CONFIG_DIR": str(etc),
        }

    def stop(self, name: str) -> None:
        """Stop one program, if it runs."""
        child = self._children.pop(name, None)
        if child is not None:
            stop_children([child], _STOP_SIGNALS)

    def stop_all(self) -> None:
        """Stop everything; what is used by others stops after them."""
        for name in reversed(tuple(self._children)):
            self.stop(name)

    def run(self, *command: object) -> str:
        """Run a program to its end and return what it printed.

        Raises:
            LauncherError: it failed.
        """
        words = [str(word) for word in command]
        done = subprocess.run(  # noqa: S603 - our own commands
            words,
            env=self.environment(),
            cwd=self._layout.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        with (self._layout.logs / "setup.log").open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(words)}\n{done.stdout}\n")
        if done.returncode != 0:
            said = "\n".join(done.stdout.splitlines()[-12:])
            raise LauncherError(f"{Path(words[0]).name} {words[-1]} failed:\n{said}")
        return done.stdout

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until something is so.

        Raises:
            LauncherError: a process ended, or it took too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            for child in self._children.values():
                if child.process.poll() is not None:
                    raise LauncherError(f"{child.name} ended:\n{last_lines(child.log)}")
            if time.monotonic() > deadline:
                raise LauncherError(f"{what}: not within {START_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    def stop_compute(self, host: str) -> None:
        """Stop the nova-compute of one host.

        Raises:
            LauncherError: it does not end.
        """
        pid = int((self._layout.logs / f"compute-{host}.pid").read_text(encoding="utf-8"))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if not wait_until(lambda: not is_alive(pid), 60.0):
            raise LauncherError(f"nova-compute of {host} does not end")


def answers(url: str) -> bool:
    """Return whether a service answers at all, if only with a refusal."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own addresses
            return bool(answer.status < _SERVER_ERROR)
    except urllib.error.HTTPError as refusal:
        return refusal.code < _SERVER_ERROR
    except OSError:
        return False
