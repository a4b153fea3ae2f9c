"""What hosts have of what no host row has: network, disk I/O, GPUs (spec hosts, D.2, D.12)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from hosts.models import Host
from journal.models import FollowedModel


class OtherResource(models.TextChoices):
    """Resources beside memory, vCPUs and disk; locked in this order on a host."""

    NETWORK = "network", "network"
    DISK_IO = "disk_io", "disk I/O"
    GPU = "gpu", "GPUs"


class ResourceSource(models.TextChoices):
    """Where a capacity comes from; nothing is refused for what is unknown."""

    DETECTED = "detected", "detected"
    CONFIGURED = "configured", "configured"
    REPORTED = "reported", "reported"
    UNKNOWN = "unknown", "unknown"


class HostResource(FollowedModel):
    """What a host has of one resource, what VMs take of it, and what slots hold.

    Memory, vCPUs and disk are no such rows: they are in :class:`capacity.models.HostCapacity`.
    Network and disk I/O are in bytes per second, GPUs in slots. ``reserved`` is the sum of what the
    slots of the host hold (``Reservation.held_*``): a slot takes it where ``effective_capacity -
    allocated - reserved`` suffices, in the statement that writes the slot. A report may leave less
    than is reserved. Writers: of ``reserved`` the ledger alone (``capacity_move_resources``); of
    the rest reports of agents, and operators who end them.
    """

    host = models.ForeignKey(
        Host,
        on_delete=models.CASCADE,
        related_name="resources",
        db_index=False,  # resource_once begins with it
    )
    resource = models.CharField(max_length=8, choices=OtherResource.choices)
    capacity = models.BigIntegerField(default=0, db_default=0)
    effective_capacity = models.BigIntegerField(default=0, db_default=0)
    allocated = models.BigIntegerField(default=0, db_default=0, help_text="by VMs, as reported")
    reserved = models.BigIntegerField(default=0, db_default=0, help_text="by slots")
    source = models.CharField(
        max_length=10, choices=ResourceSource.choices, default=ResourceSource.UNKNOWN
    )
    is_stale = models.BooleanField(
        default=False, db_default=False, help_text="its list could not be read: nothing is admitted"
    )

    class Meta:
        ordering = ("host_id", "resource")
        constraints = [
            models.UniqueConstraint(fields=["host", "resource"], name="hosts_resource_once"),
            models.CheckConstraint(
                condition=Q(resource__in=OtherResource.values), name="hosts_resource_known"
            ),
            models.CheckConstraint(
                condition=Q(source__in=ResourceSource.values), name="hosts_resource_source_known"
            ),
            models.CheckConstraint(
                condition=Q(capacity__gte=0)
                & Q(effective_capacity__gte=0)
                & Q(allocated__gte=0)
                & Q(reserved__gte=0),
                name="hosts_resource_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.host_id}: {self.resource}"

    @property
    def available(self) -> int:
        """What a slot may take, where it is known; nothing while its list cannot be read."""
        left = self.effective_capacity - self.allocated - self.reserved
        return 0 if self.is_stale else max(0, left)

    @property
    def over_by(self) -> int:
        """What VMs and slots have more than there is."""
        return max(0, self.allocated + self.reserved - self.effective_capacity)
