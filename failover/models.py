"""What VMs need, what holds it for them, and what the loop did (spec failover).

The room itself is a ``capacity.Reservation`` of kind failover; its users are
``capacity.ReservationAllocation`` rows with ``vm_host``. A trigger refuses whatever breaks the
rules of failover 7.2, see ``sql/failover_enforce_rules.sql``.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from capacity.models import Reservation
from failover.choices import EventReason, RunOutcome, SlotState, Uncovered
from hosts.models import Host
from journal.models import FollowedModel, RecordedRun, TrackedModel


class FailoverPolicy(TrackedModel):
    """Number of failover reservations for VMs whose flavor name matches a glob.

    The largest count of all patterns that match wins; ``position`` only orders the list. Writers:
    import, admin.
    """

    flavor_pattern = models.CharField(max_length=255, unique=True)
    required_count = models.PositiveIntegerField()
    position = models.PositiveIntegerField(default=0, help_text="place in the list")

    class Meta:
        verbose_name_plural = "failover policies"
        ordering = ("position", "id")
        constraints = [
            models.CheckConstraint(
                condition=~Q(flavor_pattern=""), name="failover_failoverpolicy_pattern_not_empty"
            )
        ]

    def __str__(self) -> str:
        return f"{self.flavor_pattern}: {self.required_count}"


class FailoverReservation(FollowedModel):
    """What failover knows of a reservation beyond the ledger (spec failover, 3.1, 3.3).

    Writers: the services of ``failover``.
    """

    reservation = models.OneToOneField(
        Reservation, on_delete=models.CASCADE, related_name="failover"
    )
    name = models.CharField(max_length=63, unique=True)
    state = models.CharField(
        max_length=16, choices=SlotState.choices, default=SlotState.ACTIVE, db_default="active"
    )
    last_changed_at = models.DateTimeField(null=True, blank=True)
    acknowledged_at = models.DateTimeField(
        null=True, blank=True, help_text="when the scheduler agreed after the last change"
    )
    next_validation_at = models.DateTimeField(null=True, blank=True)
    version = models.BigIntegerField(default=1, db_default=1)

    class Meta:
        ordering = ("name",)
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=SlotState.values),
                name="failover_failoverreservation_state_known",
            ),
            models.CheckConstraint(
                condition=~Q(name=""), name="failover_failoverreservation_name_not_empty"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class FailoverRun(RecordedRun):
    """One run of the loop in one zone: when, how it ended, what it counted (spec failover, 9.4).

    Writers: the loop.
    """

    zone = models.CharField(max_length=255, blank=True)
    number = models.PositiveIntegerField(default=0, help_text="counts the runs of the zone")
    outcome = models.CharField(
        max_length=16, choices=RunOutcome.choices, default=RunOutcome.RUNNING
    )
    is_dry_run = models.BooleanField(default=False)
    request_id = models.CharField(max_length=255, blank=True)
    error_code = models.CharField(max_length=64, blank=True)

    class Meta(RecordedRun.Meta):
        indexes = [models.Index(fields=["zone", "-id"], name="failover_run_zone_idx")]

    def __str__(self) -> str:
        return f"{self.zone} {self.started_at:%Y-%m-%d %H:%M:%S}"


class FailoverDecision(models.Model):
    """Why a VM has fewer failover reservations than it needs; gone once it has them.

    Writers: the loop.
    """

    vm_uuid = models.CharField(max_length=64, unique=True)
    zone = models.CharField(max_length=255, blank=True, db_index=True)
    run = models.ForeignKey(
        FailoverRun, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    required_count = models.PositiveIntegerField()
    current_count = models.PositiveIntegerField()
    reason = models.CharField(
        max_length=32, choices=Uncovered.choices, default=Uncovered.WAITING, db_index=True
    )
    facts = models.JSONField(default=dict, help_text="counts of hosts by what excluded them")
    since = models.DateTimeField(help_text="uncovered since")
    tried_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("zone", "since", "id")

    def __str__(self) -> str:
        return f"{self.vm_uuid}: {self.reason}"


class FailoverEvent(models.Model):
    """What happened to a failover reservation or to coverage; append-only (spec failover, 14.1).

    Writers: the loop, validation, brakes.
    """

    happened_at = models.DateTimeField()
    reason = models.CharField(max_length=32, choices=EventReason.choices)
    is_warning = models.BooleanField(default=False)
    zone = models.CharField(max_length=255, blank=True)
    reservation_name = models.CharField(max_length=63, blank=True)
    host_name = models.CharField(max_length=255, blank=True)
    vm_uuid = models.CharField(max_length=64, blank=True)
    message = models.TextField(blank=True)
    facts = models.JSONField(default=dict)
    request_id = models.CharField(max_length=255, blank=True)

    class Meta:
        ordering = ("-id",)
        indexes = [
            models.Index(fields=["reservation_name", "-id"], name="failover_event_name_idx"),
            models.Index(fields=["zone", "reason", "-id"], name="failover_event_zone_idx"),
            models.Index(fields=["happened_at"], name="failover_event_time_idx"),
            models.Index(fields=["vm_uuid", "-id"], name="failover_event_vm_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.reason} {self.reservation_name or self.vm_uuid or self.zone}"


class FailoverZone(models.Model):
    """What the loop remembers of a zone from run to run (spec failover, 9.5, 10, 17.9).

    Writers: the loop; the admin confirms a brake.
    """

    zone = models.CharField(max_length=255, unique=True)
    run_count = models.PositiveIntegerField(default=0)
    vm_count = models.PositiveIntegerField(default=0, help_text="VMs listed at the last full run")
    next_run_at = models.DateTimeField(null=True, blank=True)
    brake_reason = models.CharField(max_length=64, blank=True)
    brake_facts = models.JSONField(default=dict)
    braked_at = models.DateTimeField(null=True, blank=True)
    confirmed_at = models.DateTimeField(
        null=True, blank=True, help_text="when an operator allowed the next run to remove"
    )
    confirmed_by = models.CharField(max_length=255, blank=True)

    class Meta:
        ordering = ("zone",)

    def __str__(self) -> str:
        return self.zone or "no zone"


class FailoverCooldown(models.Model):
    """A host that validation refused to a VM, not to be proposed again for a while (12.6).

    Writers: validation; the loop deletes what is over.
    """

    vm_uuid = models.CharField(max_length=64)
    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="+")
    failures = models.PositiveIntegerField(default=1)
    until = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["vm_uuid", "host"], name="failover_failovercooldown_unique"
            )
        ]

    def __str__(self) -> str:
        return f"{self.vm_uuid} {self.host_id}"


class DueVM(models.Model):
    """A VM that came, changed or lost a reservation: to be planned now (spec failover, 13.6).

    A queue: the same VM may be in it more than once. Writers: triggers on the VM list, validation;
    who planned the VM deletes the notes that it saw.
    """

    vm_uuid = models.CharField(max_length=64)
    noted_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name = "due VM"
        ordering = ("id",)

    def __str__(self) -> str:
        return self.vm_uuid


from failover import drill_models  # noqa: E402, F401 - registers its models with Django
