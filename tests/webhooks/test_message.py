"""The body and the headers of a delivery, as the two conventions have them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime

import pytest

from webhooks.domain.message import cloud_event, pause_seconds, secrets_of, signed_headers

KEY = b"k" * 24
SECRET = "whsec_" + base64.b64encode(KEY).decode()


def test_a_delivery_is_a_cloud_event() -> None:
    body = cloud_event(
        event_id=7,
        source="/headroom/r1",
        topic="commitment.accepted",
        object_type="Commitment",
        object_id="c-1",
        occurred_at=datetime(2026, 11, 23, 12, 30, tzinfo=UTC),
        payload={"amount": 3},
    )
    assert json.loads(body) == {
        "specversion": "1.0",
        "id": "7",
        "source": "/headroom/r1",
        "type": "commitment.accepted",
        "subject": "c-1",
        "time": "2026-11-23T12:30:00Z",
        "datacontenttype": "application/json",
        "objecttype": "Commitment",
        "data": {"amount": 3},
    }


def test_each_key_signs_id_time_and_body() -> None:
    now = datetime(2026, 11, 23, 12, 30, tzinfo=UTC)
    headers = signed_headers(b"{}", [KEY, b"n" * 24], message_id="m-1", now=now)
    seconds = int(now.timestamp())
    signatures = [
        base64.b64encode(hmac.digest(key, f"m-1.{seconds}.{{}}".encode(), hashlib.sha256)).decode()
        for key in (KEY, b"n" * 24)
    ]
    assert headers == {
        "webhook-id": "m-1",
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{signatures[0]} v1,{signatures[1]}",
    }


def test_secrets_are_lines() -> None:
    assert secrets_of(f"\n {SECRET} \n{SECRET}\n") == [KEY, KEY]


@pytest.mark.parametrize(
    "text", ["", "whsec_", "whsec_abc", SECRET[6:], "whsec_AAAA", f"{SECRET}\nx"]
)
def test_what_is_no_secret_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"secret|whsec_"):
        secrets_of(text)


def test_pauses_double_up_to_a_cap_and_are_spread() -> None:
    pauses = [pause_seconds(n, base=5, cap=60, share=1.0) for n in (1, 2, 3, 4, 5, 6, 10_000)]
    assert pauses == [5, 10, 20, 40, 60, 60, 60]
    assert pause_seconds(1, base=5, cap=60, share=0.0) == 2.5
    assert pause_seconds(1, base=5, cap=60, share=0.0, asked=30) == 30
    assert pause_seconds(1, base=5, cap=60, share=0.0, asked=1e9) == 60
