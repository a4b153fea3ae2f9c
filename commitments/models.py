"""Commitments, their events, usage assignments and sync runs (spec commitments, 2)."""

from __future__ import annotations

from django.contrib.postgres.indexes import GinIndex
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Mod, Now
from django.db.models.lookups import Exact

from commitments.domain.statuses import CommitmentStatus, ResourceType
from journal.models import CurrentTransactionID, FollowedModel, RecordedRun, TouchedField
from scheduling.pipelines import SCHEDULING_DOMAINS
from scheduling.resources import MIB

STATUSES = [(status.value, status.value) for status in CommitmentStatus]
RESOURCE_TYPES = [(kind.value, kind.value) for kind in ResourceType]
UUID_REGEX = r"^[a-zA-Z0-9-]{6,40}$"


class Condition(models.TextChoices):
    """Reasons of a commitment's Ready condition (spec commitments, 2.7)."""

    ACCEPTED = "Accepted", "accepted"
    PLANNED = "Planned", "planned"
    RESERVING = "Reserving", "reserving"
    REJECTED = "Rejected", "rejected"
    SUPERSEDED = "superseded", "superseded"
    EXPIRED = "expired", "expired"


class Commitment(FollowedModel):
    """A project's promise to use an amount of a resource in one zone for a term.

    ``requested_amount`` is what was asked (bytes for memory, vCPUs for cores) in every state; what
    counts for capacity is derived from the state and the end (spec liquid, 11.4). ``generation``
    grows by one in the update that changes any desired field, and only then. Observed fields never
    change it. Writers: ``commitments.services``.
    """

    commitment_uuid = models.CharField(
        max_length=40, unique=True, validators=[RegexValidator(UUID_REGEX)]
    )
    scheduling_domain = models.CharField(max_length=16, default="nova")
    flavor_group_name = models.CharField(max_length=255)
    resource_type = models.CharField(max_length=16, choices=RESOURCE_TYPES)
    requested_amount = models.BigIntegerField(help_text="bytes of memory, or vCPUs")
    zone = models.CharField(max_length=255)
    project_id = models.CharField(max_length=64, db_index=True)
    domain_id = models.CharField(max_length=64, blank=True)
    start_time = models.DateTimeField(null=True, blank=True)
    end_time = models.DateTimeField(null=True, blank=True)
    confirm_by = models.DateTimeField(null=True, blank=True)
    confirmed_at = models.DateTimeField(null=True, blank=True)
    state = models.CharField(max_length=16, choices=STATUSES)
    allow_rejection = models.BooleanField(default=False)

    generation = models.BigIntegerField(default=1)
    creator_request_id = models.CharField(max_length=255, blank=True)
    limes_id = models.BigIntegerField(null=True, blank=True)
    limes_record = models.JSONField(
        null=True, blank=True, help_text="the commitment as Limes described it at the last sync"
    )
    origin = models.CharField(max_length=16, default="api")
    first_listed_at = models.DateTimeField(
        null=True, blank=True, help_text="start of the first sync that found it in Limes"
    )
    missing_since = models.DateTimeField(
        null=True, blank=True, help_text="start of the first sync in a row that did not find it"
    )
    missed_syncs = models.PositiveIntegerField(
        default=0, db_default=0, help_text="complete syncs in a row that did not find it in Limes"
    )

    accepted_spec = models.JSONField(null=True, blank=True)
    accepted_at = models.DateTimeField(null=True, blank=True)
    accepted_amount = models.BigIntegerField(
        null=True, blank=True, help_text="amount of the accepted spec: bytes, or vCPUs"
    )
    last_reconcile_at = models.DateTimeField(null=True, blank=True)
    next_reconcile_at = models.DateTimeField(null=True, blank=True)
    used_memory_bytes = models.BigIntegerField(default=0)
    used_vcpus = models.BigIntegerField(default=0)
    last_usage_reconcile_at = models.DateTimeField(null=True, blank=True)
    usage_observed_generation = models.BigIntegerField(null=True, blank=True)

    ready_status = models.BooleanField(null=True, default=None)
    ready_reason = models.CharField(max_length=32, choices=Condition.choices, blank=True)
    ready_message = models.TextField(blank=True)
    ready_observed_generation = models.BigIntegerField(null=True, blank=True)
    ready_changed_at = models.DateTimeField(null=True, blank=True)
    status_summary = models.TextField(blank=True)

    class Meta:
        ordering = ("-created_at", "-id")
        indexes = [
            models.Index(
                fields=["flavor_group_name", "zone", "resource_type", "state"],
                name="commitments_headroom_idx",
            ),
            models.Index(
                fields=["next_reconcile_at"],
                condition=Q(next_reconcile_at__isnull=False),
                name="commitments_due_idx",
            ),
            models.Index(fields=["zone", "state"], name="commitments_zone_state_idx"),
            models.Index(
                fields=["next_reconcile_at"],
                condition=Q(ready_reason="Reserving"),
                name="commitments_waiting_idx",
            ),
            models.Index(
                fields=["end_time"],
                condition=Q(ready_reason="Expired", next_reconcile_at__isnull=True),
                name="commitments_ended_idx",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(commitment_uuid__regex=UUID_REGEX),
                name="commitments_commitment_uuid_valid",
            ),
            models.CheckConstraint(
                condition=Q(state__in=[status for status, _ in STATUSES]),
                name="commitments_commitment_state_known",
            ),
            models.CheckConstraint(
                condition=Q(resource_type__in=[kind for kind, _ in RESOURCE_TYPES]),
                name="commitments_commitment_resource_type_known",
            ),
            models.CheckConstraint(
                condition=Q(requested_amount__gte=0),
                name="commitments_commitment_amount_not_negative",
            ),
            models.CheckConstraint(
                condition=~Q(resource_type=ResourceType.MEMORY.value)
                | Q(Exact(Mod(F("requested_amount"), Value(MIB)), Value(0))),
                name="commitments_commitment_memory_whole_mib",
            ),
            models.CheckConstraint(
                condition=Q(scheduling_domain__in=SCHEDULING_DOMAINS),
                name="commitments_commitment_scheduling_domain_known",
            ),
            models.CheckConstraint(
                condition=~Q(zone="") & ~Q(flavor_group_name="") & ~Q(project_id=""),
                name="commitments_commitment_identity_not_empty",
            ),
        ]

    def __str__(self) -> str:
        return self.commitment_uuid

    @property
    def resource_name(self) -> str:
        """Name of the row in Kubernetes and in slot names."""
        return f"commitment-{self.commitment_uuid}"


