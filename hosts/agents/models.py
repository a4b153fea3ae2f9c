"""Agents on hosts and their keys. Hosts are by name: one may leave the list and return."""

from __future__ import annotations

import uuid

from django.contrib.postgres.functions import RandomUUID
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from hosts.domain.liveness import Liveness

LIVENESS_CHOICES = [(one.value, one.value) for one in Liveness]


class KeyState(models.TextChoices):
    """Whether what a key signs is taken."""

    ACTIVE = "active", "active"
    RETIRING = "retiring", "retiring"
    REVOKED = "revoked", "revoked"


class AgentMode(models.TextChoices):
    """What an agent is trusted with (spec hosts, D.1); a host without an agent has none."""

    NONE = "none", "none"
    OBSERVE = "observe", "observe"
    ENFORCE = "enforce", "enforce"


class EnrolmentToken(models.Model):
    """What lets agents enrol; only its digest is kept. Writers: operators, enrolment."""

    token_sha256 = models.CharField(max_length=64, unique=True)
    name_glob = models.CharField(max_length=255, help_text="pattern of the hosts' names")
    expires_at = models.DateTimeField()
    uses_left = models.IntegerField()
    created_by = models.CharField(max_length=255)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.CheckConstraint(
                condition=Q(uses_left__gte=0), name="hosts_token_uses_not_negative"
            )
        ]

    def __str__(self) -> str:
        return self.name_glob


class HostAgent(models.Model):
    """The agent of one host, with its last report.

    Its row lock is the host's order of changes: whoever draws a number from ``change_seq`` or ends
    the epoch holds it, after the lease's, before workloads'. ``timeline`` changes when numbers may
    have been taken back: the agent begins at 0 then. Writers: enrolment, the agent's reports,
    :mod:`hosts.agents.workloads`, the sweep of leases, operators.
    """

    uuid = models.UUIDField(unique=True, default=uuid.uuid4)
    host_name = models.CharField(max_length=255, unique=True)
    agent_version = models.CharField(max_length=64, blank=True)
    abilities = models.JSONField(
        null=True, blank=True, help_text="what it says it can; empty until it said so"
    )
    wanted_version = models.CharField(
        max_length=64, blank=True, default="", db_default="", help_text="what is to run there"
    )
    fence_epoch = models.BigIntegerField(default=1)
    mode = models.CharField(
        max_length=8,
        choices=AgentMode.choices,
        default=AgentMode.OBSERVE,
        db_default=AgentMode.OBSERVE.value,
        help_text="observe: reports; enforce: makes the slots of its host as well",
    )
    change_seq = models.BigIntegerField(
        default=0, db_default=0, help_text="number of the last change of its workloads"
    )
    timeline = models.UUIDField(
        db_default=RandomUUID(), help_text="another one after a backup was restored"
    )
    decommissioned_at = models.DateTimeField(null=True, blank=True)
    enrolled_at = models.DateTimeField(db_default=Now(), editable=False)
    reported_at = models.DateTimeField(null=True, blank=True, help_text="when the report came")
    generated_at = models.DateTimeField(null=True, blank=True, help_text="when it was made")
    report = models.JSONField(null=True, blank=True)
    health_problem = models.TextField(
        blank=True, default="", db_default="", help_text="checks of the host that fail"
    )
    commands = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        help_text="what it is told to do and did not say that it did: id, command",
    )
    instances_at = models.DateTimeField(
        null=True, blank=True, help_text="when its list of VMs was made"
    )
    stats = models.JSONField(null=True, blank=True, help_text="what it says that it has made")
    stats_at = models.DateTimeField(null=True, blank=True, help_text="when that was counted")
    stats_drift = models.JSONField(
        null=True, blank=True, help_text="what differs: what we expect, and what it says"
    )

    class Meta:
        ordering = ("host_name",)
        indexes = [
            models.Index(
                fields=["host_name"],
                condition=Q(mode=AgentMode.ENFORCE.value, decommissioned_at__isnull=True),
                name="hosts_agent_enforce_idx",
            )
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(mode__in=AgentMode.values), name="hosts_agent_mode_known"
            ),
            models.CheckConstraint(
                condition=Q(
                    report__isnull=True, reported_at__isnull=True, generated_at__isnull=True
                )
                | Q(report__isnull=False, reported_at__isnull=False, generated_at__isnull=False),
                name="hosts_agent_report_whole",
            ),
        ]

    def __str__(self) -> str:
        return self.host_name


