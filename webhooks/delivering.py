"""Deliveries on their way: claimed, sent, noted. Nothing is sent inside a transaction.

Of an object the first that waits is claimed: it is due again after a while, so who dies with it
loses nothing, and those behind it wait meanwhile. So each is told at least once and in its order;
one that is dead is not waited for any more. After a failure the rest of the endpoint waits for the
next round: a receiver that is away is asked once in a round, not once for every object.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson
import structlog
from django.conf import settings
from django.db import connections, transaction

from hosts.models import Region
from journal.clock import database_now
from journal.statements import execute, fetch_rows
from webhooks.addresses import AddressForbidden
from webhooks.domain.message import (
    CONTENT_TYPE,
    cloud_event,
    pause_seconds,
    secrets_of,
    signed_headers,
)
from webhooks.models import Endpoint
from webhooks.sending import Answer, send

log = structlog.get_logger(__name__)

ROUND_SECONDS: Final = 30.0
THREADS: Final = 8
GONE: Final = 410
#: Beyond the timeouts of a request, until another process may try the same.
CLAIM_MARGIN_SECONDS: Final = 30.0
# As an array, which is made once: a join may read a subquery again for each row, and claim several.
_CLAIM: Final = """
UPDATE webhooks_delivery AS delivery
   SET attempts = delivery.attempts + 1,
       due_at = statement_timestamp() + make_interval(secs => %(claim_seconds)s)
 WHERE delivery.id = ANY (ARRAY(
        SELECT head.id FROM webhooks_delivery AS head
         WHERE head.endpoint_id = %(endpoint)s AND head.state = 'waiting'
           AND head.due_at <= statement_timestamp()
           AND NOT EXISTS (
               SELECT FROM webhooks_delivery AS before
                WHERE before.endpoint_id = head.endpoint_id AND before.state = 'waiting'
                  AND before.object_type = head.object_type
                  AND before.object_id = head.object_id AND before.event_id < head.event_id)
         ORDER BY head.event_id LIMIT 1 FOR UPDATE OF head SKIP LOCKED))
RETURNING delivery.id, delivery.attempts, delivery.event_id, delivery.topic,
          delivery.object_type, delivery.object_id, delivery.payload, delivery.occurred_at
"""
_NOTE: Final = """
UPDATE webhooks_delivery
   SET state = %(state)s, answered_status = %(status)s, error = %(error)s,
       due_at = statement_timestamp() + make_interval(secs => %(pause_seconds)s),
       finished_at = CASE WHEN %(state)s = 'waiting' THEN NULL ELSE statement_timestamp() END
 WHERE id = %(id)s AND attempts = %(attempts)s AND state = 'waiting'
"""


class Claimed(NamedTuple):
    """A delivery that this process tries; columns of the statement."""

    key: int
    attempts: int
    event_id: int
    topic: str
    object_type: str
    object_id: str
    payload: dict[str, Any]  # Any: what JSON holds
    occurred_at: datetime


def deliver_all() -> dict[str, int]:
    """Deliver what is due at each endpoint for a while; return how many were tried, by name."""
    names = dict(
        Endpoint.objects.filter(is_paused=False, disabled_at=None, deliveries__state="waiting")
        .distinct()
        .values_list("pk", "name")
    )
    until = time.monotonic() + ROUND_SECONDS
    if not names:
        return {}
    with ThreadPoolExecutor(min(THREADS, len(names)), "webhooks") as threads:
        tried = list(threads.map(lambda pk: _in_thread(pk, until), names))
    return dict(zip(names.values(), tried, strict=True))


def _in_thread(endpoint_id: int, until: float) -> int:
    try:
        return deliver(endpoint_id, until=until)
    finally:
        connections.close_all()


def deliver(endpoint_id: int, *, until: float) -> int:
    """Deliver what is due at an endpoint, until nothing is or one fails; return how many.

    Args:
        until: Monotonic seconds after which no further one is begun.
    """
    tried = 0
    while time.monotonic() < until:
        endpoint = Endpoint.objects.filter(
            pk=endpoint_id, is_paused=False, disabled_at=None
        ).first()
        claimed = None if endpoint is None else _claim(endpoint_id)
        if endpoint is None or claimed is None:
            break
        tried += 1
        answer = _try(endpoint, claimed)
        _note(endpoint, claimed, answer)
        if answer.problem:
            break
    return tried


def _claim(endpoint_id: int) -> Claimed | None:
    claim_seconds = 3 * settings.HEADROOM.webhooks.timeout_seconds + CLAIM_MARGIN_SECONDS
    with transaction.atomic(durable=True):
        found = fetch_rows(_CLAIM, {"endpoint": endpoint_id, "claim_seconds": claim_seconds})
    if not found:
        return None
    *known, payload, occurred_at = found[0]
    return Claimed._make((*known, orjson.loads(payload), occurred_at))


def _try(endpoint: Endpoint, claimed: Claimed) -> Answer:
    chosen = settings.HEADROOM.webhooks
    body = body_of(claimed)
    if chosen.secrets_dir is None:
        return Answer(problem="HEADROOM_WEBHOOKS__SECRETS_DIR is not set")
    try:
        keys = secrets_of((chosen.secrets_dir / endpoint.secret_name).read_text("utf-8"))
    except (OSError, ValueError) as error:
        return Answer(problem=f"secret {endpoint.secret_name}: {error}")
    headers = signed_headers(
        body, keys, message_id=f"headroom-{claimed.event_id}", now=database_now()
    )
    try:
        return send(
            endpoint.url,
            body,
            {"Content-Type": CONTENT_TYPE, **headers},
            timeout_seconds=chosen.timeout_seconds,
        )
    except AddressForbidden as error:
        return Answer(problem=error.message)


def body_of(claimed: Claimed) -> bytes:
    """Return what an attempt sends: the same each time."""
    region = Region.objects.first()
    return cloud_event(
        event_id=claimed.event_id,
        source=f"/headroom/{region.name if region and region.name else 'region'}",
        topic=claimed.topic,
        object_type=claimed.object_type,
        object_id=claimed.object_id,
        occurred_at=claimed.occurred_at,
        payload=claimed.payload,
    )


def _note(endpoint: Endpoint, claimed: Claimed, answer: Answer) -> None:
    chosen = settings.HEADROOM.webhooks
    state, pause = "delivered", 0.0
    if answer.problem:
        is_dead = claimed.attempts >= chosen.most_attempts
        state = "dead" if is_dead else "waiting"
        pause = pause_seconds(
            claimed.attempts,
            base=chosen.retry_base_seconds,
            cap=chosen.retry_cap_seconds,
            share=random.random(),  # noqa: S311 - spreads, hides nothing
            asked=answer.retry_after_seconds,
        )
        log.warning("webhook_failed", endpoint=endpoint.name, state=state, error=answer.problem)
    values: dict[str, Any] = {  # Any: parameters of a statement
        "id": claimed.key,
        "attempts": claimed.attempts,
        "state": state,
        "status": answer.status,
        "error": answer.problem,
        "pause_seconds": pause,
    }
    with transaction.atomic(durable=True):
        execute(_NOTE, values)
        if answer.status == GONE:
            Endpoint.objects.filter(pk=endpoint.pk, url=endpoint.url).update(
                disabled_at=database_now()
            )
            log.error("webhook_disabled", endpoint=endpoint.name)