class CommitmentEvent(models.Model):
    """What happened to a commitment: who, when, before, after, why. Append-only by trigger.

    The commitment may be gone: the uuid stays.
    """

    created_at = models.DateTimeField(db_default=Now())
    commitment_uuid = models.CharField(max_length=40, db_index=True)
    actor = models.CharField(max_length=255)
    request_id = models.CharField(max_length=255, blank=True)
    action = models.CharField(max_length=64)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    reason = models.TextField(blank=True)
    explanation = models.JSONField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        indexes = [
            # Commitments that are gone are few among all that happened.
            models.Index(
                fields=["created_at"],
                condition=Q(after__isnull=True),
                name="commitments_event_gone_idx",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.commitment_uuid}"


class InstanceAssignment(FollowedModel):
    """Which commitment covers a VM; a VM without one is pay-as-you-go (spec commitments, 14)."""

    commitment = models.ForeignKey(Commitment, on_delete=models.CASCADE, related_name="assignments")
    vm_uuid = models.CharField(max_length=64)
    resource_type = models.CharField(max_length=16, choices=RESOURCE_TYPES)
    position = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("commitment_id", "position")
        constraints = [
            models.UniqueConstraint(
                fields=["vm_uuid", "resource_type"], name="commitments_instanceassignment_unique"
            )
        ]

    def __str__(self) -> str:
        return self.vm_uuid


class AssignmentPeriod(models.Model):
    """From when to when a commitment covered a VM (spec commitments, 14.7).

    Kept by triggers on the assignments, whoever writes those: a period is opened with an
    assignment and closed with its end, nothing else ever changes. Ids stay when the objects go.
    """

    vm_uuid = models.CharField(max_length=64)
    resource_type = models.CharField(max_length=16, choices=RESOURCE_TYPES)
    commitment_uuid = models.CharField(max_length=40)
    project_id = models.CharField(max_length=64)
    valid_from = models.DateTimeField()
    valid_to = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        indexes = [
            models.Index(fields=["vm_uuid", "id"], name="commitments_period_vm_idx"),
            models.Index(fields=["commitment_uuid", "id"], name="commitments_period_owner_idx"),
            models.Index(
                fields=["valid_to"],
                condition=Q(valid_to__isnull=False),
                name="commitments_period_end_idx",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(valid_to__isnull=True) | Q(valid_to__gte=F("valid_from")),
                name="commitments_assignmentperiod_forward",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.vm_uuid} {self.commitment_uuid}"


class ProjectUsage(models.Model):
    """What the last usage run found in a project, and what makes the next one look at it.

    Written only when it changes. ``written_xid`` is the transaction in which the run last wrote
    commitments: changes of that transaction are its own and no reason to look again. Writer:
    ``commitments.services.usage``.
    """

    project_id = models.CharField(max_length=64, unique=True)
    assigned_vms = models.PositiveBigIntegerField(default=0)
    uncovered_vms = models.PositiveBigIntegerField(
        default=0, help_text="VMs that no memory commitment of their zone and group had room for"
    )
    next_change_at = models.DateTimeField(
        null=True, blank=True, help_text="next start or end of an accepted commitment"
    )
    is_due = models.BooleanField(default=False, help_text="the last run could not look at it")
    written_xid = models.BigIntegerField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ("project_id",)
        verbose_name_plural = "project usage"

    def __str__(self) -> str:
        return self.project_id


class UsageCheck(models.Model):
    """From which state of the database the next usage run follows changes: one row.

    Writer: ``commitments.services.usage``, after a whole run, so that one that died is repeated.
    """

    singleton = models.BooleanField(default=True, unique=True, editable=False)
    snapshot = models.TextField()
    group_fingerprint = models.TextField(help_text="changes whenever a flavor group does")
    checked_at = models.DateTimeField()
    fully_checked_at = models.DateTimeField(null=True, blank=True)
    accounted_at = models.DateTimeField(
        null=True, blank=True, help_text="the whole run up to which hours of usage are kept"
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(singleton=True), name="commitments_usagecheck_singleton"
            )
        ]

    def __str__(self) -> str:
        return f"{self.checked_at:%Y-%m-%d %H:%M}"


class ProjectDeparture(models.Model):
    """A project that lost a VM or a commitment, for the next run over usage, and over quota.

    Written by triggers. The usage run forgets it, that of a commitment once quota saw it as well;
    VMs that go the quota controller finds by itself.
    """

    project_id = models.CharField(max_length=64)
    is_of_commitment = models.BooleanField(db_default=False)
    changed_xid = models.BigIntegerField(
        db_default=CurrentTransactionID(), editable=False, db_index=True
    )

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return self.project_id


class SyncOutcome(models.TextChoices):
    """How a run of the syncer ended (spec commitments, 16.2, 16.7)."""

    SUCCESS = "success", "success"
    INCOMPLETE = "incomplete", "incomplete"
    GUARDED = "guarded", "guarded"
    FAILED = "failed", "failed"
    NOT_READY = "not_ready", "not ready"
    ABANDONED = "abandoned", "abandoned"


class SyncRun(RecordedRun):
    """One run of an importer or syncer: when, how it ended, what it counted.

    An empty outcome says that it is running, or that it was killed; the next run of the same source
    then calls it abandoned. A guarded run whose shrink an operator accepted is what later runs are
    compared with. Writers: ``commitments.services.sync_runs``.
    """

    source = models.CharField(max_length=64)
    outcome = models.CharField(max_length=32, blank=True)
    error_code = models.CharField(max_length=64, blank=True)
    shrink_accepted_by = models.CharField(max_length=255, blank=True, db_default="")
    shrink_accepted_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.source} {self.started_at:%Y-%m-%d %H:%M}"


