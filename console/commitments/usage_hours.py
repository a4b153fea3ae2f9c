"""Admin of what commitments used hour by hour, and of prices (docs/focus.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import Case, F, QuerySet, When
from django.http import HttpRequest

from commitments.domain.statuses import ResourceType
from commitments.services.prices import remove_price, save_price
from commitments.usage_models import CommitmentAccount, CommitmentHour, GroupPrice, ObservedHour
from console.base import (
    BaseAdmin,
    Column,
    SystemOwnedAdmin,
    column,
    link,
    request_actor,
    shown,
    with_id,
)
from console.hosts.columns import FoundByName, ZoneFilter
from core.text import NOTHING, count_text, gib_number
from hosts.models import Project
from journal.middleware import request_id_of
from scheduling.resources import MIB

#: What an account has in MiB or vCPUs, each in the column of its unit.
AMOUNTS: Final = {
    f"{word}_{suffix}": Case(When(resource_type=kind, then=F(f"{word}_amount")))
    for word in ("promised", "used")
    for suffix, kind in (("memory_mib", ResourceType.MEMORY), ("vcpus", ResourceType.CORES))
}
CURRENCY: Final = re.compile("[A-Z]{3}")


def _in_gib(kind: str, amount: int) -> str:
    """Return an amount under a heading of GiB; a dash for one of vCPUs."""
    return gib_number(amount * MIB) if kind == ResourceType.MEMORY else NOTHING


def _in_vcpus(kind: str, amount: int) -> str:
    """Return an amount under a heading of vCPUs; a dash for one of memory."""
    return NOTHING if kind == ResourceType.MEMORY else count_text(amount)


Text = Callable[[str, int], str]


def _kept(title: str, name: str, text: Text) -> Column:
    """Return a column of an account's amount, in one unit."""
    return shown(title, lambda row: text(row.resource_type, getattr(row, name)), name)


def _mean(title: str, name: str, text: Text) -> Column:
    """Return a column of the mean of an hour, in one unit."""

    def mean(row: CommitmentHour) -> str:
        seconds = row.observed_seconds
        amount = getattr(row, name) // seconds if seconds else 0
        return text(row.account.resource_type, amount)

    return shown(title, mean)


@admin.register(CommitmentAccount)
class CommitmentAccountAdmin(FoundByName[CommitmentAccount], SystemOwnedAdmin[CommitmentAccount]):
    """Commitments as somebody pays for them."""

    owner_note = "Written by each whole usage run; accounts stay until their hours are forgotten."
    empty_note = (
        "Nothing is accounted yet: usage runs of workers do it once there are accepted commitments."
    )
    list_display = (
        "named",
        "project",
        "zone",
        "promised_gib",
        "used_gib",
        "promised_vcpus",
        "used_vcpus",
        "is_open",
        "seen_at",
    )
    list_filter = ("is_open", ZoneFilter, "flavor_group_name", "resource_type")
    search_fields = ("=commitment_uuid", "=project_id")
    search_help_text = "Whole uuid of a commitment; id or whole name of a project"
    named_columns = {"project_id": Project}
    names_in = ("commitment_uuid", "project_id")
    not_exported = frozenset({"promised_amount", "used_amount"})
    page_columns = (
        "commitment_uuid",
        "project",
        "domain",
        "zone",
        "flavor_group_name",
        "promised_gib",
        "used_gib",
        "promised_vcpus",
        "used_vcpus",
        "is_open",
        "seen_at",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[CommitmentAccount]:
        """Read accounts with their amounts by unit."""
        return super().get_queryset(request).annotate(**AMOUNTS)

    named = with_id("flavor_group_name", "commitment_uuid", "commitment of")
    project = link("project", "project_id", "project")
    domain = link("domain", "domain_id", "domain")
    promised_gib = _kept("promised, GiB", "promised_amount", _in_gib)
    used_gib = _kept("used, GiB", "used_amount", _in_gib)
    promised_vcpus = _kept("promised, vCPUs", "promised_amount", _in_vcpus)
    used_vcpus = _kept("used, vCPUs", "used_amount", _in_vcpus)


@admin.register(CommitmentHour)
class CommitmentHourAdmin(SystemOwnedAdmin[CommitmentHour]):
    """What commitments had promised and used, hour by hour."""

    owner_note = (
        "Means over the seconds that were observed. What nobody looked at is in no row; "
        "forgotten after 13 months."
    )
    empty_note = (
        "No hour is accounted yet: usage runs of workers do it once there are accepted commitments."
    )
    list_display = (
        "at",
        "commitment",
        "project",
        "promised_gib",
        "used_gib",
        "promised_vcpus",
        "used_vcpus",
        "observed_seconds",
    )
    list_select_related = ("account",)
    names_in = ("commitment_uuid", "project_id")
    search_fields = ("=account__commitment_uuid",)
    search_help_text = "Whole uuid of a commitment"

    def get_queryset(self, request: HttpRequest) -> QuerySet[CommitmentHour]:
        """Read hours with what their accounts are of."""
        return super().get_queryset(request).annotate(
            commitment_uuid=F("account__commitment_uuid"),
            project_id=F("account__project_id"),
            resource_type=F("account__resource_type"),
        )  # fmt: skip

    commitment = link("commitment", "commitment_uuid", "commitment", ordering="")
    project = link("project", "project_id", "project", ordering="")
    promised_gib = _mean("promised, GiB", "promised_amount_seconds", _in_gib)
    used_gib = _mean("used, GiB", "used_amount_seconds", _in_gib)
    promised_vcpus = _mean("promised, vCPUs", "promised_amount_seconds", _in_vcpus)
    used_vcpus = _mean("used, vCPUs", "used_amount_seconds", _in_vcpus)


@admin.register(ObservedHour)
class ObservedHourAdmin(SystemOwnedAdmin[ObservedHour]):
    """For how long anything was looked at, hour by hour."""

    owner_note = "What lacks to 3,600 seconds is a gap: usage runs did not come, or were refused."
    empty_note = (
        "No hour was observed yet: usage runs of workers do it (./run serve worker, ./run serve "
        "beat)."
    )
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

    empty_note = (
        "No group has a price: FOCUS files tell amounts, at a cost of 0 (docs/focus.md). Add one "
        "here."
    )
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
