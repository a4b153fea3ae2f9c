"""What a host's page says of its loss: which VMs would have nowhere to go, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from django.db.models import Count, OuterRef, QuerySet, Subquery

from capacity.models import ReservationAllocation, ReservationKind
from console.base import PageData, badge
from console.links import find_url, list_url
from core.text import NOTHING, plural
from failover.choices import Uncovered
from failover.models import FailoverDecision
from hosts.models import Host, Instance

VMS_SHOWN: Final = 20


def vm_names(uuids: Collection[str]) -> dict[str, str]:
    """Return the names of VMs by uuid; those without a name are left out."""
    rows = Instance.objects.filter(openstack_id__in=uuids).exclude(name="")
    return dict(rows.values_list("openstack_id", "name"))


def with_vm_and_host(rows: QuerySet[FailoverDecision]) -> QuerySet[FailoverDecision]:
    """Annotate ``vm_name`` and ``host_name`` from the VM of each row, in the same query."""
    vm = Instance.objects.filter(openstack_id=OuterRef("vm_uuid"))
    annotated: QuerySet[FailoverDecision] = rows.annotate(
        vm_name=Subquery(vm.values("name")[:1]), host_name=Subquery(vm.values("host__name")[:1])
    )
    return annotated


def hosts_text(facts: Mapping[str, int]) -> str:
    """Say how many hosts were left by what: ``19 compatible, 9 with room, 0 eligible``."""
    counts = sorted(facts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts) or NOTHING


def loss_page(host: Host) -> PageData:
    """Return what the loss of a host would do, as the loop's decisions and slots say now."""
    here = Instance.objects.filter(host=host)
    lacking = with_vm_and_host(
        FailoverDecision.objects.filter(vm_uuid__in=here.values("openstack_id"))
    ).order_by("current_count", "vm_uuid")
    bare = list(lacking.filter(current_count=0)[:VMS_SHOWN])
    count = lacking.filter(current_count=0).count()
    vms = here.count()
    served = ReservationAllocation.objects.filter(
        reservation__kind=ReservationKind.FAILOVER, reservation__target_host=host
    ).aggregate(slots=Count("reservation", distinct=True), vms=Count("vm_uuid", distinct=True))
    title = (
        f"{plural(count, 'VM')} of {vms:,} would not survive"
        if count
        else f"All of {plural(vms, 'VM')} that are owed a failover slot have one"
    )
    return PageData(
        tone="bad" if count else "ok",
        icon="error" if count else "check_circle",
        title=title if vms else "No VM runs here",
        served=(
            f"{plural(served['slots'], 'failover slot')} here "
            f"{'serves' if served['slots'] == 1 else 'serve'} {plural(served['vms'], 'VM')} of "
            "other hosts, which would need new ones."
            if served["slots"]
            else "No failover slot is here."
        ),
        vms=[
            PageData(
                name=getattr(row, "vm_name", "") or row.vm_uuid,
                url=find_url("vm", row.vm_uuid),
                why=badge("bad", Uncovered(row.reason).label),
            )
            for row in bare
        ],
        hidden=count - len(bare),
        decisions_url=list_url("failover.failoverdecision", zone__exact=host.zone),
    )
