"""Whether both sides still fit together in mode ``hybrid`` (docs/gateway.md).

Nothing but names is copied between the sides, and what they share is little: consumers that hold
something of both, names, and the rule that no provider is on both. Writes go on while both are
read, so that whatever does not fit is looked at once more before it is told.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from core.conf import headroom
from core.prepared import fetch, run
from core.text import plural
from placement.clients.reference_api import PeerError
from placement.cutover.peer import Peer
from placement.domain.transfer import ConsumerRecord
from placement.gateway.modes import STATEFUL, Mode
from placement.gateway.ownership import all_owned
from placement.models import HybridReport, SplitWrite
from placement.models.names import CUSTOM_PREFIX
from placement.selectors.allocations import UNKNOWN_TYPE, get_consumer_allocations

MOST_FINDINGS: Final = 1000
MOST_REPORTS: Final = 100
WRITTEN: Final = frozenset({201, 204})
CONSUMERS: Final = "SELECT uuid::text FROM placement_consumer ORDER BY uuid"
#: Custom names that something of ours uses.
USED_TRAITS: Final = """
SELECT DISTINCT t.name FROM placement_provider_trait l
  JOIN placement_trait t ON t.id = l.trait_id
  JOIN placement_provider p ON p.id = l.provider_id
 WHERE p.origin <> 'upstream' ORDER BY t.name
"""
USED_CLASSES: Final = """
SELECT DISTINCT c.name FROM placement_inventory i
  JOIN placement_resource_class c ON c.id = i.resource_class_id
  JOIN placement_provider p ON p.id = i.provider_id
 WHERE p.origin <> 'upstream' ORDER BY c.name
"""
FORGET: Final = """
DELETE FROM placement_hybrid_report
 WHERE id <= (SELECT id FROM placement_hybrid_report ORDER BY id DESC OFFSET %s LIMIT 1)
"""


class DriftKind(StrEnum):
    """What does not fit."""

    SHADOW = "shadow"
    OWNER = "owner"
    TRAIT = "trait"
    RESOURCE_CLASS = "resource_class"
    UNSETTLED = "unsettled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that does not fit.

    Attributes:
        subject: UUID or name.
        detail: What is wrong with it.
    """

    kind: DriftKind
    subject: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a look at both sides found."""

    seconds: float
    providers_there: int
    split_consumers: int
    findings: tuple[Finding, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """How many findings there are, by kind; zeros included."""
        found = Counter(str(one.kind) for one in self.findings)
        return {str(kind): found[kind] for kind in DriftKind}


def is_hybrid() -> bool:
    """Return whether both sides hold a part of the state."""
    return headroom().gateway.mode_of_group()[STATEFUL[0]] is Mode.HYBRID


def verify(peer: Peer) -> Report:
    """Look at both sides, and keep what was found.

    Raises:
        HeadroomError: the other side cannot be read.
    """
    began = time.monotonic()
    rows = peer.rows()
    both = _on_both(peer, rows)
    findings = (
        *_shadows(peer, rows),
        *_owners(peer, both),
        *_names(peer),
        *_unsettled(),
    )
    report = Report(
        seconds=time.monotonic() - began,
        providers_there=len(rows),
        split_consumers=len(both),
        findings=findings,
    )
    HybridReport.objects.create(
        seconds=report.seconds,
        providers_there=report.providers_there,
        split_consumers=report.split_consumers,
        counts=report.counts,
        findings=[asdict(one) for one in findings[:MOST_FINDINGS]],
    )
    run(FORGET, [MOST_REPORTS])
    return report


def make_names_there(peer: Peer, findings: Iterable[Finding]) -> int:
    """Create the names over there that it lacks; return how many.

    Raises:
        PeerError: it refuses one.
    """
    paths = {DriftKind.TRAIT: ("/traits", 6), DriftKind.RESOURCE_CLASS: ("/resource_classes", 7)}
    made = 0
    for one in findings:
        if one.kind not in paths:
            continue
        path, minor = paths[one.kind]
        answer = peer.send("PUT", f"{path}/{one.subject}", minor, b"")
        if answer.status not in WRITTEN:
            raise PeerError(f"PUT {path}/{one.subject} answered {answer.status}")
        made += 1
    return made


def _shadows(peer: Peer, rows: Mapping[str, Any]) -> Iterator[Finding]:
    """Tell providers there that have the UUID or the name of one of ours."""
    owned = all_owned()
    uuids, names = {uuid for uuid, _ in owned}, {name: uuid for uuid, name in owned}
    for uuid, row in sorted(rows.items()):
        if uuid not in uuids and row["name"] not in names:
            continue
        if peer.find(f"/resource_providers/{uuid}") is None:  # it has gone meanwhile
            continue
        held = peer.find(f"/resource_providers/{uuid}/allocations") or {}
        count = len(held.get("allocations", {}))
        what = "the UUID" if uuid in uuids else f"the name of {names[row['name']]}"
        yield Finding(
            kind=DriftKind.SHADOW,
            subject=uuid,
            detail=f"{row['name']} has {what} of ours; "
            f"{plural(count, 'consumer')} with something of it there",
        )


def _on_both(peer: Peer, rows: Mapping[str, Any]) -> list[ConsumerRecord]:
    """Return what consumers of ours hold there; asks for the fewer of consumers and providers."""
    here = [row[0] for row in fetch(CONSUMERS)]
    if len(here) > len(rows):
        listed = peer.each(
            lambda uuid: peer.find(f"/resource_providers/{uuid}/allocations") or {}, list(rows)
        )
        there = {uuid for one in listed for uuid in one.get("allocations", {})}
        here = sorted(there.intersection(here))
    return [found for found in peer.each(peer.consumer, here) if found is not None]


def _owners(peer: Peer, both: Iterable[ConsumerRecord]) -> Iterator[Finding]:
    """Tell consumers of which both sides say something else."""
    for record in both:
        if not _differing(record):
            continue
        again = peer.consumer(record.uuid)
        found = _differing(again) if again is not None else []
        if found:
            yield Finding(kind=DriftKind.OWNER, subject=record.uuid, detail="; ".join(found))


def _differing(there: ConsumerRecord) -> list[str]:
    here = get_consumer_allocations(there.uuid)
    if not here.resources:
        return []
    kind = here.consumer_type
    pairs = {
        "project": (here.project_id, there.project),
        "user": (here.user_id, there.user),
        "type": ("" if kind in {None, UNKNOWN_TYPE} else kind, there.type_name),
    }
    return [
        f"{name} {ours or 'unknown'} here, {theirs or 'unknown'} there"
        for name, (ours, theirs) in pairs.items()
        if ours != theirs
    ]


def _names(peer: Peer) -> Iterator[Finding]:
    """Tell custom names that ours use and the other side does not know."""
    classes, traits = peer.names()
    for kind, statement, known in (
        (DriftKind.TRAIT, USED_TRAITS, traits),
        (DriftKind.RESOURCE_CLASS, USED_CLASSES, classes),
    ):
        for (name,) in fetch(statement):
            if name.startswith(CUSTOM_PREFIX) and name not in known:
                detail = "providers of ours have it; who asks for it is refused over there"
                yield Finding(kind=kind, subject=name, detail=detail)


def _unsettled() -> Iterator[Finding]:
    """Tell writes of both sides whose outcome nobody knows."""
    for row in SplitWrite.objects.exclude(error="")[:MOST_FINDINGS]:
        names = ", ".join(sorted(row.theirs))
        yield Finding(kind=DriftKind.UNSETTLED, subject=str(row.pk), detail=f"{names}: {row.error}")
