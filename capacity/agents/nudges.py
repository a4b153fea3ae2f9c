"""Having slots reach the agents of their hosts as soon as they are committed."""

from __future__ import annotations

import time
from typing import Final

from django.db import transaction

from hosts.agents.modes import does_any_enforce
from journal.nudges import hint_worker

FOLLOW_SLOTS: Final = "capacity.follow_slots"
KNOWN_SECONDS: Final = 2.0


class _Known:
    """Whether any agent makes slots, as this process knew it a moment ago."""

    until = 0.0
    enforces = False


def slots_changed() -> None:
    """Have a worker compare slots with what agents were asked, once the transaction is committed.

    Where no agent makes slots, this costs a small query every two seconds, and nobody is sent.
    """
    transaction.on_commit(_hint, robust=True)


def _hint() -> None:
    now = time.monotonic()
    if now >= _Known.until:
        _Known.enforces, _Known.until = does_any_enforce(), now + KNOWN_SECONDS
    if _Known.enforces:
        hint_worker(FOLLOW_SLOTS)
