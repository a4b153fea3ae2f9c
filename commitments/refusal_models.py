"""Change requests that were answered no (spec liquid, 11.5)."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class RefusedChange(models.Model):
    """A change request of Limes that was refused: who asked for what, and why not.

    A refusal leaves nothing else behind: its transaction was rolled back. Dry runs and requests
    that are not well-formed are not kept. Writer: :mod:`commitments.services.refusals`;
    :mod:`commitments.services.retention` forgets them.
    """

    created_at = models.DateTimeField(db_default=Now(), db_index=True)
    request_id = models.CharField(max_length=255, blank=True, db_index=True)
    actor = models.CharField(max_length=255)
    zone = models.CharField(max_length=255)
    is_timeout = models.BooleanField(default=False, help_text="the time for the decision ran out")
    reason = models.TextField(help_text="the answer, word for word")
    retry_at = models.DateTimeField(
        null=True, blank=True, help_text="when Limes was told that the same request may fit"
    )
    asked = models.JSONField(
        help_text="what was asked: commitment, project, resource, states and amount_units each"
    )
    refused = models.JSONField(
        help_text="what was refused: commitment, message with the numbers, and advice each"
    )

    class Meta:
        ordering = ("-id",)
        indexes = [models.Index(fields=["zone", "-id"], name="commitments_refused_zone_idx")]

    def __str__(self) -> str:
        return f"{self.zone} {self.request_id}"
