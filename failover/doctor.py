"""Checks of failover: brakes that hold removals back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from core.doctor.findings import Check, Finding, broken, fine
from failover.models import FailoverZone


def failover_checks() -> Mapping[str, Check]:
    """Return them by name."""
    return {"failover": check_brakes}


def check_brakes() -> Iterator[Finding]:
    """Tell which zones are braked."""
    braked = FailoverZone.objects.exclude(brake_reason="").order_by("zone")
    for row in braked:
        yield broken(
            f"{row.zone}: the brake is on ({row.brake_reason}), nothing is removed",
            "see whether so much really left, then confirm it under Failover zones",
        )
    if not braked:
        yield fine("no brake is on")
