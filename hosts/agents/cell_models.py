"""NUMA cells of hosts, as their agents report them (spec hosts, D.2)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from hosts.models.hosts import Host


class CellResource(models.TextChoices):
    """What a cell has."""

    CPU = "cpu", "CPUs"
    MEMORY = "memory", "memory, B"
    HUGEPAGES = "hugepages", "huge pages, B"


class HostCell(models.Model):
    """What one NUMA cell of a host has of one resource.

    CPUs are logical ones that are online, of which VMs have pinned some for themselves alone. Of
    memory, pools of huge pages take some, whoever has those; of the pools, VMs and the kernel.
    Writers: reports of agents, and operators who end them; objects that describe their hosts, whose
    cells count before what an agent says.

    Attributes:
        effective_capacity: What may be promised, as an object says it; empty where it follows from
            the ratio of the host.
        is_described: Whether an object of the host's own says it.
    """

    host = models.ForeignKey(
        Host,
        on_delete=models.CASCADE,
        related_name="cells",
        db_index=False,  # cell_once begins with it
    )
    cell = models.BigIntegerField(help_text="number of the cell, as the kernel has it")
    resource = models.CharField(max_length=9, choices=CellResource.choices)
    capacity = models.BigIntegerField(default=0, db_default=0)
    effective_capacity = models.BigIntegerField(null=True, blank=True)
    allocated = models.BigIntegerField(default=0, db_default=0)
    is_described = models.BooleanField(default=False, db_default=False)

    class Meta:
        verbose_name = "NUMA cell"
        ordering = ("host_id", "cell", "resource")
        constraints = [
            models.UniqueConstraint(fields=["host", "cell", "resource"], name="hosts_cell_once"),
            models.CheckConstraint(
                condition=Q(resource__in=CellResource.values), name="hosts_cell_resource_known"
            ),
            models.CheckConstraint(
                condition=Q(cell__gte=0, capacity__gte=0, allocated__gte=0),
                name="hosts_cell_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(effective_capacity__isnull=True) | Q(effective_capacity__gte=0),
                name="hosts_cell_effective_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.host_id}: cell {self.cell}, {self.resource}"
