"""From when what is stored of the region is, as far as that is known."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from hosts.models import DeletedVM, Instance, Region
from hosts.vm_source import DELETED


def vms_listed_at() -> datetime | None:
    """Return when the reading of the VM list began; None where it does not say so.

    What happened later may not be in it, what happened before is.
    """
    region = Region.objects.first()
    return region.listed_at if region else None


def deleted_vms(vm_uuids: Collection[str]) -> frozenset[str]:
    """Return those VMs of which Nova said that they are deleted."""
    listed = Instance.objects.filter(openstack_id__in=vm_uuids, status=DELETED)
    seen = DeletedVM.objects.filter(openstack_id__in=vm_uuids)
    return frozenset(
        listed.values_list("openstack_id", flat=True).union(
            seen.values_list("openstack_id", flat=True)
        )
    )
