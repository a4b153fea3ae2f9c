"""Scheduling pipelines and the decisions made with them (spec scheduling, 4, 10)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from journal.models import TrackedModel


class PipelineKind(models.TextChoices):
    """What a pipeline does (spec scheduling, 4)."""

    FILTER_WEIGHER = "filter-weigher", "filters and weighers"
    DETECTOR = "detector", "detectors"


class Pipeline(TrackedModel):
    """A scheduling pipeline: ordered filters and weighers with parameters (spec scheduling, 4).

    ``version`` grows by one with every change of the definition; each version is kept in
    :class:`PipelineVersion`. Writers: ``capacity.nova.pipelines`` alone.
    """

    name = models.CharField(max_length=255, unique=True)
    scheduling_domain = models.CharField(max_length=16, default="nova")
    kind = models.CharField(
        max_length=16, choices=PipelineKind.choices, default=PipelineKind.FILTER_WEIGHER
    )
    description = models.TextField(blank=True)
    ignore_preselection = models.BooleanField(
        default=False, help_text="replace the caller's hosts by all candidates"
    )
    create_history = models.BooleanField(
        default=True, help_text="record the decisions made with it"
    )
    filters = models.JSONField(default=list, blank=True)
    weighers = models.JSONField(default=list, blank=True)
    detectors = models.JSONField(default=list, blank=True)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ("name",)
        constraints = [
            models.CheckConstraint(
                condition=Q(kind__in=PipelineKind.values), name="capacity_pipeline_kind_known"
            )
        ]

    def __str__(self) -> str:
        return self.name


class PipelineVersion(models.Model):
    """One version of a pipeline's definition, as it was saved."""

    pipeline = models.ForeignKey(Pipeline, on_delete=models.CASCADE, related_name="versions")
    version = models.PositiveIntegerField()
    definition = models.JSONField()
    actor = models.CharField(max_length=255)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("pipeline", "-version")
        constraints = [
            models.UniqueConstraint(
                fields=["pipeline", "version"], name="capacity_pipelineversion_unique"
            )
        ]

    def __str__(self) -> str:
        return f"{self.pipeline_id} v{self.version}"


class KnowledgeName(models.TextChoices):
    """Facts that some weighers need (spec scheduling, 17.1)."""

    HOST_UTILIZATION = "host-utilization", "utilisation of VMware hosts"
    LONG_TERM_CONTENTION = "vmware-long-term-contended-hosts", "long-term CPU contention"
    SHORT_TERM_CONTENTION = "vmware-short-term-contended-hosts", "short-term CPU contention"
    PROJECT_NOISINESS = "vmware-project-noisiness", "CPU of projects on hosts"


class SchedulingKnowledge(TrackedModel):
    """Facts beside the host table, one row for each name, replaced as a whole.

    What is empty or past ``expires_at`` counts as missing: weighers that need it are left out of
    their pipelines. Writers: ``capacity.nova.knowledge`` alone.
    """

    name = models.CharField(max_length=64, unique=True, choices=KnowledgeName.choices)
    facts = models.JSONField(default=dict, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "scheduling knowledge"
        ordering = ("name",)
        constraints = [
            models.CheckConstraint(
                condition=Q(name__in=KnowledgeName.values),
                name="capacity_schedulingknowledge_name_known",
            )
        ]

    def __str__(self) -> str:
        return self.name


class HostListing(models.Model):
    """The host names that removal masks of decisions refer to, kept once per distinct list."""

    digest = models.CharField(max_length=64, unique=True)
    names = models.BinaryField(help_text="zlib-compressed names, one per line, in row order")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return self.digest[:12]


class SchedulingDecision(models.Model):
    """One run of a pipeline: what was asked, who was removed by what, who won and why.

    Full host lists are the masks over the :class:`HostListing`; nothing is cut to a top few. Rows
    are pruned by age (spec scheduling, 10.5).
    """

    created_at = models.DateTimeField(db_default=Now(), editable=False, db_index=True)
    vm_uuid = models.CharField(max_length=64, blank=True)
    project_id = models.CharField(max_length=64, blank=True)
    request_id = models.CharField(max_length=255, blank=True)
    pipeline_name = models.CharField(max_length=255)
    pipeline_version = models.PositiveIntegerField(default=0)
    intent = models.CharField(max_length=64, blank=True)
    intent_reason = models.CharField(
        max_length=600,
        blank=True,
        db_default="",
        help_text="how it was inferred; empty where the caller told it",
    )
    zone = models.CharField(max_length=255, blank=True)
    flavor_name = models.CharField(max_length=255, blank=True)
    flavor_group_name = models.CharField(max_length=255, blank=True)
    memory_bytes = models.BigIntegerField(default=0)
    vcpus = models.BigIntegerField(default=0)
    is_successful = models.BooleanField(default=False)
    outcome_class = models.CharField(max_length=32, blank=True)
    message = models.TextField(blank=True)
    hosts_in = models.PositiveIntegerField(default=0)
    hosts_out = models.PositiveIntegerField(default=0)
    target_host_name = models.CharField(max_length=255, blank=True)
    top_hosts = models.JSONField(default=list)
    removals = models.JSONField(default=list)
    listing = models.ForeignKey(
        HostListing, null=True, blank=True, on_delete=models.PROTECT, related_name="decisions"
    )
    masks = models.BinaryField(null=True, blank=True)
    duration_microseconds = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("-id",)
        indexes = [
            models.Index(fields=["vm_uuid", "-id"], name="capacity_decision_vm_idx"),
            models.Index(fields=["project_id", "-id"], name="capacity_decision_project_idx"),
            models.Index(fields=["target_host_name", "-id"], name="capacity_decision_host_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.pipeline_name} for {self.vm_uuid or self.flavor_name}"
