"""The keeper: a small process that owns one server and stops it when its last user is gone.

Every ``./run`` that needs the server holds a connection to the keeper's socket for as long as it
lives. The kernel closes that connection however the user ends, so there is no count to go wrong.
The keeper holds a file lock for its life, so there is one per server; the server is bound to the
keeper by its parent-death signal. A crash of any of them therefore takes down the rest, and the
next keeper clears what is left.
"""

from __future__ import annotations

import selectors
import signal
import socket
import sys
import time

from config.launcher import servers
from config.launcher.places import locked_or_none
from config.launcher.processes import Child, start_child, stop_children, wait_until
from config.launcher.servers import ServerSpec
from config.launcher.terminal import LauncherError, complain

LOCK_TAKEN = 3
_READY_SECONDS = 60.0
_FIRST_USER_SECONDS = 15.0
_WATCH_SECONDS = 0.5


class Keeper:
    """Runs one server for as long as somebody is connected."""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._users: set[socket.socket] = set()
        self._asked_to_stop = False
        self._server: Child | None = None

    def run(self) -> int:
        """Start the server, serve its users, stop it; return the exit status."""
        signal.signal(signal.SIGTERM, self._stop_soon)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        with locked_or_none(self._spec.lock) as owner:
            if not owner:
                return LOCK_TAKEN
            try:
                self._start()
                self._serve()
            except LauncherError as error:
                complain(f"{self._spec.kind}: {error}")
                return 1
            finally:
                self._stop()
        return 0

    def _stop_soon(self, *_: object) -> None:
        self._asked_to_stop = True

    def _start(self) -> None:
        servers.prepare(self._spec)
        try:
            self._launch()
        except LauncherError:
            if self._spec.durable or self._asked_to_stop:
                raise
            complain(f"{self._spec.kind}: did not start, making its data anew")
            self._stop()
            servers.wipe(self._spec)
            servers.prepare(self._spec)
            self._launch()

    def _launch(self) -> None:
        self._server = server = start_child(
            self._spec.kind,
            servers.command(self._spec),
            log=self._spec.log,
            env=servers.server_environment(),
            cwd=self._spec.data,
            account=self._spec.account,
            death_signal=servers.stop_signals(self._spec)[0][0],
        )

        def settled() -> bool:
            ended = server.process.poll() is not None
            return ended or self._asked_to_stop or servers.answers(self._spec)

        if not wait_until(settled, _READY_SECONDS):
            raise LauncherError(f"did not answer within {_READY_SECONDS:.0f} s")
        if server.process.poll() is not None:
            raise LauncherError(f"ended with exit status {server.process.returncode}")

    def _serve(self) -> None:
        path = self._spec.keeper_socket
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
            listener.bind(str(path))
            listener.listen(64)
            listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
            selector.register(listener, selectors.EVENT_READ)
            self._wait_for_users_to_leave(listener, selector)
            path.unlink(missing_ok=True)  # before the listener closes: nobody may find it half dead

    def _wait_for_users_to_leave(
        self, listener: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        patience_ends = time.monotonic() + _FIRST_USER_SECONDS
        seen_one = False
        while not self._asked_to_stop:
            for key, _ in selector.select(_WATCH_SECONDS):
                if key.fileobj is listener:
                    self._welcome(listener, selector)
                    seen_one = True
                elif isinstance(key.fileobj, socket.socket):
                    self._part_with(key.fileobj, selector)
                    if not self._users:
                        return
            if self._server is not None and self._server.process.poll() is not None:
                raise LauncherError(f"ended with exit status {self._server.process.returncode}")
            if not seen_one and time.monotonic() > patience_ends:
                return

    def _welcome(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            user, _ = listener.accept()
            user.sendall(b"ready\n")
        except OSError:  # left again already
            return
        self._users.add(user)
        selector.register(user, selectors.EVENT_READ)

    def _part_with(self, user: socket.socket, selector: selectors.BaseSelector) -> None:
        """Forget a user; the last one's connection stays open until the server has stopped."""
        selector.unregister(user)
        self._users.discard(user)
        if self._users:
            user.close()
        else:
            self._last_user = user  # closed by the end of this process, which the user waits for

    def _stop(self) -> None:
        if self._server is not None:
            stop_children([self._server], servers.stop_signals(self._spec))
            self._server = None


def main() -> int:
    """Keep the server that the first argument describes."""
    return Keeper(ServerSpec.from_json(sys.argv[1])).run()


if __name__ == "__main__":
    sys.exit(main())
