"""What capacity was in the past: hours and days of zones and groups, days of hosts."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.db.models import Q


class HistorySpan(models.TextChoices):
    """What a row of the history speaks for."""

    HOUR = "hour", "hour"
    DAY = "day", "day"


def _memory(meaning: str) -> models.BigIntegerField[int, int]:
    return models.BigIntegerField(help_text=f"bytes of memory {meaning}")


def _vcpus(meaning: str) -> models.BigIntegerField[int, int]:
    return models.BigIntegerField(help_text=f"vCPUs {meaning}")


TOTAL: Final = "that VMs could take if the hosts were empty"
COVERED: Final = "of running VMs that a commitment covers"
PAYG: Final = "of running VMs that no commitment covers"
RESERVED: Final = "that slots of commitments hold beyond the VMs in them"
FAILOVER: Final = "that failover reservations hold; of a whole zone only, since no group owns it"
IN_FLIGHT: Final = "held for VMs that are being placed; of a whole zone only"
FREE: Final = (
    "that are left: on all hosts of a zone, or for a group if no other took any (groups overlap)"
)
EXCLUSIVE: Final = "of what is free that the group has for itself, which is what Limes is told"


class CapacityHistory(models.Model):
    """Capacity of a zone, or of a flavor group in it, at one time.

    Hours are what the host rooms and the capacity rows said at the first look of the hour; days are
    means of their hours, rounded down. Rows are written once and never changed. What was not looked
    at has no row. Writers: ``capacity.figures.history`` and, for demos, ``made_up``.
    """

    span = models.CharField(max_length=4, choices=HistorySpan.choices)
    at = models.DateTimeField(help_text="when the hour or the day began, UTC")
    zone = models.CharField(max_length=255)
    group_name = models.CharField(
        max_length=255, blank=True, help_text="flavor group; empty for the whole zone"
    )
    hours = models.PositiveSmallIntegerField(
        default=1, help_text="how many hours it is the mean of; 1 for an hour"
    )
    is_made_up = models.BooleanField(
        default=False, help_text="written by the demo for times when nobody looked"
    )
    total_memory_bytes = _memory(TOTAL)
    total_vcpus = _vcpus(TOTAL)
    covered_memory_bytes = _memory(COVERED)
    covered_vcpus = _vcpus(COVERED)
    payg_memory_bytes = _memory(PAYG)
    payg_vcpus = _vcpus(PAYG)
    reserved_unused_memory_bytes = _memory(RESERVED)
    reserved_unused_vcpus = _vcpus(RESERVED)
    failover_memory_bytes = models.BigIntegerField(
        null=True, blank=True, help_text=f"bytes of memory {FAILOVER}"
    )
    failover_vcpus = models.BigIntegerField(null=True, blank=True, help_text=f"vCPUs {FAILOVER}")
    in_flight_memory_bytes = models.BigIntegerField(
        null=True, blank=True, help_text=f"bytes of memory {IN_FLIGHT}"
    )
    in_flight_vcpus = models.BigIntegerField(null=True, blank=True, help_text=f"vCPUs {IN_FLIGHT}")
    free_memory_bytes = _memory(FREE)
    free_vcpus = _vcpus(FREE)
    exclusively_free_memory_bytes = models.BigIntegerField(
        null=True, blank=True, help_text=f"bytes of memory {EXCLUSIVE}"
    )
    exclusively_free_vcpus = models.BigIntegerField(
        null=True, blank=True, help_text=f"vCPUs {EXCLUSIVE}"
    )

    class Meta:
        verbose_name_plural = "capacity history"
        ordering = ("-at", "zone", "group_name", "span")
        indexes = [models.Index(fields=["span", "at"], name="capacity_history_at_idx")]
        constraints = [
            models.UniqueConstraint(
                fields=["zone", "group_name", "span", "at"], name="capacity_history_unique"
            ),
            models.CheckConstraint(condition=~Q(zone=""), name="capacity_history_zone_not_empty"),
            models.CheckConstraint(
                condition=Q(span__in=HistorySpan.values), name="capacity_history_span_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.group_name or 'whole zone'} in {self.zone}, {self.at:%Y-%m-%d %H:%M}"


class HostHistory(models.Model):
    """The room of a host at the first look of a day.

    Rows go by the name of the host, so that one that leaves and returns keeps its past. Writers:
    ``capacity.figures.history`` and, for demos, ``made_up``.
    """

    day = models.DateField(help_text="UTC")
    host_name = models.CharField(max_length=255)
    is_made_up = models.BooleanField(
        default=False, help_text="written by the demo for times when nobody looked"
    )
    effective_memory_bytes = _memory("that may be promised on it")
    effective_vcpus = _vcpus("that may be promised on it")
    allocated_memory_bytes = _memory("of its VMs")
    allocated_vcpus = _vcpus("of its VMs")
    committed_memory_bytes = _memory("that slots of commitments hold beyond their VMs")
    committed_vcpus = _vcpus("that slots of commitments hold beyond their VMs")
    failover_memory_bytes = _memory("that failover reservations hold")
    failover_vcpus = _vcpus("that failover reservations hold")
    in_flight_memory_bytes = _memory("held for VMs that are being placed")
    in_flight_vcpus = _vcpus("held for VMs that are being placed")

    class Meta:
        verbose_name_plural = "host history"
        ordering = ("-day", "host_name")
        indexes = [models.Index(fields=["day"], name="capacity_hosthistory_day_idx")]
        constraints = [
            models.UniqueConstraint(fields=["host_name", "day"], name="capacity_hosthistory_unique")
        ]

    def __str__(self) -> str:
        return f"{self.host_name}, {self.day}"
