"""Since when the conditions of hosts stand as they do (spec hosts, C.3, D.2)."""

from __future__ import annotations

from django.db import models

from hosts.models.hosts import Host


class HostCondition(models.Model):
    """A condition that a host reports, with the moment at which it got its status.

    A trigger keeps one for each entry of ``Host.conditions``, whoever writes the host: schedulers
    read that column, people this. Writers: ``hosts_host_keep_conditions`` alone.

    Attributes:
        last_transition_at: By the clock of the database; empty as long as the condition stands as
            it did before it was followed.
    """

    host = models.ForeignKey(
        Host,
        on_delete=models.CASCADE,
        related_name="kept_conditions",
        db_index=False,  # condition_once begins with it
    )
    type = models.CharField(max_length=255)
    status = models.CharField(max_length=16, help_text="True, False or Unknown")
    reason = models.TextField(blank=True, default="", db_default="")
    message = models.TextField(blank=True, default="", db_default="")
    last_transition_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("host_id", "type")
        constraints = [
            models.UniqueConstraint(fields=["host", "type"], name="hosts_condition_once"),
        ]

    def __str__(self) -> str:
        return f"{self.type} is {self.status}"
