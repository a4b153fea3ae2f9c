"""Names of failover reservations (spec failover, 12.4)."""

from __future__ import annotations

import re
from typing import Final

SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX_LENGTH: Final = 5
_SEGMENT_LENGTH = 9
_FORBIDDEN = re.compile(r"[^a-z0-9-]")


def zone_segment(zone: str) -> str:
    """Return the part of a name that stands for the zone.

    Source: spec failover, 12.4.
    """
    return _FORBIDDEN.sub("", zone.lower())[:_SEGMENT_LENGTH].strip("-") or "unknown"


def reservation_name(zone: str, suffix: str) -> str:
    """Return the name of a failover reservation.

    Args:
        zone: Zone of the VM it is made for.
        suffix: Five characters of ``SUFFIX_ALPHABET``, drawn at random by the caller.
    """
    return f"failover-{zone_segment(zone)}-{suffix}"
