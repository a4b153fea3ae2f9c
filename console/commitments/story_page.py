"""The story of a commitment on its page: its periods, the VMs it covers, what is left to pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from django.db.models import Count, Exists, OuterRef, Sum
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from capacity.figures.zone_sums import ABSENT_STATUSES
from capacity.models import (
    FlavorGroupMember,
    Reservation,
    ReservationAllocation,
    ReservationKind,
)
from commitments.domain.children import ChildView, children_status
from commitments.domain.story import Happening, Period, periods
from commitments.models import Commitment, CommitmentEvent, InstanceAssignment, ResourceType
from console.base import PageData, list_url, row_url, time_tag
from console.capacity.page_data import shown_note
from console.charts import Segment, stacked_bar
from console.commitments.presentation import amount_text
from core.text import count_text, duration_text, memory_text, plural
from hosts.models import Instance

EVENTS_READ = 1000
PERIODS_SHOWN = 30
VMS_SHOWN = 50
BAR_WIDTH, BAR_HEIGHT, NARROWEST = 1000, 20, 4
TONE_OF_CONDITION = {
    "Accepted": "ok",
    "Reserving": "warn",
    "Rejected": "bad",
}


def story_page(row: Commitment, now: datetime) -> PageData:
    """Return the story of a commitment; the number of queries does not depend on its length.

    Args:
        row: The commitment.
        now: Time of the page.
    """
    lived = periods(_happenings(row))
    vms, vm_count = _covered_vms(row)
    return PageData(
        periods=tuple(_line(one, now) for one in reversed(lived[-PERIODS_SHOWN:])),
        periods_bar=periods_bar(lived, now),
        periods_note=shown_note(min(len(lived), PERIODS_SHOWN), len(lived), "period"),
        covered_bar=_covered_bar(row),
        vms=vms,
        vms_note=shown_note(len(vms), vm_count, "VM"),
        covered=_covered_text(row, vm_count),
        payg=_payg_text(row),
        payg_url=list_url("hosts.instance", q=row.project_id, zone=row.zone),
        slots_verdict=_slots_verdict(row),
    )


def _happenings(row: Commitment) -> list[Happening]:
    events = CommitmentEvent.objects.filter(commitment_uuid=row.commitment_uuid).order_by("-id")
    newest = events.values_list("created_at", "action", "actor", "after", "reason")[:EVENTS_READ]
    return [
        Happening(
            at=at,
            action=action,
            actor=actor,
            state=str(after.get("state", "")) if isinstance(after, dict) else "",
            reason=reason,
        )
        for at, action, actor, after, reason in reversed(newest)
    ]


def _line(period: Period, now: datetime) -> PageData:
    return PageData(
        state=period.state,
        condition=period.condition,
        tone=TONE_OF_CONDITION.get(period.condition, "idle"),
        since=time_tag(period.since),
        lasted=duration_text((period.until or now) - period.since),
        is_now=period.until is None,
        actor=period.actor,
        reason=period.reason,
    )


def periods_bar(lived: Sequence[Period], now: datetime) -> SafeString | str:
    """Draw periods side by side, each as long as it lasted, none too narrow to be seen.

    Args:
        lived: Periods, oldest first.
        now: End of the one that lasts.
    """
    if not lived:
        return ""
    seconds = [max(((one.until or now) - one.since).total_seconds(), 0) for one in lived]
    whole = max(sum(seconds), 1)
    widths = [max(NARROWEST, round(part * BAR_WIDTH / whole)) for part in seconds]
    spoken, rectangles, start = [], [], 0
    for one, width in zip(lived, widths, strict=True):
        words = f"{one.state}, {one.condition}"
        lasted = duration_text((one.until or now) - one.since)
        spoken.append(f"{words} for {lasted}")
        rectangles.append(
            (TONE_OF_CONDITION.get(one.condition, "idle"), start, width, BAR_HEIGHT, words, lasted)
        )
        start += width
    return format_html(
        '<svg class="hr-bar" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img"'
        ' aria-label="{}">{}</svg>',
        start,
        BAR_HEIGHT,
        "; ".join(spoken),
        format_html_join(
            "",
            '<rect class="hr-period hr-period-{}" x="{}" y="0" width="{}" height="{}">'
            "<title>{} for {}</title></rect>",
            rectangles,
        ),
    )


def _covered_vms(row: Commitment) -> tuple[tuple[PageData, ...], int]:
    assigned = InstanceAssignment.objects.filter(commitment=row).order_by("position")
    uuids = list(assigned.values_list("vm_uuid", flat=True)[: VMS_SHOWN + 1])
    count = len(uuids) if len(uuids) <= VMS_SHOWN else assigned.count()
    shown = uuids[:VMS_SHOWN]
    vms = Instance.objects.filter(openstack_id__in=shown).select_related("host")
    known = {vm.openstack_id: vm for vm in vms}
    places = _places(row, shown)
    return tuple(_covered_vm(uuid, known.get(uuid), places.get(uuid, "")) for uuid in shown), count


def _covered_vm(uuid: str, vm: Instance | None, place: str) -> PageData:
    if vm is None:
        return PageData(name=uuid, url="", flavor="", size="", host="gone", slot=place)
    return PageData(
        name=vm.name or uuid,
        url=row_url(vm),
        flavor=vm.flavor_name,
        size=f"{memory_text(vm.memory_bytes)}, {count_text(vm.vcpus, 'vCPUs')}",
        host=vm.host.name if vm.host is not None else "no host",
        slot=place or "in no slot",
    )


def _places(row: Commitment, uuids: Sequence[str]) -> Mapping[str, str]:
    """Return in which slots each VM sits: those of this commitment, else those of others."""
    listed = (
        ReservationAllocation.objects.filter(
            vm_uuid__in=uuids, reservation__kind=ReservationKind.COMMITTED
        )
        .order_by("reservation__slot_index", "id")
        .values_list(
            "vm_uuid",
            "state",
            "reservation__slot_index",
            "reservation__commitment_id",
            "reservation__commitment__commitment_uuid",
        )
    )
    own: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for uuid, state, index, owner, owner_uuid in listed:
        seen = "" if state == "confirmed" else ", expected"
        if owner == row.pk:
            own.setdefault(uuid, []).append(f"slot {index}{seen}")
        else:
            others.setdefault(uuid, []).append(f"slot {index} of {owner_uuid}{seen}")
    return {uuid: "; ".join(places) for uuid, places in {**others, **own}.items()}


def _used(row: Commitment) -> int:
    return row.used_memory_bytes if row.resource_type == ResourceType.MEMORY else row.used_vcpus


def _covered_bar(row: Commitment) -> SafeString | str:
    accepted = row.accepted_amount or 0
    if not accepted:
        return ""
    used = min(_used(row), accepted)
    return stacked_bar(
        [
            Segment(
                kind="own_vms",
                amount_units=used,
                text=amount_text(row.resource_type, used),
                label="used by VMs it covers",
            ),
            Segment(
                kind="own_hold",
                amount_units=accepted - used,
                text=amount_text(row.resource_type, accepted - used),
                label="left",
            ),
        ],
        capacity_units=accepted,
        title="what VMs use of the accepted amount",
    )


def _covered_text(row: Commitment, vm_count: int) -> str:
    if row.last_usage_reconcile_at is None and not vm_count:
        return "VMs were not assigned yet."
    kind, used = row.resource_type, _used(row)
    left = max((row.accepted_amount or 0) - used, 0)
    return (
        f"It covers {plural(vm_count, 'VM')} with {amount_text(kind, used)}; "
        f"{amount_text(kind, left)} of it is left."
    )


def _payg_text(row: Commitment) -> str:
    """Say what the project runs of the group in the zone that no commitment covers."""
    covered = InstanceAssignment.objects.filter(
        vm_uuid=OuterRef("openstack_id"), resource_type=row.resource_type
    )
    sums = (
        Instance.objects.filter(
            ~Exists(covered),
            project_id=row.project_id,
            host__zone=row.zone,
            flavor_name__in=_flavors_of(row),
        )
        .exclude(status__in=ABSENT_STATUSES)
        .aggregate(vms=Count("pk"), memory=Sum("memory_bytes"), cores=Sum("vcpus"))
    )
    place = f"{row.flavor_group_name} in {row.zone}"
    if not sums["vms"]:
        return f"Every VM that the project runs of {place} is covered: nothing is pay as you go."
    is_memory = row.resource_type == ResourceType.MEMORY
    amount = amount_text(row.resource_type, sums["memory"] if is_memory else sums["cores"])
    return (
        f"The project runs {plural(sums['vms'], 'VM')} of {place} that no commitment covers: "
        f"{amount} are pay as you go."
    )


def _flavors_of(row: Commitment) -> list[str]:
    members = FlavorGroupMember.objects.filter(group__name=row.flavor_group_name)
    return list(members.values_list("flavor__name", flat=True))


def _slots_verdict(row: Commitment) -> str:
    if row.resource_type != ResourceType.MEMORY:
        return ""
    slots = Reservation.objects.filter(commitment=row)
    children = [
        ChildView(is_ready=is_ready, echoed_generation=echoed)
        for is_ready, echoed in slots.values_list("is_ready", "observed_parent_generation")
    ]
    status = children_status(children, expected=len(children), generation=row.generation)
    if status.message:
        return status.message
    return f"{plural(len(children), 'slot')} ready" if children else ""
