"""Celery entry points of webhooks."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.conf import settings

from core.jobs import Run, every, job, nightly
from journal.clock import database_now
from journal.pruning import forget
from webhooks.delivering import deliver_all
from webhooks.following import follow

DELIVER = "webhooks.deliver"
PRUNE = "webhooks.prune"
FORGET: Final = """
DELETE FROM webhooks_delivery WHERE id = ANY (ARRAY(
    SELECT delivery.id FROM webhooks_delivery AS delivery
      JOIN webhooks_endpoint AS endpoint ON endpoint.id = delivery.endpoint_id
     WHERE delivery.created_at < %(oldest)s
       AND (delivery.state <> 'waiting' OR endpoint.is_paused OR endpoint.disabled_at IS NOT NULL)
     ORDER BY delivery.created_at LIMIT %(rows)s FOR UPDATE OF delivery SKIP LOCKED))
"""


@job(
    DELIVER,
    every(settings.HEADROOM.webhooks.interval_seconds, "webhooks"),
    limits=(240, 300),
)
def deliver_webhooks(run: Run) -> dict[str, object]:
    """Write down what the outbox announces, and deliver what is due."""
    return {"announced": follow(), "tried": deliver_all()}


@job(PRUNE, nightly(3, 50, "webhooks-prune"), limits=(840, 900))
def prune_deliveries(run: Run) -> dict[str, object]:
    """Forget deliveries past their retention."""
    days = settings.HEADROOM.webhooks.retention_days
    return {"forgotten": forget(FORGET, oldest=database_now() - timedelta(days=days))}
