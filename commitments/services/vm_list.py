"""Whether the VM list may be believed when VMs are missing from it (spec commitments, 16.7).

A list that lost too much at once is more likely cut short than true. Its length when it was last
believed stands on the row of each zone's looks at slots.
"""

from __future__ import annotations

from collections import Counter

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Greatest

from commitments.models import SlotCheck
from commitments.selectors.slot_suspects import count_listed_vms
from hosts.domain.shrinking import has_shrunk_too_much, has_vanished
from hosts.domain.vm import ABSENT_STATUSES
from hosts.models import Host
from hosts.region.registry import GoneVMs
from hosts.region.servers import sums_by_zone


def refusal_of_list(zone: str, before: int | None, listed: int) -> str:
    """Return why the VM list of a zone is not believed; empty when it is.

    A zone that lost many VMs is not, however many are left, and one of which nothing is left while
    its hosts are still reported, however few there were.

    Args:
        before: Length of its list when it was last believed; None when it never was looked at.
        listed: Its length now.
    """
    chosen = settings.HEADROOM.slots
    shrank = has_shrunk_too_much(
        before, listed, max_ratio=chosen.max_drop_ratio, max_rows=chosen.max_drop_rows
    )
    if not shrank and not (has_vanished(before, listed) and _has_hosts(zone)):
        return ""
    return (
        f"the VM list shrank from {before} to {listed} VMs: nothing leaves a slot for not being "
        "listed until the list is back or an operator accepts it"
    )


def unbelieved_zones() -> dict[str, str]:
    """Return the zones whose VM list lost too much since it was last believed, with the reason."""
    known = SlotCheck.objects.exclude(listed_vms__isnull=True)
    refusals = {
        zone: refusal_of_list(zone, before, count_listed_vms(zone))
        for zone, before in known.values_list("zone", "listed_vms")
    }
    return {zone: reason for zone, reason in sorted(refusals.items()) if reason}


def accept_vm_lists() -> None:
    """Believe every zone's VM list as it is now: an operator accepted what an import took away."""
    known = SlotCheck.objects.exclude(listed_vms__isnull=True).order_by("zone")
    for zone in known.values_list("zone", flat=True):
        SlotCheck.objects.filter(zone=zone).update(listed_vms=count_listed_vms(zone))


def discount_gone_vms(gone: GoneVMs) -> None:
    """Expect fewer VMs in lists: a live cloud said itself that these are gone."""
    lost: Counter[int] = Counter()
    for (host_id, status), count in gone.items():
        if status not in ABSENT_STATUSES:
            lost[host_id] += count
    for zone, count in sums_by_zone(lost).items():
        SlotCheck.objects.filter(zone=zone, listed_vms__isnull=False).update(
            listed_vms=Greatest(F("listed_vms") - count, 0)
        )


def _has_hosts(zone: str) -> bool:
    return Host.objects.filter(zone=zone).exists()
