"""What was found where two Placements serve one cloud."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class HybridReport(models.Model):
    """One look at both sides; the newest ones are kept. Writers: ``gateway.drift``.

    Attributes:
        providers_there: Of the other Placement.
        split_consumers: Consumers that hold something of both.
        counts: How many findings there were, by kind.
        findings: The first of them: kind, subject, detail.
    """

    created_at = models.DateTimeField(db_default=Now())
    seconds = models.FloatField()
    providers_there = models.IntegerField()
    split_consumers = models.IntegerField()
    counts = models.JSONField()
    findings = models.JSONField()

    class Meta:
        db_table = "placement_hybrid_report"
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"look {self.pk} at both sides"
