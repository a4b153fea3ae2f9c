"""Where our answer would have been another than that of the Placement behind the gateway."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class ShadowDifference(models.Model):
    """A search whose candidates differ; the newest ones are kept. Writers: ``gateway.shadow``.

    Attributes:
        query: Of the search.
        minor: Its version.
        reason: What differs.
        sample: Some of what differs, ours and theirs.
    """

    created_at = models.DateTimeField(db_default=Now())
    request_id = models.CharField(max_length=64)
    query = models.TextField()
    minor = models.SmallIntegerField()
    reason = models.CharField(max_length=255)
    sample = models.JSONField()

    class Meta:
        db_table = "placement_shadow_difference"
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.reason}: {self.query[:60]}"
