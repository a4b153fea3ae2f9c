"""Negotiation of the microversion (spec placement, 2.4).

The major version is always 1, so a version is its minor number everywhere behind this module.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from placement.domain.errors import BadRequest, NotAcceptable, PlacementError

SERVICE: Final = "placement"
MAJOR: Final = 1
MIN_MINOR: Final = 0
MAX_MINOR: Final = 39
LATEST: Final = "latest"
MIN_VERSION: Final = f"{MAJOR}.{MIN_MINOR}"
MAX_VERSION: Final = f"{MAJOR}.{MAX_MINOR}"

VERSION = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")


class VersionNotAcceptable(NotAcceptable):
    """The version asked for is not one we speak."""

    code = "placement_version_not_acceptable"
    has_code = False


@lru_cache(maxsize=256)
def negotiated_minor(header: str | None) -> int:
    """Return the minor version that a request asks for.

    Args:
        header: The value of ``OpenStack-API-Version``, several lines joined with commas.

    Raises:
        BadRequest: the version is not a pair of numbers.
        NotAcceptable: the version is out of range.

    Source: spec placement, section 2.4.
    """
    wanted = wanted_version(header) if header else None
    if wanted is None:
        return MIN_MINOR
    if wanted == LATEST:
        return MAX_MINOR
    match = VERSION.fullmatch(wanted)
    if match is None:
        raise _without_code(BadRequest(f"invalid version string: {wanted}"))
    major, minor = int(match[1]), int(match[2])
    if major != MAJOR or not MIN_MINOR <= minor <= MAX_MINOR:
        raise VersionNotAcceptable(
            f"Unacceptable version header: {wanted}",
            extra={"max_version": MAX_VERSION, "min_version": MIN_VERSION},
        )
    return minor


def wanted_version(header: str) -> str | None:
    """Return the version that a header asks for, as it is written; nothing if it names none."""
    wanted = None
    for entry in header.split(","):
        service, _, version = entry.strip().partition(" ")
        if service.lower() == SERVICE and version.strip():
            wanted = version.strip()
    return wanted


def _without_code(error: PlacementError) -> PlacementError:
    error.has_code = False
    return error
