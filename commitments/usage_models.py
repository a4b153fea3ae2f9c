"""Rows of what commitments promised and used hour by hour, and of prices (docs/focus.md)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from commitments.domain.statuses import ResourceType

RESOURCE_TYPES = [(kind.value, kind.value) for kind in ResourceType]


class CommitmentAccount(models.Model):
    """A commitment as somebody pays for it, and what the last look found of it.

    A commitment that goes to another project has another account from then on. Accounts stay when
    commitments go, until their hours are forgotten. Writer: ``commitments.services.usage_hours``.
    """

    commitment_uuid = models.CharField(max_length=40)
    project_id = models.CharField(max_length=64)
    domain_id = models.CharField(max_length=64, blank=True)
    zone = models.CharField(max_length=255)
    flavor_group_name = models.CharField(max_length=255)
    resource_type = models.CharField(max_length=16, choices=RESOURCE_TYPES)
    is_open = models.BooleanField(help_text="the last look found it in force")
    seen_at = models.DateTimeField(help_text="the last look that found it in force")
    promised_amount = models.BigIntegerField(help_text="at that look: MiB of memory, or vCPUs")
    used_amount = models.BigIntegerField(help_text="at that look: MiB of memory, or vCPUs")
    ends_at = models.DateTimeField(null=True, blank=True, help_text="end of the accepted term")

    class Meta:
        ordering = ("commitment_uuid", "id")
        indexes = [models.Index(fields=["project_id"], name="commitments_account_proj_idx")]
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "commitment_uuid",
                    "project_id",
                    "domain_id",
                    "zone",
                    "flavor_group_name",
                    "resource_type",
                ],
                name="commitments_commitmentaccount_unique",
            ),
            models.CheckConstraint(
                condition=Q(used_amount__gte=0, used_amount__lte=F("promised_amount")),
                name="commitments_commitmentaccount_used_of_promised",
            ),
        ]

    def __str__(self) -> str:
        return self.commitment_uuid


class CommitmentHour(models.Model):
    """What an account had promised and used in an hour: amounts times seconds.

    Divided by ``observed_seconds`` they are means. What is promised and not used is unused. Writer:
    ``commitments.services.usage_hours``, which adds what each look has seen.
    """

    account = models.ForeignKey(CommitmentAccount, on_delete=models.PROTECT, related_name="hours")
    at = models.DateTimeField(help_text="when the hour began, UTC")
    observed_seconds = models.PositiveSmallIntegerField(
        help_text="seconds of the hour in which it was in force and looked at"
    )
    promised_amount_seconds = models.BigIntegerField(help_text="MiB of memory, or vCPUs; x seconds")
    used_amount_seconds = models.BigIntegerField(help_text="MiB of memory, or vCPUs; x seconds")

    class Meta:
        ordering = ("-at", "account_id")
        constraints = [
            models.UniqueConstraint(fields=["at", "account"], name="commitments_hour_unique"),
            models.CheckConstraint(
                condition=Q(observed_seconds__lte=3600), name="commitments_hour_within_hour"
            ),
            models.CheckConstraint(
                condition=Q(
                    used_amount_seconds__gte=0,
                    used_amount_seconds__lte=F("promised_amount_seconds"),
                ),
                name="commitments_hour_used_of_promised",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.account_id} {self.at:%Y-%m-%d %H}"


class ObservedHour(models.Model):
    """For how long commitments were looked at in an hour; what lacks to 3600 s is a gap."""

    at = models.DateTimeField(unique=True, help_text="when the hour began, UTC")
    observed_seconds = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ("-at",)
        constraints = [
            models.CheckConstraint(
                condition=Q(observed_seconds__lte=3600), name="commitments_observed_within_hour"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H}"


class GroupPrice(models.Model):
    """What an hour of a flavor group's memory or cores costs from a time on; operators edit it."""

    flavor_group_name = models.CharField(max_length=255)
    resource_type = models.CharField(max_length=16, choices=RESOURCE_TYPES)
    valid_from = models.DateTimeField()
    currency = models.CharField(max_length=3, help_text="ISO 4217, such as EUR")
    hourly_price = models.DecimalField(
        max_digits=18, decimal_places=9, help_text="of a GiB of memory, or of a vCPU"
    )

    class Meta:
        ordering = ("flavor_group_name", "resource_type", "-valid_from")
        constraints = [
            models.UniqueConstraint(
                fields=["flavor_group_name", "resource_type", "valid_from"],
                name="commitments_groupprice_unique",
            ),
            models.CheckConstraint(
                condition=Q(currency__regex="^[A-Z]{3}$"),
                name="commitments_groupprice_currency_valid",
            ),
            models.CheckConstraint(
                condition=Q(hourly_price__gte=0), name="commitments_groupprice_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.flavor_group_name} {self.resource_type} {self.valid_from:%Y-%m-%d}"
