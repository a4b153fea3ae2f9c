"""How the checks of the served Placement API ended."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from core.server_checks.results import CheckEnd

#: How these checks may end.
ENDS = (CheckEnd.PASSED, CheckEnd.SKIPPED, CheckEnd.FAILED)


class CheckOutcome(models.Model):
    """How one check ended last in a mode. Writers: ``e2e.periodic``.

    Attributes:
        test: Name of the check.
        mode: In which mode it was asked for; empty where the server chose.
        detail: What was wrong, or why it was left out.
    """

    test = models.CharField(max_length=64)
    mode = models.CharField(max_length=16, blank=True)
    outcome = models.CharField(max_length=16, choices=[(str(one), str(one)) for one in ENDS])
    detail = models.TextField(blank=True)
    checked_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "placement_check_outcome"
        ordering = ("mode", "test")
        constraints = [
            models.UniqueConstraint(fields=["test", "mode"], name="placement_check_outcome_once")
        ]

    def __str__(self) -> str:
        return f"{self.test} {self.mode}: {self.outcome}"
