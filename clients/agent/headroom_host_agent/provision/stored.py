"""What the agent's store keeps: reservations, messages and what was made (spec hosts, B.9)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from headroom_host_agent.provision.wire import (
    Reservation,
    reservation_from_json,
    reservation_to_json,
)

FORGOTTEN = -1  # number of a reservation whose number is of another history than the server's
MADE = 2  # in the column ``begun``
#: What data say that VMs had filled of a reservation: by the names of resources.
FILLED = "filled"
#: Types whose artefacts are all the same, whoever had them; of others nothing is known.
WITHOUT_DATA = frozenset({"accounting", "capacity_slice", "hugepages", "noop", "vgpu"})


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
        made: Whether it is on the host, though its job is still to come: as another attempt, or
            because a store before this one is lost.
        former: What is on the host as long as what is asked for instead is not; None otherwise.
    """

    reservation: Reservation
    state: State
    digest: str
    runs_as: str
    begun: bool
    made: bool = False
    former: Reservation | None = None

    @property
    def there(self) -> Reservation:
        """What is on the host of it, or is to be."""
        return self.reservation if self.former is None else self.former

    @property
    def is_forgotten(self) -> bool:
        """Whether the server does not know it (any more), or has not said yet that it does."""
        return self.reservation.seq == FORGOTTEN

    @property
    def slot(self) -> str:
        """The first part of its id."""
        return self.reservation.id.partition("-")[0]

    def may_serve(self, other: Reservation) -> bool:
        """Return whether what it made is what another reservation asks for.

        What may hold somebody's data serves its own slot alone, however alike others are.
        """
        ours = self.reservation
        if ours.type not in WITHOUT_DATA and self.slot != other.id.partition("-")[0]:
            return False
        return not (ours.to_delete or other.to_delete) and _asked(ours) == _asked(other)


def _asked(reservation: Reservation) -> tuple[object, ...]:
    """Return what is asked for; what VMs had filled of it when it was asked for is no part."""
    data = json.loads(reservation.data or b"null")
    if isinstance(data, dict):
        data.pop(FILLED, None)
    return (
        reservation.node_id,
        reservation.user_id,
        reservation.type,
        data,
        dict(reservation.resources),
    )


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


def former_text(reservation: Reservation) -> str:
    """Return a reservation as it is kept while another takes its place."""
    body = reservation_to_json(reservation).decode()
    return json.dumps({"resources": dict(reservation.resources), "body": body}, sort_keys=True)


def _former_of(text: str | None) -> Reservation | None:
    if text is None:
        return None
    kept = json.loads(text)
    return replace(reservation_from_json(kept["body"].encode()), resources=kept["resources"])


def row_of(found: tuple[int, int, int, str, str, bytes, str, str, int, str | None]) -> Row:
    """Return a reservation of the columns of its table, with what is kept of what was before it."""
    seq, attempt, epoch, digest, resources, body, state, runs_as, begun, former = found
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
        made=begun == MADE,
        former=_former_of(former) if begun == MADE else None,
    )
