"""What agents are asked to make, and what they answered (spec hosts, D.2)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from hosts.agents.models import HostAgent
from hosts.domain.workloads import ResultKind, WorkloadState

STATE_CHOICES = [(one.value, one.value) for one in WorkloadState]
KIND_CHOICES = [(one.value, one.value) for one in ResultKind]


class Workload(models.Model):
    """One job for the agent of one host, on behalf of a row of a higher floor.

    ``seq`` is the agent's number of the last change that it must see: drawn from
    ``HostAgent.change_seq`` under the agent's row lock, so that numbers are committed in order.
    ``fence_epoch`` is the host's when the attempt was made. Rows whose deletion the agent told
    stay as tombstones. Writers: :mod:`hosts.agents.workloads`, :mod:`hosts.agents.results`, the
    sweep of leases, fencing.
    """

    agent = models.ForeignKey(HostAgent, on_delete=models.PROTECT, related_name="workloads")
    gwid = models.CharField(
        max_length=41, unique=True, help_text="what the agent calls it: slot and workload"
    )
    owner_kind = models.CharField(max_length=32, help_text="what it is made for")
    owner_id = models.CharField(max_length=64)
    user_id = models.CharField(max_length=64, blank=True, help_text="project that it is for")
    type = models.CharField(max_length=64, help_text="which provisioner makes it")
    data = models.JSONField(default=dict, help_text="arguments of the provisioner")
    cpus = models.BigIntegerField(default=0)
    memory_bytes = models.BigIntegerField(default=0)
    disk_bytes = models.BigIntegerField(default=0)
    network_bps = models.BigIntegerField(default=0, db_default=0, help_text="bytes per second")
    disk_io_bps = models.BigIntegerField(default=0, db_default=0, help_text="bytes per second")
    gpus = models.BigIntegerField(default=0, db_default=0)
    expires_at = models.DateTimeField(null=True, blank=True)
    reference = models.CharField(max_length=41, blank=True, help_text="the one that it replaces")
    version = models.BigIntegerField(default=1, help_text="grows with each change of what is asked")
    tag = models.JSONField(default=dict, help_text="for people; agents are not told")
    attempt = models.IntegerField(default=1)
    first_attempt = models.IntegerField(
        default=1, db_default=1, help_text="the attempt that was the first of this version"
    )
    is_made = models.BooleanField(
        default=False,
        db_default=False,
        help_text="whether its agent has it, in this version or one before",
    )
    seq = models.BigIntegerField(help_text="number of the change that the agent must see")
    fence_epoch = models.BigIntegerField()
    state = models.CharField(
        max_length=10, choices=STATE_CHOICES, default=WorkloadState.PENDING.value
    )
    state_since = models.DateTimeField(db_default=Now())
    to_delete = models.BooleanField(default=False)
    delete_reason = models.CharField(max_length=255, blank=True)
    error = models.TextField(blank=True, help_text="what the agent said of the last attempt")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("agent_id", "seq")
        indexes = [
            models.Index(fields=["owner_kind", "owner_id"], name="hosts_workload_owner_idx"),
            models.Index(
                fields=["expires_at"],
                condition=Q(expires_at__isnull=False, to_delete=False),
                name="hosts_workload_expiry_idx",
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["agent", "seq"], name="hosts_workload_seq_once"),
            models.CheckConstraint(
                condition=Q(state__in=[one.value for one in WorkloadState]),
                name="hosts_workload_state_known",
            ),
            models.CheckConstraint(
                condition=Q(to_delete=True, state__in=["deleting", "deleted"])
                | (Q(to_delete=False) & ~Q(state__in=["deleting", "deleted"])),
                name="hosts_workload_deletion_has_state",
            ),
            models.CheckConstraint(
                condition=Q(
                    cpus__gte=0,
                    memory_bytes__gte=0,
                    disk_bytes__gte=0,
                    network_bps__gte=0,
                    disk_io_bps__gte=0,
                    gpus__gte=0,
                    attempt__gte=F("first_attempt"),
                    first_attempt__gte=1,
                    seq__gte=1,
                ),
                name="hosts_workload_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return self.gwid

    @property
    def tries(self) -> int:
        """How often its present version was tried."""
        return self.attempt - self.first_attempt + 1


class WorkloadResult(models.Model):
    """What an agent said of an attempt, with its signature; rows are never changed.

    ``document`` is what was signed; :mod:`hosts.agents.results` verified it with the key ``kid``.
    Writers: :mod:`hosts.agents.results`.
    """

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="results")
    attempt = models.IntegerField()
    kind = models.CharField(max_length=8, choices=KIND_CHOICES)
    state = models.CharField(max_length=8)
    digest = models.CharField(max_length=64, help_text="of what is said, without when")
    document = models.JSONField()
    kid = models.CharField(max_length=16)
    signature = models.BinaryField(max_length=64)
    received_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("workload_id", "id")
        constraints = [
            models.UniqueConstraint(
                fields=["workload", "attempt", "kind"], name="hosts_workloadresult_once"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=[one.value for one in ResultKind]),
                name="hosts_workloadresult_kind_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workload_id}:{self.attempt}:{self.kind}"
