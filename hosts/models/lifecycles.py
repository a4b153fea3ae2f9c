"""Hosts that are brought into service or taken out through Nova (spec hosts, C.3)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from hosts.domain.lifecycle import Phase


class LifecycleKind(models.TextChoices):
    """Which way a host goes."""

    IN = "in", "into service"
    OUT = "out", "out of service"


class HostLifecycle(models.Model):
    """One way of a host into service or out of it; one of a host is open at most.

    A host by its name: its row goes with its compute service, before its resource provider does.
    Writers: :mod:`hosts.services.lifecycles`.

    Attributes:
        wanted: Of one that comes in: ``aggregates``, ``traits``, ``skips_tests``,
            ``test_aggregate``, ``high_availability``.
        service_host: Name of its compute service.
        provider_uuid: Its root resource provider.
        waits_for: What is waited for; empty while something can be done.
        trouble: Why the cloud could not be asked, or refused; empty when it did as asked.
        tests: How many test VMs were asked for.
        tried_at: When the last one was.
    """

    host_name = models.CharField(max_length=255, db_index=True)
    kind = models.CharField(max_length=3, choices=LifecycleKind.choices)
    phase = models.CharField(max_length=16, choices=[(one.value, one.value) for one in Phase])
    wanted = models.JSONField(default=dict, blank=True)
    service_host = models.CharField(max_length=255, blank=True, default="")
    provider_uuid = models.CharField(max_length=64, blank=True, default="")
    reason = models.TextField()
    opened_by = models.CharField(max_length=255)
    opened_at = models.DateTimeField(db_default=Now(), editable=False)
    looked_at = models.DateTimeField(null=True, blank=True, help_text="when it was looked at last")
    waits_for = models.TextField(blank=True, default="")
    trouble = models.TextField(blank=True, default="")
    tests = models.IntegerField(default=0)
    tried_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "life cycle"
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=["host_name"],
                condition=Q(closed_at__isnull=True),
                name="hosts_lifecycle_one_open",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=LifecycleKind.values)
                & Q(phase__in=[one.value for one in Phase]),
                name="hosts_lifecycle_known",
            ),
            models.CheckConstraint(
                condition=~Q(closed_at__isnull=True, phase__in=["succeeded", "aborted"])
                & ~(Q(closed_at__isnull=False) & ~Q(phase__in=["succeeded", "aborted"])),
                name="hosts_lifecycle_ended_with_time",
            ),
            models.CheckConstraint(condition=Q(tests__gte=0), name="hosts_lifecycle_tests"),
        ]

    def __str__(self) -> str:
        return f"{self.host_name} {self.get_kind_display()}"
