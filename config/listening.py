"""Where this process really listens, and what may only be served on this machine.

``noauth`` lets everybody do everything. What a setting says of the address proves nothing: the web
server takes its own variables and options, too. So the process that serves looks at its sockets.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any

from config.environment import Environment

Application = Callable[..., Any]  # Any: as WSGI has it
REFUSAL = "noauth is for development: it is served on loopback addresses only"


def guarded(application: Application, environment: Environment) -> Application:
    """Return the application, or without authentication one that only this machine can reach.

    A web server that binds before it loads us ends with one line; one that binds later refuses
    every request.

    Raises:
        SystemExit: there is no authentication and this process is bound to an open address.
    """
    if environment.auth != "noauth":
        return application
    found = open_addresses()
    if found:
        message = f"HEADROOM_AUTH: {REFUSAL}, not on {', '.join(found)}"
        raise SystemExit(f"headroom: configuration error: {message}")
    is_closed = False

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        nonlocal is_closed
        if not is_closed and open_addresses():
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{REFUSAL}\n".encode()]
        is_closed = True
        return application(environ, start_response)

    return serve


def open_addresses() -> list[str]:
    """Return the addresses that this process is bound to and other machines may reach, sorted."""
    return sorted({address for address in _bound_addresses() if not _is_loopback(address)})


def _bound_addresses() -> Iterator[str]:
    """Yield the addresses of TCP sockets of this process that take connections, or soon will."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are all that is wanted
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        with copy:
            if copy.family not in {socket.AF_INET, socket.AF_INET6} or _is_connected(copy):
                continue
            address, port = copy.getsockname()[:2]
            if copy.type == socket.SOCK_STREAM and port:
                yield str(address)


def _is_connected(link: socket.socket) -> bool:
    try:
        link.getpeername()
    except OSError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    parsed = ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
