"""Metrics of webhooks (docs/webhooks.md)."""

from __future__ import annotations

from typing import Final

from journal.readings import Reading, Scraped, gauge

_STATES: Final = """
SELECT endpoint.name, count(*) FILTER (WHERE delivery.state = 'waiting'),
       count(*) FILTER (WHERE delivery.state = 'dead'),
       coalesce(extract(epoch FROM statement_timestamp() - min(delivery.created_at)
                FILTER (WHERE delivery.state = 'waiting' AND NOT endpoint.is_paused)), 0)::float8,
       CASE WHEN endpoint.disabled_at IS NULL THEN 0 ELSE 1 END
  FROM webhooks_endpoint AS endpoint
  LEFT JOIN webhooks_delivery AS delivery
    ON delivery.endpoint_id = endpoint.id AND delivery.state <> 'delivered'
 GROUP BY endpoint.id ORDER BY endpoint.name
"""
WEBHOOKS: Final = Scraped(
    "webhooks",
    Reading(
        _STATES,
        ("endpoint",),
        (
            gauge("webhook_waiting_deliveries", "Deliveries that wait."),
            gauge("webhook_dead_deliveries", "Deliveries that were given up."),
            gauge("webhook_lag_seconds", "For how long the oldest one waits."),
            gauge("webhook_disabled", "1 for an endpoint that answered 410."),
        ),
    ),
    is_of_primary=True,
)
