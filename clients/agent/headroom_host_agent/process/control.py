"""A socket in the data folder by which operators on the host speak to the running agent (D.10).

One line of JSON asks, lines of JSON answer: ``{"line": ...}`` each, at the end ``{"done": true}``
or ``{"error": text}``. Only the owner of the folder may connect.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)
SOCKET = "control.sock"  # in the data folder
_ASK_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_MOST_BYTES = 64 * 1024
Handler = Callable[[Mapping[str, object]], Iterator[object]]


class ControlError(Exception):
    """The running agent cannot do what is asked, or there is none."""


@contextmanager
def _below(folder: Path) -> Iterator[str]:
    """Yield a short address of the socket: those of sockets have 107 bytes at most."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)


class Control:
    """Answers on the socket until ``stop`` is set.

    Args:
        handlers: Command -> what answers it, a line for each thing that it yields.
    """

    def __init__(self, folder: Path, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._path = folder / SOCKET
        with suppress(FileNotFoundError):
            self._path.unlink()
        mask = os.umask(0o177)  # before any other thread runs
        try:
            with _below(folder) as address:
                self._listener.bind(address)
        finally:
            os.umask(mask)
        self._listener.listen(4)

    def run(self, stop: threading.Event) -> None:
        """Answer who connects, each beside the others."""
        self._listener.settimeout(_LOOK_SECONDS)
        while not stop.is_set():
            with suppress(TimeoutError):
                connection, _ = self._listener.accept()
                threading.Thread(
                    target=self._answer, args=(connection, stop), name="control", daemon=True
                ).start()
        self._listener.close()
        with suppress(FileNotFoundError):
            self._path.unlink()

    def _answer(self, connection: socket.socket, stop: threading.Event) -> None:
        with connection, suppress(OSError):
            connection.settimeout(_ASK_SECONDS)
            try:
                for one in self._lines(connection):
                    _send(connection, {"line": one})
                    if stop.is_set():
                        break
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - told to who asked
                _send(connection, {"error": str(error) or type(error).__name__})
            else:
                _send(connection, {"done": True})

    def _lines(self, connection: socket.socket) -> Iterator[object]:
        with connection.makefile("rb") as file:
            asked = json.loads(file.readline(_MOST_BYTES) or b"null")
        command = asked.get("command") if isinstance(asked, dict) else None
        handler = self._handlers.get(str(command))
        if handler is None:
            raise ControlError(f"unknown command {command!r}")
        return handler(asked)


def ask(folder: Path, command: str, **facts: object) -> Iterator[object]:
    """Ask the running agent and yield what it answers.

    Raises:
        ControlError: No agent runs, or it cannot do that.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        try:
            with _below(folder) as address:
                connection.connect(address)
            _send(connection, {"command": command, **facts})
        except OSError as error:
            raise ControlError(f"no agent runs on {folder}: {error.strerror}") from None
        with connection.makefile("rb") as file:
            for line in file:
                answer = json.loads(line)
                if "error" in answer:
                    raise ControlError(str(answer["error"]))
                if "done" in answer:
                    return
                yield answer["line"]
    raise ControlError("the agent ended before it answered")


def _send(connection: socket.socket, document: Mapping[str, object]) -> None:
    connection.sendall(json.dumps(document).encode() + b"\n")