class SlotCheck(models.Model):
    """The last look at the VMs in the slots of a zone: one row per zone (spec commitments, 9).

    ``snapshot`` and ``snapshot_xmin`` say from which state of the database the next look follows
    changes. ``listed_vms`` is the length of the VM list at the last run that trusted it, or when an
    operator accepted what an import took away. Writers: ``commitments.services.verification``,
    ``vm_list``.
    """

    zone = models.CharField(max_length=255, unique=True)
    snapshot = models.TextField(blank=True)
    snapshot_xmin = models.BigIntegerField(default=0)
    listed_vms = models.BigIntegerField(null=True, blank=True)
    checked_at = models.DateTimeField(null=True, blank=True, help_text="last run that did anything")
    fully_checked_at = models.DateTimeField(
        null=True, blank=True, help_text="last run that looked at every slot"
    )
    is_refused = models.BooleanField(
        default=False, help_text="the VM list shrank too much: nothing is taken out of slots"
    )
    message = models.TextField(blank=True)
    host_refusal = models.TextField(
        blank=True, db_default="", help_text="why hosts that are down or gone are not believed lost"
    )
    counts = models.JSONField(default=dict)

    class Meta:
        ordering = ("zone",)

    def __str__(self) -> str:
        return self.zone


class CompactionOutcome(models.TextChoices):
    """How a run that frees hosts ended (spec commitments, 25 item 9)."""

    DONE = "done", "done"
    LIMITED = "limited", "stopped at its limit"
    BUSY = "busy", "stopped for others"
    REFUSED = "refused", "facts not believed"
    FAILED = "failed", "failed"
    ABANDONED = "abandoned", "abandoned"


