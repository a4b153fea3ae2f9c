"""Rows of drills, evacuations, coverage accounts and shadow plans (spec failover, 14, 17)."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from capacity.models import Reservation
from failover.domain.drill_report import DrillScope
from hosts.models import Host

SCOPES = [
    (DrillScope.HOST.value, "every single host"),
    (DrillScope.RACK.value, "every single rack"),
    (DrillScope.PAIR.value, "every interacting pair of hosts"),
]


class FailureDrill(models.Model):
    """One report over all failures of a scope in a zone.

    ``worst`` lists the failures that leave VMs without a slot, ``hosts`` what each host's loss
    would cost; both are for people. Writers: ``failover.services.drills``.
    """

    zone = models.CharField(max_length=255, blank=True)
    scope = models.CharField(max_length=16, choices=SCOPES)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    request_id = models.CharField(max_length=255, blank=True)
    cases = models.BigIntegerField(help_text="failures looked at")
    simulated = models.BigIntegerField(help_text="those not proven harmless by the rules")
    vms = models.BigIntegerField(default=0, help_text="VMs that slots are owed to")
    unprotected_vms = models.BigIntegerField(
        help_text="VMs that at least one failure leaves without a slot"
    )
    worst = models.JSONField(default=list)
    hosts = models.JSONField(default=list)

    class Meta:
        ordering = ("-id",)
        indexes = [models.Index(fields=["zone", "scope", "-id"], name="failover_drill_zone_idx")]

    def __str__(self) -> str:
        return f"{self.zone} {self.scope} {self.started_at:%Y-%m-%d %H:%M}"


class EvacuationState(models.TextChoices):
    """Where an evacuation plan is in its life."""

    OPEN = "open", "under way"
    DONE = "done", "done"


class EvacuationPlan(models.Model):
    """Who goes where when hosts of a zone died; one is open per zone (spec failover, 17.2).

    A further dead host joins the open plan. Writers: ``failover.services.evacuation``.
    """

    zone = models.CharField(max_length=255)
    state = models.CharField(
        max_length=16, choices=EvacuationState.choices, default=EvacuationState.OPEN
    )
    failed_hosts = ArrayField(models.CharField(max_length=255), default=list)
    started_at = models.DateTimeField()
    changed_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    request_id = models.CharField(max_length=255, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=["zone"],
                condition=Q(state=EvacuationState.OPEN),
                name="failover_evacuationplan_one_open",
            ),
            models.CheckConstraint(
                condition=Q(state=EvacuationState.OPEN, finished_at__isnull=True)
                | Q(state=EvacuationState.DONE, finished_at__isnull=False),
                name="failover_evacuationplan_done_has_end",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.zone} {self.started_at:%Y-%m-%d %H:%M}"


class MoveState(models.TextChoices):
    """What became of a VM of an evacuation plan."""

    PLANNED = "planned", "planned"
    STARTED = "started", "asked for by Nova"
    ARRIVED = "arrived", "arrived on its slot"
    ELSEWHERE = "elsewhere", "went elsewhere"
    UNPROTECTED = "unprotected", "no slot for it"
    DROPPED = "dropped", "not needed any more"


PENDING_MOVES = (MoveState.PLANNED, MoveState.STARTED)


class EvacuationMove(models.Model):
    """A VM of a dead host and the slot chosen for it. Writers: ``failover.services.evacuation``."""

    plan = models.ForeignKey(EvacuationPlan, on_delete=models.CASCADE, related_name="moves")
    vm_uuid = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=MoveState.choices)
    from_host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="+")
    target_host = models.ForeignKey(
        Host, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    reservation_name = models.CharField(max_length=63, blank=True)
    is_private = models.BooleanField(default=True)
    reason = models.CharField(max_length=32, blank=True, help_text="why there is no slot")
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("plan", "vm_uuid")
        constraints = [
            models.UniqueConstraint(
                fields=["plan", "vm_uuid"], name="failover_evacuationmove_vm_unique"
            ),
            models.UniqueConstraint(
                fields=["vm_uuid"],
                condition=Q(state__in=PENDING_MOVES),
                name="failover_evacuationmove_vm_pending_once",
            ),
            models.UniqueConstraint(
                fields=["reservation"],
                condition=Q(state__in=PENDING_MOVES),
                name="failover_evacuationmove_slot_once",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=PENDING_MOVES) | Q(target_host__isnull=False),
                name="failover_evacuationmove_pending_has_target",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.vm_uuid}: {self.state}"


class CoverageAccount(models.Model):
    """What a zone owes its VMs and how much of it was missing, summed over time.

    ``owed_vm_seconds`` and ``uncovered_vm_seconds`` only grow: they are the two counters of the
    coverage objective. ``flavors`` is the coverage of each flavor, as counted then: see
    ``failover.selectors.coverage.kept_coverage``. Writers: ``failover.services.coverage``.
    """

    zone = models.CharField(max_length=255, unique=True)
    accounted_at = models.DateTimeField()
    owed_vms = models.BigIntegerField(default=0)
    uncovered_vms = models.BigIntegerField(default=0)
    owed_vm_seconds = models.BigIntegerField(default=0)
    uncovered_vm_seconds = models.BigIntegerField(default=0)
    reserved_memory_bytes = models.BigIntegerField(default=0)
    vm_memory_bytes = models.BigIntegerField(default=0, help_text="memory of the VMs owed to")
    lower_bound_bytes = models.BigIntegerField(default=0)
    bounded_at = models.DateTimeField(null=True, blank=True)
    flavors = models.JSONField(default=list, db_default=[])

    class Meta:
        ordering = ("zone",)
        constraints = [
            models.CheckConstraint(
                condition=Q(uncovered_vm_seconds__lte=models.F("owed_vm_seconds"))
                & Q(uncovered_vms__lte=models.F("owed_vms"))
                & Q(uncovered_vm_seconds__gte=0),
                name="failover_coverageaccount_uncovered_is_part",
            )
        ]

    def __str__(self) -> str:
        return self.zone


class ShadowState(models.TextChoices):
    """What became of a shadow plan."""

    PROPOSED = "proposed", "proposed"
    RUNNING = "running", "being carried out"
    DONE = "done", "done"
    NOT_WORTH = "not_worth", "saves too little"
    OBSOLETE = "obsolete", "replaced by a newer one"


class ShadowPlan(models.Model):
    """A plan of a zone's slots made from scratch, and what it would save (spec failover, 17.4).

    Writers: ``failover.services.rebalancing``.
    """

    zone = models.CharField(max_length=255)
    state = models.CharField(max_length=16, choices=ShadowState.choices)
    computed_at = models.DateTimeField()
    request_id = models.CharField(max_length=255, blank=True)
    reserved_memory_bytes = models.BigIntegerField(help_text="by the slots as they are")
    shadow_memory_bytes = models.BigIntegerField(help_text="by the shadow plan")
    lower_bound_bytes = models.BigIntegerField(default=0)
    vm_memory_bytes = models.BigIntegerField(default=0)
    slots = models.JSONField(default=list, help_text="the slots of the shadow plan")
    steps_done = models.BigIntegerField(default=0)

    class Meta:
        ordering = ("-id",)
        indexes = [models.Index(fields=["zone", "-id"], name="failover_shadow_zone_idx")]
        constraints = [
            models.UniqueConstraint(
                fields=["zone"],
                condition=Q(state__in=[ShadowState.PROPOSED, ShadowState.RUNNING]),
                name="failover_shadowplan_one_live",
            )
        ]

    def __str__(self) -> str:
        return f"{self.zone} {self.computed_at:%Y-%m-%d %H:%M}"
