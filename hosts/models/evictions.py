"""Hosts that VMs are to leave, and how far that is (spec hosts, C.3, D.2)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from hosts.models.hosts import Host


class EvictionEnd(models.TextChoices):
    """How an eviction ended."""

    SUCCEEDED = "succeeded", "no VM is left"
    CANCELLED = "cancelled", "the host is in service again"


class Eviction(models.Model):
    """An order that a host becomes empty, with what is left on it; one of a host is open at most.

    Slots without VMs move when it is ordered. VMs are moved by the cloud, which is asked to only
    where that is set: what is left is counted until nothing is. Writers:
    :mod:`hosts.services.evictions`, :mod:`hosts.services.leaving`.

    Attributes:
        outstanding: The VMs that are left, those first that somebody must look at: ``uuid``,
            ``name``, ``status``, ``step``; at most ``MOST_LISTED`` of them.
        moving_uuid: The VM that Nova was asked to move last, while it is under way.
        failed: Uuid -> ``at``, ``reason`` of VMs that did not move when they were to.
        trouble: Why Nova could not be asked; empty when it could.
        service_disabled: Whether Nova's service of the host was disabled for it, and is to be
            enabled once the host is in service again.
    """

    host = models.ForeignKey(
        Host,
        on_delete=models.CASCADE,
        related_name="evictions",
        db_index=False,  # eviction_open, and few rows
    )
    reason = models.TextField()
    opened_by = models.CharField(max_length=255)
    opened_at = models.DateTimeField(db_default=Now(), editable=False)
    looked_at = models.DateTimeField(null=True, blank=True, help_text="when VMs were counted last")
    asked_at = models.DateTimeField(
        null=True, blank=True, help_text="when Nova's turn with it began last"
    )
    outstanding = models.JSONField(default=list, blank=True)
    outstanding_vms = models.IntegerField(default=0)
    outstanding_memory_bytes = models.BigIntegerField(default=0)
    moving_uuid = models.CharField(max_length=64, blank=True, db_default="", default="")
    failed = models.JSONField(default=dict, blank=True, db_default={})
    trouble = models.TextField(blank=True, db_default="", default="")
    service_disabled = models.BooleanField(db_default=False, default=False)
    closed_at = models.DateTimeField(null=True, blank=True)
    end = models.CharField(max_length=16, choices=EvictionEnd.choices, blank=True, default="")

    class Meta:
        ordering = ("-id",)
        indexes = [models.Index(fields=["host", "-id"], name="hosts_eviction_host_idx")]
        constraints = [
            models.UniqueConstraint(
                fields=["host"], condition=Q(closed_at__isnull=True), name="hosts_eviction_one_open"
            ),
            models.CheckConstraint(
                condition=Q(closed_at__isnull=True, end="")
                | Q(closed_at__isnull=False, end__in=EvictionEnd.values),
                name="hosts_eviction_ended_with_time",
            ),
            models.CheckConstraint(
                condition=Q(outstanding_vms__gte=0, outstanding_memory_bytes__gte=0),
                name="hosts_eviction_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"eviction of {self.host_id}"
