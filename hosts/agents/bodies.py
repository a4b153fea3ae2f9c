"""Bodies that agents send, judged by schemas, with errors that name a field (spec hosts, D.6)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.utils.dateparse import parse_datetime

from hosts.agents.errors import AgentRefused

AHEAD: Final = timedelta(minutes=5)
AMOUNT: Final = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}

Schema = dict[str, Any]  # Any: JSON


def object_of(required: Schema, optional: Schema | None = None) -> Schema:
    """Return the schema of an object that has these fields, maybe those, and no other."""
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def list_of(items: Schema, most: int) -> Schema:
    """Return the schema of a list of at most so many."""
    return {"type": "array", "items": items, "maxItems": most}


def valid(validator: Any, sent: object, what: str = "the body") -> Schema:  # Any: of the library
    """Return a body that is an object by its schema.

    Raises:
        AgentRefused: It is none; the first field that is wrong is named.
    """
    error = next(iter(validator.iter_errors(sent)), None)
    if error is not None:
        field = "/".join(str(part) for part in error.instance_path)
        raise wrong(field, error.message[:200], what)
    assert isinstance(sent, dict)  # noqa: S101 - by the schema
    return sent


def generated_at(document: Mapping[str, Any], now: datetime) -> datetime:
    """Return when what a body tells was seen, in UTC: the database takes fewer offsets.

    Raises:
        AgentRefused: That is no time with an offset, before the first year, or too far ahead of
            ours.
    """
    try:
        told = parse_datetime(document["generated_at"])
        told = None if told is None or told.tzinfo is None else told.astimezone(UTC)
    except (ValueError, OverflowError):
        told = None
    if told is None:
        raise wrong("generated_at", "it is no time with an offset")
    if told > now + AHEAD:
        raise wrong("generated_at", f"it is {told - now} ahead of our time")
    return told


def wrong(field: str, reason: str, what: str = "") -> AgentRefused:
    """Return the refusal of a body, of which a field is wrong."""
    return AgentRefused(f"{field or what}: {reason}", code="invalid_report", field=field)
