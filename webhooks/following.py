"""From the outbox to deliveries: as a consumer of the log, with a position of its own.

The position moves in the transaction that writes what came since, so wherever it dies nothing is
left out and nothing there twice.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import structlog
from django.db import transaction

from core.changes import is_read_anew, is_unseen
from journal.history import MOMENT, moment_of
from journal.models import LogConsumer
from journal.statements import execute, fetch_rows, fetch_value
from webhooks.models import Endpoint

log = structlog.get_logger(__name__)

CONSUMER: Final = "webhooks"
_HOLD: Final = """
SELECT position FROM journal_logconsumer WHERE name = %s FOR UPDATE SKIP LOCKED
"""
_FAN_OUT: Final = """
INSERT INTO webhooks_delivery (endpoint_id, event_id, topic, object_type, object_id, payload,
                               occurred_at, attempts)
SELECT endpoint.id, entry.id, entry.topic, entry.object_type, entry.object_id, entry.payload,
       entry.created_at, 0
  FROM journal_outbox AS entry
  JOIN webhooks_endpoint AS endpoint
    ON endpoint.disabled_at IS NULL
   AND (endpoint.kinds = '{{}}' OR entry.topic = ANY (endpoint.kinds))
 WHERE {which}
 ORDER BY entry.id, endpoint.id
ON CONFLICT (endpoint_id, event_id) DO NOTHING
"""
_SINCE_POSITION: Final = _FAN_OUT.format(
    which=f"entry.created_at >= endpoint.created_at"
    f" AND {is_unseen('entry.transaction_id', since='%(since)s')}"
)
_SINCE_LAST_STEP: Final = _FAN_OUT.format(
    which="entry.created_at >= endpoint.created_at AND entry.created_at >="
    " (SELECT moved_at FROM journal_logconsumer WHERE name = %(name)s) - interval '1 hour'"
)
_SINCE_TIME: Final = _FAN_OUT.format(
    which="endpoint.id = %(endpoint)s AND entry.created_at >= %(since)s"
)
_AGAIN: Final = """
UPDATE webhooks_delivery
   SET state = 'waiting', attempts = 0, due_at = statement_timestamp(), error = '',
       answered_status = NULL, finished_at = NULL
 WHERE endpoint_id = %(endpoint)s AND occurred_at >= %(since)s AND state <> 'waiting'
"""
_MOVE: Final = """
UPDATE journal_logconsumer SET position = %(position)s, moved_at = statement_timestamp()
 WHERE name = %(name)s
"""


def follow() -> int:
    """Write down what each endpoint is to be told since the last step; return how many."""
    if not Endpoint.objects.exists():
        LogConsumer.objects.filter(name=CONSUMER).delete()
        return 0
    LogConsumer.objects.get_or_create(name=CONSUMER)
    with transaction.atomic(durable=True):
        execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        held = fetch_rows(_HOLD, [CONSUMER])
        if not held:  # another process is on it
            return 0
        ((position,),) = held
        # Before the entries are read: what commits in between is read twice, and kept once.
        text = fetch_value(f"SELECT {MOMENT}")
        if not position:
            made = execute(_SINCE_LAST_STEP, {"name": CONSUMER})
        elif is_read_anew(position, moment_of(text), reader=CONSUMER):
            made = execute(_SINCE_LAST_STEP, {"name": CONSUMER})
            log.error("webhook_entries_may_lack", position=position)
        else:
            made = execute(_SINCE_POSITION, {"since": position.split(" ", 1)[0]})
        execute(_MOVE, {"name": CONSUMER, "position": text})
    return made


def replay(endpoint: Endpoint, since: datetime) -> int:
    """Let an endpoint be told again what happened since a moment; return how many deliveries.

    In the caller's transaction; as far back as outbox and deliveries are kept.
    """
    asked = {"endpoint": endpoint.pk, "since": since}
    return execute(_AGAIN, asked) + execute(_SINCE_TIME, asked)
