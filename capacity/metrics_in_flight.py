"""Metrics of in-flight reservations (spec commitments, 12.3), all labels from the start."""

from __future__ import annotations

from prometheus_client import Counter

from capacity.domain.in_flight import INTENTS
from journal.metrics import metric_name

EXPIRED_IN_FLIGHT = Counter(
    metric_name("inflight_reservations_expired_total"),
    "In-flight reservations that ended because their VM did not appear in time.",
    ["intent"],
)
for _intent in INTENTS:
    EXPIRED_IN_FLIGHT.labels(intent=_intent)
