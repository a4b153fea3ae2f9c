"""Which versions both Placements speak (spec placement, 8.5)."""

from __future__ import annotations

import threading
import time
from typing import Final

import orjson

from core.conf import headroom
from placement.domain.errors import PlacementError
from placement.domain.merging import OURS, VersionRange, version_range
from placement.domain.microversion import (
    LATEST,
    MAJOR,
    VersionNotAcceptable,
    negotiated_minor,
    wanted_version,
)
from placement.gateway.current import current_upstream

#: How long an answer holds, or that there was none; a service gets new versions with a new release.
KNOWN_SECONDS: Final = 60.0
#: How long whoever asks waits for it at the most: clients wait meanwhile, and it is no work.
ASK_SECONDS: Final = 5.0
OK: Final = 200

_lock: Final = threading.Lock()
_known: tuple[object, float, VersionRange] | None = None


def common_versions() -> VersionRange:
    """Return the versions that both speak, as last known; ours while nobody knows theirs.

    While one thread asks, the others go by what was known before; only without that they wait.
    """
    settings = headroom().gateway
    known = _known_for(settings)
    if known is not None and time.monotonic() < known[1]:
        return known[2]
    if not _lock.acquire(blocking=known is None):
        return known[2] if known is not None else OURS
    try:
        return _asked_for(settings)
    finally:
        _lock.release()


def _known_for(settings: object) -> tuple[object, float, VersionRange] | None:
    known = _known
    return known if known is not None and known[0] is settings else None


def _asked_for(settings: object) -> VersionRange:
    """Return what is known; ask if that is nothing, or too old."""
    global _known  # noqa: PLW0603 - one per process
    known = _known_for(settings)
    if known is not None and time.monotonic() < known[1]:
        return known[2]
    found = _asked() or (known[2] if known is not None else OURS)
    _known = settings, time.monotonic() + KNOWN_SECONDS, found
    return found


def _asked() -> VersionRange | None:
    try:
        answer = current_upstream().send(
            "GET",
            "/",
            headers=[("Accept", "application/json")],
            until=time.monotonic() + ASK_SECONDS,
        )
        theirs = version_range(orjson.loads(answer.body)) if answer.status == OK else None
    except (PlacementError, orjson.JSONDecodeError):
        return None
    return OURS.joined(theirs) if theirs else None


def minor_of_both(header: str | None) -> int:
    """Return the version that a request asks for; the newest is the newest that both speak.

    Raises:
        BadRequest: it is no version.
        NotAcceptable: not both speak it.
    """
    both = common_versions()
    if header and wanted_version(header) == LATEST:
        return both.high
    minor = negotiated_minor(header)
    if not both.low <= minor <= both.high:
        raise VersionNotAcceptable(
            f"Unacceptable version header: {MAJOR}.{minor}",
            extra={
                "max_version": f"{MAJOR}.{both.high}",
                "min_version": f"{MAJOR}.{both.low}",
            },
        )
    return minor
