"""Whether both sides hold the same, read apart from how it was copied (docs/gateway.md)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from placement.clients.reference_api import StepSeen
from placement.clients.reference_database import read_database
from placement.cutover.parts import part_of
from placement.cutover.peer import Peer
from placement.domain.contents_differences import Difference, differences
from placement.domain.transfer import Contents
from placement.selectors.contents import read_contents

#: Looks at what differs; writes between two reads differ at one of them only.
LOOKS: Final = 25

Even = Callable[[], None]
"""Brings across what was written meanwhile."""


def compare(
    peer: Peer,
    *,
    database: str,
    seen: StepSeen,
    even: Even,
    only: Collection[str] | None = None,
) -> tuple[Contents, list[Difference]]:
    """Return what the other side holds, and what differs here, generations included.

    Both are read while writes go on; what differs is looked at again by itself, until it is the
    same or has differed at every look.

    Args:
        database: Its database, read instead of its API if given; see ``placement_import``.
        seen: Told of progress.
        even: Called before each look.
        only: Providers that count, with what consumers hold of them; all if not given.

    Raises:
        HeadroomError: the other side cannot be read.
    """
    even()
    there = read_database(database) if database else peer.contents(seen)
    here = read_contents(with_copies=True)
    if only is not None:
        there, here = part_of(there, only), part_of(here, only)
    found = differences(there, here)
    for _ in range(LOOKS - 1):
        if not found:
            break
        even()
        found = _again(peer, found)
    return there, found


def _again(peer: Peer, found: list[Difference]) -> list[Difference]:
    """Return what still differs of what differed."""
    providers = sorted({one.subject for one in found if one.kind == "provider"})
    consumers = sorted({one.subject for one in found if one.kind == "consumer"})
    pairs = peer.each(peer.provider, providers)
    records = peer.each(peer.consumer, consumers)
    classes, traits = peer.names()
    here = read_contents(with_copies=True)
    there = Contents(
        classes=classes,
        traits=traits,
        providers={pair[0].uuid: pair[0] for pair in pairs if pair is not None},
        consumers={record.uuid: record for record in records if record is not None},
    )
    local = Contents(
        classes=here.classes,
        traits=here.traits,
        providers={uuid: here.providers[uuid] for uuid in providers if uuid in here.providers},
        consumers={uuid: here.consumers[uuid] for uuid in consumers if uuid in here.consumers},
    )
    return differences(there, local)
