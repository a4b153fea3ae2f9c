"""What Nova's versioned notifications hint at: which objects somebody should look at now.

A notification is never believed. Whoever can write to the message queue may forge one; so all that
is taken from it is whose state to ask the cloud's API for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

DATA: Final = "nova_object.data"
UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SERVERS, HOSTS, FLAVORS, SERVER_GROUPS = "servers", "hosts", "flavors", "server_groups"
MIGRATIONS: Final = "migrations"


class Hint(NamedTuple):
    """Something to look at.

    Attributes:
        kind: The pass of the feed that reads it; ``servers`` is one VM, by its id, the others are
            lists that are read whole.
        object_id: Id of the VM; empty for lists.
    """

    kind: str
    object_id: str = ""


#: Event type (a glob) to the kind it hints at and, of a VM, where its id stands; first match wins.
EVENTS: Final[tuple[tuple[str, str, str], ...]] = (
    ("instance.exists", "", ""),  # an hourly count of all VMs
    ("instance.*.end", SERVERS, "uuid"),
    ("instance.*.error", SERVERS, "uuid"),
    ("instance.evacuate", SERVERS, "uuid"),
    ("compute_task.*.error", SERVERS, "instance_uuid"),
    ("compute.exception", HOSTS, ""),
    ("service.create", HOSTS, ""),
    ("service.update", HOSTS, ""),
    ("service.delete", HOSTS, ""),
    ("aggregate.cache_images.*", "", ""),
    ("aggregate.*.end", HOSTS, ""),
    ("flavor.*", FLAVORS, ""),
    ("server_group.*", SERVER_GROUPS, ""),
)
#: Event types (globs) of VMs on their way, from the first: both hosts are held from then on.
MOVES: Final = (
    "instance.live_migration_*",
    "instance.resize*",
    "instance.evacuate",
    "compute_task.migrate_server.*",
    "compute_task.rebuild_server.*",
)


def hints_of(event_type: object, payload: object) -> tuple[Hint, ...]:
    """Return all that a notification hints at; see :func:`hint_of`."""
    found = [hint_of(event_type, payload)]
    if isinstance(event_type, str) and any(fnmatchcase(event_type, glob) for glob in MOVES):
        found.append(Hint(MIGRATIONS))
    return tuple(hint for hint in found if hint is not None)


def hint_of(event_type: object, payload: object) -> Hint | None:
    """Return what a notification hints at; None for nothing, and for whatever is malformed.

    Args:
        event_type: As it came.
        payload: As it came: a versioned object, or anything at all.
    """
    if not isinstance(event_type, str):
        return None
    kind, field = next(
        ((kind, field) for glob, kind, field in EVENTS if fnmatchcase(event_type, glob)), ("", "")
    )
    if not kind or not field:
        return Hint(kind) if kind else None
    content: Any = payload.get(DATA) if isinstance(payload, Mapping) else None
    object_id = content.get(field) if isinstance(content, Mapping) else None
    if not isinstance(object_id, str) or not UUID.fullmatch(object_id):
        return None
    return Hint(kind, object_id)
