"""What a request to the scheduler is for, which Nova itself says of rebuilds only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

CREATE = "create"
REBUILD = "rebuild"
RESIZE = "resize"
LIVE_MIGRATE = "live_migrate"
EVACUATE = "evacuate"

#: Task states of Nova in which a server asks for a host. A server that is rebuilt on its own host
#: has a hint of Nova's; one without it is evacuated.
_INTENT_OF_TASK: Mapping[str, str] = {
    "scheduling": CREATE,
    "unshelving": CREATE,
    "resize_prep": RESIZE,
    "migrating": LIVE_MIGRATE,
    "rebuilding": EVACUATE,
    "rebuild_block_device_mapping": EVACUATE,
    "rebuild_spawning": EVACUATE,
}


class KnownServer(NamedTuple):
    """A server as Nova's cell has it.

    Attributes:
        task_state: What is being done with it; empty for nothing.
        host: Where it is; empty for nowhere.
        is_new: Whether no cell has it yet.
    """

    task_state: str = ""
    host: str = ""
    is_new: bool = False


def intent_of(server: KnownServer | None, ignored_hosts: Iterable[str] = ()) -> str:
    """Return what a request is for; empty if nothing tells, and Headroom infers it.

    Args:
        server: The server; None if nobody could say.
        ignored_hosts: Hosts that the request leaves out.
    """
    if server is None:
        return ""
    if server.is_new:
        return CREATE
    found = _INTENT_OF_TASK.get(server.task_state, "")
    if found == EVACUATE and server.host not in ignored_hosts:
        return ""
    return found
