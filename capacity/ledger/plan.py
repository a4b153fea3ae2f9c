"""What shall become of slots: plain values that :mod:`capacity.ledger.apply` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.resources import ZERO, ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Whether a slot has its host, and why.

    Attributes:
        reason: A ``ReadyReason``.
        message: The same in words.
        decision: Why this host, as it is stored.
        is_observed: Whether this is about the commitment as it is now.
    """

    reason: str
    message: str
    decision: Mapping[str, object] | None = None
    is_observed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A slot gets a host, goes to another one, or loses the one that it has.

    Attributes:
        slot_id: The slot; 0 for one that is not stored yet.
        host_id: Where it goes; None when it has no host from now on.
        block: What it takes there, in bytes and vCPUs; zero without a host.
        standing: How it stands then; None leaves what it says of itself.
    """

    slot_id: int
    host_id: int | None = None
    block: ResourceVector = ZERO
    standing: Standing | None = None
