"""Refusals that end an agent."""

from __future__ import annotations

from typing import Final

#: No later request undoes these: an operator revoked the key, or the host is not known any more.
ENDING: Final = frozenset({"key_revoked", "unknown_key", "wrong_host", "decommissioned"})


class EndedError(Exception):
    """The server takes nothing more of this agent."""
