"""Rows of a FOCUS 1.1 cost and usage file: what a commitment used of its promise, and what not.

A commitment is a capacity reservation: of each charge period it has one row of what was used and
one of what was not, and their ``PricingQuantity`` sum to the promise.

Source: FinOps Open Cost and Usage Specification 1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_DOWN, Decimal
from typing import Final

from commitments.domain.statuses import ResourceType

COLUMNS: Final = (
    "AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency",
    "BillingPeriodEnd", "BillingPeriodStart", "CapacityReservationId", "CapacityReservationStatus",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd",
    "ChargePeriodStart", "CommitmentDiscountCategory", "CommitmentDiscountId",
    "CommitmentDiscountName", "CommitmentDiscountQuantity", "CommitmentDiscountStatus",
    "CommitmentDiscountType", "CommitmentDiscountUnit", "ConsumedQuantity", "ConsumedUnit",
    "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName", "ListCost",
    "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName",
    "PublisherName", "RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType",
    "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter",
    "SkuPriceDetails", "SkuPriceId", "SubAccountId", "SubAccountName", "Tags", "x_FlavorGroup",
    "x_ObservedHours", "x_PlatformObservedHours", "x_PriceStatus", "x_PromisedQuantity",
)  # fmt: skip
PROVIDER: Final = "Headroom"
#: ISO 4217: no currency is involved.
NO_CURRENCY: Final = "XXX"
MIB_OF_GIB: Final = 1024
SECONDS_OF_HOUR: Final = 3600
STEP: Final = Decimal("0.000000001")
UNITS: Final = {ResourceType.MEMORY: "GiB-Hours", ResourceType.CORES: "vCPU-Hours"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of a GiB of memory, or a vCPU, for an hour; ``currency`` is of ISO 4217."""

    currency: str
    hourly: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A commitment's charge period.

    Attributes:
        observed_seconds: Of the period, in which the commitment was in force and looked at.
        platform_seconds: Of the period, in which anything was looked at; less than all is a gap.
        promised_amount_seconds: MiB of memory, or vCPUs; times seconds.
        used_amount_seconds: Likewise.
        price: None if nobody set one.
    """

    commitment_uuid: str
    project_id: str
    project_name: str
    domain_id: str
    domain_name: str
    zone: str
    group: str
    resource_type: ResourceType
    start: datetime
    end: datetime
    month_start: datetime
    month_end: datetime
    observed_seconds: int
    platform_seconds: int
    promised_amount_seconds: int
    used_amount_seconds: int
    price: Price | None


def focus_rows(charge: Charge) -> tuple[dict[str, str], dict[str, str]]:
    """Return the row of what was used, and that of what was not; all values as in the file."""
    promised = _quantity(charge.promised_amount_seconds, charge.resource_type)
    used = _quantity(charge.used_amount_seconds, charge.resource_type)
    shared = _shared(charge, promised)
    return (
        {**shared, **_part(charge, "Used", used)},
        {**shared, **_part(charge, "Unused", promised - used)},
    )


def line_of(row: Mapping[str, str]) -> list[str]:
    """Return the values of a row in the order of the columns; what it lacks is null, empty."""
    return [row.get(column, "") for column in COLUMNS]


def _quantity(amount_seconds: int, kind: ResourceType) -> Decimal:
    """Return hours of GiB or of vCPUs, rounded down to nine places."""
    divisor = SECONDS_OF_HOUR * (MIB_OF_GIB if kind is ResourceType.MEMORY else 1)
    return (Decimal(amount_seconds) / divisor).quantize(STEP, rounding=ROUND_DOWN)


def _part(charge: Charge, status: str, quantity: Decimal) -> dict[str, str]:
    kind = charge.resource_type
    hourly = charge.price.hourly if charge.price is not None else Decimal(0)
    cost = _number(quantity * hourly)
    is_used = status == "Used"
    return {
        "BilledCost": cost,
        "CapacityReservationStatus": status,
        "ChargeDescription": f"{kind.value} of {charge.group}: promised and "
        + ("used" if is_used else "not used"),
        "ConsumedQuantity": _number(quantity) if is_used else "0",
        "ConsumedUnit": UNITS[kind],
        "ContractedCost": cost,
        "EffectiveCost": cost,
        "ListCost": cost,
        "PricingQuantity": _number(quantity),
    }


def _shared(charge: Charge, promised: Decimal) -> dict[str, str]:
    price, kind = charge.price, charge.resource_type
    unit_price = _number(price.hourly) if price is not None else "0"
    sku = f"{charge.group}/{kind.value}"
    return {
        "AvailabilityZone": charge.zone,
        "BillingAccountId": charge.domain_id or charge.project_id,
        "BillingAccountName": charge.domain_name,
        "BillingCurrency": price.currency if price is not None else NO_CURRENCY,
        "BillingPeriodEnd": _time(charge.month_end),
        "BillingPeriodStart": _time(charge.month_start),
        "CapacityReservationId": charge.commitment_uuid,
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _time(charge.end),
        "ChargePeriodStart": _time(charge.start),
        "ContractedUnitPrice": unit_price,
        "InvoiceIssuerName": PROVIDER,
        "ListUnitPrice": unit_price,
        "PricingCategory": "Standard",
        "PricingUnit": UNITS[kind],
        "ProviderName": PROVIDER,
        "PublisherName": PROVIDER,
        "ResourceId": charge.commitment_uuid,
        "ResourceName": charge.commitment_uuid,
        "ResourceType": "Capacity commitment",
        "ServiceCategory": "Compute",
        "ServiceName": "Capacity commitments",
        "ServiceSubcategory": "Virtual Machines",
        "SkuId": sku,
        "SkuMeter": f"Committed {kind.value}",
        "SkuPriceId": sku,
        "SubAccountId": charge.project_id,
        "SubAccountName": charge.project_name,
        "Tags": "{}",
        "x_FlavorGroup": charge.group,
        "x_ObservedHours": _hours(charge.observed_seconds),
        "x_PlatformObservedHours": _hours(charge.platform_seconds),
        "x_PriceStatus": "Priced" if price is not None else "No price: costs are 0",
        "x_PromisedQuantity": _number(promised),
    }


def _hours(seconds: int) -> str:
    return _number((Decimal(seconds) / SECONDS_OF_HOUR).quantize(STEP))


def _number(number: Decimal) -> str:
    """Return a number without an exponent and without zeros at its end."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