class CompactionRun(RecordedRun):
    """One run that freed hosts of a zone by moving empty slots, or found that it must not.

    An empty outcome says that it is running, or that it was killed; the next run of the zone then
    calls it abandoned. ``hosts_freed`` and ``slots_moved`` grow with every step, in the transaction
    of the step. Writer: ``commitments.services.compaction``.
    """

    zone = models.CharField(max_length=255)
    outcome = models.CharField(max_length=16, choices=CompactionOutcome.choices, blank=True)
    hosts_planned = models.PositiveIntegerField(
        default=0, help_text="hosts that were to become free"
    )
    hosts_freed = models.PositiveIntegerField(default=0)
    slots_moved = models.PositiveIntegerField(default=0)
    hosts_refused = models.PositiveIntegerField(
        default=0, help_text="hosts where others got in the way between plan and step"
    )
    counts = models.JSONField(default=dict, help_text="hosts of the zone by what they hold")
    actor = models.CharField(max_length=255, blank=True)
    request_id = models.CharField(max_length=255, blank=True)

    class Meta(RecordedRun.Meta):
        indexes = [models.Index(fields=["zone", "id"], name="commitments_compaction_idx")]
        constraints = [
            models.CheckConstraint(
                condition=Q(outcome="", finished_at__isnull=True)
                | (~Q(outcome="") & Q(finished_at__isnull=False)),
                name="commitments_compactionrun_outcome_at_end",
            )
        ]

    def __str__(self) -> str:
        return f"{self.zone} {self.started_at:%Y-%m-%d %H:%M}"


class ServiceInfoVersion(models.Model):
    """Version of the LIQUID ServiceInfo: one row of content hash and number (spec liquid, 7.2)."""

    singleton = models.BooleanField(default=True, unique=True, editable=False)
    content_hash = models.CharField(max_length=64)
    version = models.BigIntegerField()
    changed_at = TouchedField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(singleton=True), name="commitments_serviceinfoversion_singleton"
            )
        ]

    def __str__(self) -> str:
        return str(self.version)


class PublishedServiceInfo(models.Model):
    """A version of the ServiceInfo that Limes may know, with what it said (spec liquid, 4.4).

    Invariant: at most one is not replaced. Writer: the publication, under the lock of the version;
    it also forgets versions that were replaced too long ago to be accepted.

    Attributes:
        resources: Resource name -> unit, topology and flags.
        replaced_at: When the next version came, by the clock of the database; None while current.
    """

    version = models.BigIntegerField(unique=True)
    resources = models.JSONField()
    published_at = models.DateTimeField(db_default=Now())
    replaced_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["replaced_at"],
                condition=Q(replaced_at__isnull=True),
                nulls_distinct=False,
                name="commitments_publishedserviceinfo_one_current",
            )
        ]

    def __str__(self) -> str:
        return str(self.version)


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
        indexes = [
            models.Index(fields=["zone", "-id"], name="commitments_refused_zone_idx"),
            GinIndex(
                fields=["asked"], opclasses=["jsonb_path_ops"], name="commitments_refused_asked_idx"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.zone} {self.request_id}"


from commitments import usage_models  # noqa: E402, F401 - registers its models with Django
