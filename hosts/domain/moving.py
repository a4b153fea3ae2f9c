"""When a VM is on its way from host to host, by what Nova says of the migration."""

from __future__ import annotations

from typing import Final

#: In the order in which a migration passes through them; it never goes back. ``finished`` is a
#: resize that waits to be confirmed or reverted.
IN_PROGRESS: Final = (
    "queued",
    "accepted",
    "preparing",
    "pre-migrating",
    "migrating",
    "running",
    "running (post-copy)",
    "post-migrating",
    "finished",
    "confirming",
    "reverting",
)
RESIZE: Final = "resize"


def is_in_progress(status: str) -> bool:
    """Return whether a migration of this status holds room on both of its hosts."""
    return status in IN_PROGRESS
