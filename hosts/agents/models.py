"""Agents on hosts and their keys. Hosts are by name: one may leave the list and return."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class KeyState(models.TextChoices):
    """Whether what a key signs is taken."""

    ACTIVE = "active", "active"
    REVOKED = "revoked", "revoked"


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
    """The agent of one host, with its last report. Writers: enrolment, the agent's reports."""

    uuid = models.UUIDField(unique=True, default=uuid.uuid4)
    host_name = models.CharField(max_length=255, unique=True)
    agent_version = models.CharField(max_length=64, blank=True)
    fence_epoch = models.BigIntegerField(default=1)
    enrolled_at = models.DateTimeField(db_default=Now(), editable=False)
    reported_at = models.DateTimeField(null=True, blank=True, help_text="when the report came")
    generated_at = models.DateTimeField(null=True, blank=True, help_text="when it was made")
    report = models.JSONField(null=True, blank=True)

    class Meta:
        ordering = ("host_name",)
        constraints = [
            models.CheckConstraint(
                condition=Q(
                    report__isnull=True, reported_at__isnull=True, generated_at__isnull=True
                )
                | Q(report__isnull=False, reported_at__isnull=False, generated_at__isnull=False),
                name="hosts_agent_report_whole",
            )
        ]

    def __str__(self) -> str:
        return self.host_name


class HostKey(models.Model):
    """A public key of an agent; one is active at most. Writers: enrolment, operators."""

    agent = models.ForeignKey(HostAgent, on_delete=models.CASCADE, related_name="keys")
    kid = models.CharField(max_length=16, unique=True)
    public_key = models.BinaryField(max_length=32)
    state = models.CharField(max_length=8, choices=KeyState.choices, default=KeyState.ACTIVE)
    token = models.ForeignKey(
        EnrolmentToken, null=True, on_delete=models.SET_NULL, related_name="keys"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=["agent"], condition=Q(state="active"), name="hosts_key_one_active"
            ),
            models.CheckConstraint(
                condition=Q(state="active", revoked_at__isnull=True)
                | Q(state="revoked", revoked_at__isnull=False),
                name="hosts_key_revoked_with_time",
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
