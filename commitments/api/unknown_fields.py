"""Counting request fields that LIQUID does not know (spec liquid, 2.1).

They are ignored, so that a newer Limes can talk to us; who debugs one sees them in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import structlog

log = structlog.get_logger(__name__)

MAX_NAMES = 20
MAX_NAME_LENGTH = 120

Known: TypeAlias = Mapping[str, Any]
"""Field -> what is known below it: another mapping, one for each entry, or nothing to look at."""

EACH = "*"
"""In place of a field: any key of a map, or any element of a list."""

FREE: Known = {EACH: None}
METADATA: Known = {"uuid": {}, "name": {}, "domain": {"uuid": {}, "name": {}}}
DEMAND: Known = {"usage": {}, "unusedCommitments": {}, "pendingCommitments": {}}
COMMITMENT: Known = {
    "uuid": {},
    "oldStatus": {},
    "newStatus": {},
    "amount": {},
    "confirmBy": {},
    "expiresAt": {},
    "oldExpiresAt": {},
}
CHANGESET: Known = {
    "totalConfirmedBefore": {},
    "totalConfirmedAfter": {},
    "totalGuaranteedBefore": {},
    "totalGuaranteedAfter": {},
    "commitments": {EACH: COMMITMENT},
}

CAPACITY_REQUEST: Known = {
    "allAZs": {},
    "demandByResource": {EACH: {"overcommitFactor": {}, "perAZ": {EACH: DEMAND}}},
}
USAGE_REQUEST: Known = {"allAZs": {}, "projectMetadata": METADATA, "serializedState": FREE}
QUOTA_REQUEST: Known = {
    "resources": {EACH: {"quota": {}, "perAZ": {EACH: {"quota": {}}}}},
    "projectMetadata": METADATA,
}
CHANGE_REQUEST: Known = {
    "az": {},
    "dryRun": {},
    "infoVersion": {},
    "byProject": {EACH: {"projectMetadata": METADATA, "byResource": {EACH: CHANGESET}}},
}


def unknown_fields(content: object, known: Known, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that are not known; maps and lists are followed.

    Args:
        content: Decoded JSON of any shape; what has the wrong shape is not followed.
        known: The fields at this place.
        path: Where the place is.
    """
    if isinstance(content, list):
        if EACH in known:
            for index, item in enumerate(content):
                yield from _below(item, known[EACH], f"{path}[{index}]")
    elif isinstance(content, dict):
        for name, item in content.items():
            where = f"{path}.{name}" if path else name
            if name in known or EACH in known:
                yield from _below(item, known.get(name, known.get(EACH)), where)
            else:
                yield where


def _below(content: object, known: Known | None, path: str) -> Iterator[str]:
    if known is not None:
        yield from unknown_fields(content, known, path)


def count_unknown_fields(content: object, known: Known) -> int:
    """Log fields of a request body that are ignored for being unknown; returns how many.

    Args:
        content: Its decoded JSON.
        known: Fields of the request.
    """
    found = list(unknown_fields(content, known))
    if found:
        names = [name[:MAX_NAME_LENGTH] for name in found[:MAX_NAMES]]
        log.debug("unknown_request_fields", count=len(found), names=names)
    return len(found)
