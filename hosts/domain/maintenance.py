"""Taking a host out of service, and how one comes back (spec hosts, C.1)."""

from __future__ import annotations

from typing import Final

MANUAL: Final = "manual"
TERMINATION: Final = "termination"
HA: Final = "ha"


def maintenance_problem(
    before: str, after: str, *, reason: str, is_more_changed: bool = False
) -> str:
    """Return why a host's maintenance may not become another one; empty when it may.

    A host that is being taken out for good stays so, whatever else is asked; only ``ha`` takes that
    back.

    Args:
        before: A value of :class:`hosts.models.Maintenance`.
        after: Likewise.
        reason: Why, in somebody's words.
        is_more_changed: Whether something else of the host changes as well.
    """
    if after == MANUAL and not reason.strip():
        return "manual maintenance needs a reason"
    if before != TERMINATION or after == HA:
        return ""
    if after != TERMINATION or is_more_changed:
        return "the host is being terminated: only ha ends that, and nothing else changes"
    return ""
