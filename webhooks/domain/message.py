"""A delivery on the wire: CloudEvents 1.0 in structured JSON, signed as Standard Webhooks say."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - no secret
LEAST_SECRET_BYTES: Final = 24


def cloud_event(
    *,
    event_id: int,
    source: str,
    topic: str,
    object_type: str,
    object_id: str,
    occurred_at: datetime,
    payload: Mapping[str, Any],
) -> bytes:
    """Return a CloudEvent as bytes, the same ones whenever it is made.

    Source: CloudEvents 1.0, JSON format, structured content mode.
    """
    return orjson.dumps(
        {
            "specversion": "1.0",
            "id": str(event_id),
            "source": source,
            "type": topic,
            "subject": object_id,
            "time": occurred_at.astimezone(UTC),
            "datacontenttype": "application/json",
            "objecttype": object_type,
            "data": payload,
        },
        option=orjson.OPT_UTC_Z,
    )


def secrets_of(text: str) -> list[bytes]:
    """Return the keys of a file of secrets, one a line.

    Raises:
        ValueError: there is none, or one is not ``whsec_`` and base64 of enough bytes.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    keys = []
    for line in lines:
        try:
            key = base64.b64decode(line.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error:
            key = b""
        if not line.startswith(SECRET_PREFIX) or len(key) < LEAST_SECRET_BYTES:
            raise ValueError(
                f"each line must be whsec_ and base64 of at least {LEAST_SECRET_BYTES} bytes"
            )
        keys.append(key)
    if not keys:
        raise ValueError("no secret in it")
    return keys


def signed_headers(
    body: bytes, keys: Sequence[bytes], *, message_id: str, now: datetime
) -> dict[str, str]:
    """Return the headers that a receiver checks: one signature for each key.

    Source: Standard Webhooks, "Signature scheme".
    """
    seconds = str(int(now.timestamp()))
    signed = b".".join((message_id.encode(), seconds.encode(), body))
    signatures = (
        base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys
    )
    return {
        "webhook-id": message_id,
        "webhook-timestamp": seconds,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def pause_seconds(
    attempts: int, *, base: float, cap: float, share: float, asked: float | None = None
) -> float:
    """Return how long is waited after a failure: twice as long each time, spread over a half.

    Args:
        attempts: That failed, at least 1.
        share: Random, 0 to 1.
        asked: Seconds that the receiver asked for.
    """
    longest = min(cap, base * (1 << min(attempts - 1, 30)))
    return max(longest * (0.5 + share / 2), min(asked or 0.0, cap))