class HostLease(models.Model):
    """Until when an agent is heard, in a row of its own that each heartbeat writes.

    Writers: enrolment, heartbeats, the sweep of leases, operators.
    """

    agent = models.OneToOneField(
        HostAgent, on_delete=models.CASCADE, primary_key=True, related_name="lease"
    )
    liveness = models.CharField(
        max_length=8, choices=LIVENESS_CHOICES, default=Liveness.ENROLLED.value
    )
    liveness_since = models.DateTimeField(db_default=Now())
    run_id = models.CharField(max_length=36, blank=True, help_text="of the agent's process")
    boot_id = models.CharField(max_length=64, blank=True, help_text="of the host's kernel")
    renewed_at = models.DateTimeField(null=True, blank=True, help_text="last heartbeat")
    expires_at = models.DateTimeField(null=True, blank=True, help_text="end of the lease")
    uptime_seconds = models.BigIntegerField(default=0, help_text="of the host")
    outbox_depth = models.IntegerField(default=0, help_text="results that it could not deliver")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(liveness__in=[one.value for one in Liveness]),
                name="hosts_lease_liveness_known",
            ),
            models.CheckConstraint(
                condition=Q(renewed_at__isnull=True, expires_at__isnull=True)
                | Q(renewed_at__isnull=False, expires_at__isnull=False),
                name="hosts_lease_whole",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.agent_id}: {self.liveness}"


class HostKey(models.Model):
    """A public key of an agent; one is active at most, three are taken.

    One that retires is taken until ``not_after``; rows stay, as results that it signed do.
    Writers: enrolment, rotation, operators.
    """

    agent = models.ForeignKey(HostAgent, on_delete=models.CASCADE, related_name="keys")
    kid = models.CharField(max_length=16, unique=True)
    public_key = models.BinaryField(max_length=32)
    state = models.CharField(max_length=8, choices=KeyState.choices, default=KeyState.ACTIVE)
    token = models.ForeignKey(
        EnrolmentToken, null=True, on_delete=models.SET_NULL, related_name="keys"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    not_after = models.DateTimeField(null=True, blank=True, help_text="end of one that retires")
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=["agent"], condition=Q(state="active"), name="hosts_key_one_active"
            ),
            models.CheckConstraint(
                condition=Q(state="active", revoked_at__isnull=True, not_after__isnull=True)
                | Q(state="retiring", revoked_at__isnull=True, not_after__isnull=False)
                | Q(state="revoked", revoked_at__isnull=False),
                name="hosts_key_ended_with_time",
            ),
        ]

    def __str__(self) -> str:
        return self.kid


class ServerKey(models.Model):
    """A key that the server signs reservations with. Writers: :mod:`hosts.agents.server_keys`.

    Attributes:
        sealed_seed: The private part, encrypted; never shown.
        signed_by: Name of the key before it, whose ``signature`` vouches for this one.
    """

    kid = models.CharField(max_length=16, unique=True)
    public_key = models.BinaryField(max_length=32)
    sealed_seed = models.BinaryField()
    state = models.CharField(max_length=8, choices=KeyState.choices, default=KeyState.ACTIVE)
    not_after = models.DateTimeField(null=True, blank=True, help_text="agents are told it until")
    signed_by = models.CharField(max_length=16, blank=True)
    signature = models.BinaryField(max_length=64)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=["state"], condition=Q(state="active"), name="hosts_serverkey_one_active"
            ),
            models.CheckConstraint(
                condition=Q(state="active", not_after__isnull=True)
                | Q(state="retiring", not_after__isnull=False),
                name="hosts_serverkey_retires_with_time",
            ),
        ]

    def __str__(self) -> str:
        return self.kid


class RequestNonce(models.Model):
    """A signed request that was seen, so that it is not taken twice. Writers: signed requests."""

    agent = models.ForeignKey(HostAgent, on_delete=models.CASCADE, related_name="nonces")
    nonce = models.CharField(max_length=32)
    seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("id",)
        constraints = [models.UniqueConstraint(fields=["agent", "nonce"], name="hosts_nonce_once")]

    def __str__(self) -> str:
        return self.nonce
