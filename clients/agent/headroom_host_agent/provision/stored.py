"""What the agent's store keeps: reservations, messages and what was made (spec hosts, B.9)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from headroom_host_agent.provision.wire import Reservation, reservation_from_json


class StoreError(Exception):
    """The store cannot be used as asked."""


class UnknownReservationError(StoreError, KeyError):
    """No reservation has this id."""


class State(StrEnum):
    """Where a reservation stands on this host."""

    QUEUED = "queued"  # stored with its page, not begun
    PROVISIONING = "provisioning"
    DEPLOYED = "deployed"
    FAILED = "failed"  # nothing of it is left here
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A reservation with what only this host knows.

    Attributes:
        runs_as: The id that its artefacts carry: that of the first it replaced.
        begun: Whether something of it may be on the host, also when it waits for a change.
    """

    reservation: Reservation
    state: State
    digest: str
    runs_as: str
    begun: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Something to tell the server.

    Attributes:
        key: ``id:attempt:kind``; the same message has the same key.
        tries: How often it was sent without an answer that counts.
    """

    key: str
    body: bytes
    number: int = 0
    tries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Something that a reservation makes on the host; kept from before it is made."""

    name: str
    kind: str
    reservation_id: str


class Statser(Protocol):
    """Counts workloads (spec hosts, B.8)."""

    def increment(self, kind: str, data: Mapping[str, object]) -> None:
        """Count one."""


def row_of(found: tuple[int, int, int, str, str, bytes, str, str, int]) -> Row:
    """Return a reservation of the columns of its table."""
    seq, attempt, epoch, digest, resources, body, state, runs_as, begun = found
    reservation = replace(
        reservation_from_json(body),
        seq=seq,
        attempt=attempt,
        fence_epoch=epoch,
        resources=json.loads(resources),
    )
    return Row(
        reservation=reservation,
        state=State(state),
        digest=digest,
        runs_as=runs_as,
        begun=bool(begun),
    )
