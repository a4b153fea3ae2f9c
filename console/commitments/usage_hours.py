"""Admin of what commitments used hour by hour, and of prices (docs/focus.md)."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest

from commitments.domain.statuses import ResourceType
from commitments.services.prices import remove_price, save_price
from commitments.usage_models import CommitmentAccount, CommitmentHour, GroupPrice, ObservedHour
from console.base import BaseAdmin, SystemOwnedAdmin, column, request_actor, shown
from console.hosts.columns import ZoneFilter
from core.text import gib_text
from journal.middleware import request_id_of
from scheduling.resources import MIB

CURRENCY: Final = re.compile("[A-Z]{3}")


def _amount(kind: str, amount: int) -> str:
    return gib_text(amount * MIB) if kind == ResourceType.MEMORY else f"{amount:,} vCPUs"


def _mean(row: CommitmentHour, amount_seconds: int) -> str:
    mean = amount_seconds // row.observed_seconds if row.observed_seconds else 0
    return _amount(row.account.resource_type, mean)


@admin.register(CommitmentAccount)
class CommitmentAccountAdmin(SystemOwnedAdmin[CommitmentAccount]):
    """Commitments as somebody pays for them."""

    owner_note = "Written by each whole usage run; accounts stay until their hours are forgotten."
    list_display = (
        "commitment_uuid",
        "project_id",
        "zone",
        "flavor_group_name",
        "promised",
        "used",
        "is_open",
        "seen_at",
    )
    list_filter = ("is_open", ZoneFilter)
    search_fields = ("=commitment_uuid", "=project_id")
    search_help_text = "Whole uuid of a commitment, or id of a project"

    promised = shown(
        "promised", lambda row: _amount(row.resource_type, row.promised_amount), "promised_amount"
    )
    used = shown("used", lambda row: _amount(row.resource_type, row.used_amount), "used_amount")


@admin.register(CommitmentHour)
class CommitmentHourAdmin(SystemOwnedAdmin[CommitmentHour]):
    """What commitments had promised and used, hour by hour."""

    owner_note = (
        "Means over the seconds that were observed. What nobody looked at is in no row; "
        "forgotten after 13 months."
    )
    list_display = ("at", "account", "promised", "used", "observed_seconds")
    list_select_related = ("account",)
    search_fields = ("=account__commitment_uuid",)
    search_help_text = "Whole uuid of a commitment"

    promised = shown("promised", lambda row: _mean(row, row.promised_amount_seconds))
    used = shown("used", lambda row: _mean(row, row.used_amount_seconds))


@admin.register(ObservedHour)
class ObservedHourAdmin(SystemOwnedAdmin[ObservedHour]):
    """For how long anything was looked at, hour by hour."""

    owner_note = "What lacks to 3,600 seconds is a gap: usage runs did not come, or were refused."
    list_display = ("at", "observed_seconds")


class PriceForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    """A price with a currency code."""

    class Meta:
        model = GroupPrice
        fields = ("flavor_group_name", "resource_type", "valid_from", "currency", "hourly_price")

    def clean_currency(self) -> str:
        """Refuse what is no code of ISO 4217."""
        currency: str = self.cleaned_data["currency"]
        if not CURRENCY.fullmatch(currency):
            raise ValidationError("must be three capital letters, such as EUR")
        return currency

    def clean_hourly_price(self) -> Decimal:
        """Refuse a price below zero."""
        price: Decimal = self.cleaned_data["hourly_price"]
        if price < 0:
            raise ValidationError("must not be below 0")
        return price


@admin.register(GroupPrice)
class GroupPriceAdmin(BaseAdmin[GroupPrice]):
    """What flavor groups cost: operators edit it here."""

    form = PriceForm
    list_display = ("flavor_group_name", "resource_type", "from_time", "price")
    search_fields = ("flavor_group_name",)
    actions = None

    from_time = column("valid_from", "from")
    price = shown(
        "an hour of a GiB or vCPU",
        lambda row: f"{row.hourly_price.normalize():f} {row.currency}",
        "hourly_price",
    )

    def save_model(self, request: HttpRequest, obj: GroupPrice, form: Any, change: Any) -> None:
        """Save through the service, which audits."""
        save_price(obj, actor=request_actor(request), request_id=request_id_of(request))

    def delete_model(self, request: HttpRequest, obj: GroupPrice) -> None:
        """Remove through the service, which audits."""
        remove_price(obj, actor=request_actor(request), request_id=request_id_of(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[GroupPrice]) -> None:
        """Remove one by one."""
        for row in queryset:
            self.delete_model(request, row)
