"""What is known of a written object, what a write made of it, and what is told of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.domain.kinds import Naming, ObjectKind
from bridge.domain.objects import Rendered

REASON_CHARACTERS: Final = 60
LONGEST_BACKOFF_SECONDS: Final = 300
MOST_FIELDS_TOLD: Final = 10
#: Reasons of Ready that a commitment is told by; a type and a word for each.
COMMITMENT_EVENTS: Final = {"Accepted": ("Normal", "Accepted"), "Rejected": ("Warning", "Rejected")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was written last; empty where nothing was, or where all of it is in doubt.

    Attributes:
        generation: ``metadata.generation`` of the object.
        observed: Generation that the Ready condition was about.
        reason: Status and reason of that condition.
        is_left: Whether it is as others left it, which was told.
        is_suspect: Whether it has another version than was written last, or is gone.
        adopted: What of it is left to others: ``uid`` of the object and ``fields``, each with its
            path and what the database said; or ``gone``, the digest of what was deleted.
        age_seconds: Since the last write; None where there was none.
    """

    state_id: int
    wanted: int
    kind: ObjectKind
    source_id: int
    cluster: str = ""
    name: str = ""
    spec_digest: str = ""
    status_digest: str = ""
    resource_version: str = ""
    generation: int = 0
    observed: int | None = None
    reason: str = ""
    is_first: bool = False
    failures: int = 0
    drifts: int = 0
    is_left: bool = False
    is_suspect: bool = False
    adopted: dict[str, Any] | None = None  # Any: what JSON holds
    transitions: dict[str, list[str]] = field(default_factory=dict)
    age_seconds: float | None = None


def reason_of(rendered: Rendered) -> str:
    """Return status and reason of the Ready condition as one word, empty without one."""
    condition = rendered.condition
    if condition.status is None:
        return ""
    return f"{condition.status}/{condition.reason}"[:REASON_CHARACTERS]


def rest_seconds(known: Known, rendered: Rendered, interval_seconds: float) -> int:
    """Return for how long an object is still left alone; 0 where it is to be written now.

    Hosts alone, whose figures and VMs change with every VM that comes or goes: an object of a host
    is written once in an interval unless its spec or the status of a condition changed.
    """
    age_seconds = known.age_seconds
    if (
        rendered.kind is not ObjectKind.HOST
        or age_seconds is None
        or age_seconds >= interval_seconds
    ):
        return 0
    if not known.resource_version or known.is_suspect or known.is_left or known.adopted is not None:
        return 0
    told = {type_name: status for type_name, (status, _) in known.transitions.items()}
    is_same = (
        known.spec_digest == rendered.spec_digest
        and known.reason == reason_of(rendered)
        and told == rendered.condition_statuses
    )
    return math.ceil(interval_seconds - age_seconds) if is_same else 0


def event_of(known: Known, rendered: Rendered) -> tuple[str, str] | None:
    """Return type and reason of the Event that a transition is told by; None when by none.

    What the bridge sees first when it reads everything is no transition.
    """
    now = reason_of(rendered)
    if now == known.reason or (known.is_first and not known.reason) or not now:
        return None
    before, reason = known.reason, rendered.condition.reason
    if rendered.kind is ObjectKind.COMMITTED_RESOURCE:
        return COMMITMENT_EVENTS.get(reason)
    if rendered.kind is not ObjectKind.RESERVATION:
        return None
    if reason == "PlacementRevoked":
        return ("Warning", "Evicted")
    if rendered.spec["type"] == "FailoverReservation" and before:
        was_ready, is_ready = before.startswith("True"), bool(rendered.condition.status)
        if was_ready != is_ready:
            return ("Normal", "FailoverRegained") if is_ready else ("Warning", "FailoverLost")
    return None


def hand_edit_message(others: Iterable[str], fields: Iterable[str], outcome: str) -> str:
    """Return what an object's Event says when it is not as it was written.

    Args:
        others: Field managers of it that are no bridge; none of an object that was deleted.
        fields: That were changed.
        outcome: What becomes of the edit.
    """
    who = ", ".join(sorted(others))
    said = f"changed by {who}" if who else "deleted, though not by Headroom"
    named = sorted(fields)
    what = ": " + ", ".join(named[:MOST_FIELDS_TOLD]) if named else ""
    return f"{said}{what} ({outcome})"


def event_manifest(
    kind: ObjectKind,
    name: str,
    naming: Naming,
    *,
    event: tuple[str, str],
    message: str,
    uid: str,
    at: str,
    version: str = "",
) -> dict[str, Any]:  # Any: what JSON holds
    """Return an Event of core/v1; the same transition has the same name, so it is told once.

    Args:
        kind: Of the object that it is about.
        name: Of the object.
        event: Type and reason.
        uid: Of the object; empty if there is none.
        at: When it happened, as Kubernetes writes times; empty if nobody knows.
        version: Of the object, where the time does not tell one such event from the next.
    """
    severity, reason = event
    told = f"{uid} {reason} {at} {version} {message}".encode()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{name[:200]}.{hashlib.sha256(told).hexdigest()[:16]}",
            "namespace": "default",
        },
        "involvedObject": {
            "apiVersion": naming.api_version,
            "kind": kind.value,
            "name": name,
            "uid": uid,
        },
        "type": severity,
        "reason": reason,
        "message": message[:1000],
        "firstTimestamp": at or None,
        "lastTimestamp": at or None,
        "count": 1,
        "source": {"component": "headroom-bridge"},
        "reportingComponent": "headroom-bridge",
        "reportingInstance": naming.region_value,
    }


def backoff_seconds(failures: int) -> int:
    """Return how long an object that was refused waits for its next attempt."""
    return int(min(LONGEST_BACKOFF_SECONDS, 2 ** min(failures, 20)))


def is_newer(version: str, other: str) -> bool:
    """Return whether a version of an object is later than another; False where none can tell.

    Kubernetes promises from 1.35 on that versions are numbers that grow; they were before.
    """
    return version.isdecimal() and other.isdecimal() and int(version) > int(other)
