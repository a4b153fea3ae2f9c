"""What the page of a commitment shows: facts, condition, slots, hosts, events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q, Sum

from capacity.models import (
    AllocationState,
    FlavorGroup,
    HostCapacity,
    Reservation,
    ReservationAllocation,
)
from commitments.models import Commitment, CommitmentEvent, InstanceAssignment, ResourceType
from console.base import TONE_ICONS, PageData, list_url, row_url, time_tag
from console.capacity.page_data import (
    OTHERS_LEGEND,
    OwnShare,
    decision_sentences,
    legend,
    room_lines,
    shown_note,
    slot_lines,
)
from console.commitments.presentation import (
    amount_text,
    change_lines,
    condition_title,
    condition_tone,
    term_text,
    why_text,
)
from console.commitments.story_page import story_page
from core.text import NOTHING, count_text, memory_text, plural, time_text
from hosts.models import Domain, Project

SLOTS_SHOWN = 100
HOSTS_SHOWN = 24
EVENTS_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    count: int
    ready: int
    memory_bytes: int
    vcpus: int


def commitment_page(row: Commitment, now: datetime) -> PageData:
    """Return the page of a commitment; the number of queries does not depend on its slots.

    Args:
        row: The commitment.
        now: Time of the page.
    """
    slots = Reservation.objects.filter(commitment=row)
    totals = _totals(row)
    shown = slot_lines(slots.order_by("slot_index")[:SLOTS_SHOWN])
    hosts, host_count = _hosts(row)
    events = list(
        CommitmentEvent.objects.filter(commitment_uuid=row.commitment_uuid).order_by("-id")[
            : EVENTS_SHOWN + 1
        ]
    )
    more = len(events) > EVENTS_SHOWN
    return PageData(
        title=f"{amount_text(row.resource_type, row.requested_amount)} of "
        f"{row.flavor_group_name} in {row.zone}",
        condition=_condition(row, now),
        facts=_facts(row, totals, now),
        is_memory=row.resource_type == ResourceType.MEMORY,
        slots=shown,
        slots_note=shown_note(len(shown), totals.count, "slot"),
        slots_url=list_url("capacity.reservation", q=row.commitment_uuid),
        hosts=hosts,
        hosts_note=shown_note(len(hosts), host_count, "host"),
        legend=tuple(
            (kind, OTHERS_LEGEND.get(kind, words))
            for kind, words in legend(
                "own_vms", "own_hold", "vms", "committed", "failover", "in_flight", "free"
            )
        ),
        events=tuple(_event(event) for event in events[:EVENTS_SHOWN]),
        events_note=f"newest {EVENTS_SHOWN}" if more else plural(len(events), "event"),
        events_url=list_url("commitments.commitmentevent", q=row.commitment_uuid),
        story=story_page(row, now),
    )


def _totals(row: Commitment) -> _Totals:
    sums = Reservation.objects.filter(commitment=row).aggregate(
        count=Count("pk"),
        ready=Count("pk", filter=Q(is_ready=True)),
        memory=Sum("memory_bytes"),
        vcpus=Sum("vcpus"),
    )
    return _Totals(
        count=sums["count"],
        ready=sums["ready"],
        memory_bytes=sums["memory"] or 0,
        vcpus=sums["vcpus"] or 0,
    )


def _condition(row: Commitment, now: datetime) -> PageData:
    tone = condition_tone(row)
    return PageData(
        tone=tone,
        icon=TONE_ICONS[tone],
        title=condition_title(row),
        sentence=why_text(row, now),
        message=row.ready_message,
        since=time_text(row.ready_changed_at, now) if row.ready_changed_at else "",
        next_try=time_text(row.next_reconcile_at, now) if row.next_reconcile_at else "",
        is_stale=row.ready_observed_generation not in (None, row.generation),
    )


def _facts(row: Commitment, totals: _Totals, now: datetime) -> tuple[PageData, ...]:
    project = Project.objects.filter(openstack_id=row.project_id).first()
    domain = Domain.objects.filter(openstack_id=row.domain_id).first()
    group = FlavorGroup.objects.filter(name=row.flavor_group_name).first()
    assigned = InstanceAssignment.objects.filter(commitment=row).count()
    kind = row.resource_type
    held = f"{totals.ready:,} of {plural(totals.count, 'slot')} placed, "
    held += f"{memory_text(totals.memory_bytes)}, {count_text(totals.vcpus, 'vCPUs')}"
    facts = [
        PageData(label="State in Limes", text=row.get_state_display()),
        PageData(
            label="Project",
            text=project.name if project else row.project_id,
            url=row_url(project) if project else "",
        ),
        PageData(
            label="Domain",
            text=domain.name if domain else row.domain_id or NOTHING,
            url=row_url(domain) if domain else "",
        ),
        PageData(
            label="Flavor group",
            text=row.flavor_group_name,
            url=row_url(group) if group else "",
        ),
        PageData(label="Zone", text=row.zone, url=list_url("hosts.host", zone=row.zone)),
        PageData(label="Asked", text=amount_text(kind, row.requested_amount)),
        PageData(label="Accepted", text=_accepted_text(row, now)),
        PageData(
            label="Slots" if kind == ResourceType.MEMORY else "Held",
            text=held if kind == ResourceType.MEMORY else "counted against cores of the group",
        ),
        PageData(label="Used", text=_used_text(row, assigned)),
        PageData(label="Start", text=time_text(row.start_time, now)),
        PageData(label="End", text=time_text(row.end_time, now) if row.end_time else "no end"),
        PageData(label="Term in Limes", text=term_text(row.limes_record, row.end_time) or NOTHING),
        PageData(label="May be rejected", text="yes" if row.allow_rejection else "no"),
    ]
    return tuple(facts)


def _accepted_text(row: Commitment, now: datetime) -> str:
    if row.accepted_amount is None:
        return "nothing"
    text = amount_text(row.resource_type, row.accepted_amount)
    return f"{text}, {time_text(row.accepted_at, now)}" if row.accepted_at else text


def _used_text(row: Commitment, assigned: int) -> str:
    if row.last_usage_reconcile_at is None and not assigned:
        return "not computed yet"
    return (
        f"{memory_text(row.used_memory_bytes)}, {count_text(row.used_vcpus, 'vCPUs')} "
        f"by {plural(assigned, 'VM')}"
    )


def _hosts(row: Commitment) -> tuple[tuple[PageData, ...], int]:
    slots = list(
        Reservation.objects.filter(commitment=row).values_list(
            "pk",
            "target_host_id",
            "confirmed_host_id",
            "blocked_memory_bytes",
            "blocked_vcpus",
        )
    )
    slots_on: dict[int, int] = {}
    blocked: dict[int, tuple[int, int]] = {}
    for _, target_id, confirmed_id, memory_bytes, vcpus in slots:
        for host_id in {target_id, confirmed_id} - {None}:
            slots_on[host_id] = slots_on.get(host_id, 0) + 1
            before = blocked.get(host_id, (0, 0))
            blocked[host_id] = (before[0] + memory_bytes, before[1] + vcpus)
    busiest = sorted(slots_on, key=lambda host_id: (-slots_on[host_id], host_id))[:HOSTS_SHOWN]
    inside = _confirmed_on(row, busiest)
    rooms = HostCapacity.objects.filter(host_id__in=busiest).select_related("host")
    pictures = tuple(
        PageData(
            name=room.host.name,
            url=row_url(room.host),
            zone=room.zone,
            slots=plural(slots_on[room.host_id], "slot"),
            lines=room_lines(room, _share(room.host_id, blocked, inside)),
        )
        for room in sorted(rooms, key=lambda room: (-slots_on[room.host_id], room.host.name))
    )
    return pictures, len(slots_on)


def _confirmed_on(row: Commitment, host_ids: Sequence[int]) -> Mapping[int, tuple[int, int]]:
    sums = (
        ReservationAllocation.objects.filter(
            reservation__commitment=row,
            state=AllocationState.CONFIRMED,
            confirmed_host_id__in=host_ids,
        )
        .order_by()
        .values("confirmed_host_id")
        .annotate(memory=Sum("memory_bytes"), cores=Sum("vcpus"))
    )
    return {entry["confirmed_host_id"]: (entry["memory"], entry["cores"]) for entry in sums}


def _share(
    host_id: int,
    blocked: Mapping[int, tuple[int, int]],
    inside: Mapping[int, tuple[int, int]],
) -> OwnShare:
    vm_memory_bytes, vm_vcpus = inside.get(host_id, (0, 0))
    blocked_memory_bytes, blocked_vcpus = blocked.get(host_id, (0, 0))
    return OwnShare(
        vm_memory_bytes=vm_memory_bytes,
        vm_vcpus=vm_vcpus,
        blocked_memory_bytes=blocked_memory_bytes,
        blocked_vcpus=blocked_vcpus,
    )


def _event(event: CommitmentEvent) -> PageData:
    return PageData(
        when=time_tag(event.created_at),
        actor=event.actor,
        action=event.action.replace("_", " "),
        request_id=event.request_id,
        audit_url=list_url("journal.auditentry", q=event.request_id) if event.request_id else "",
        changes=change_lines(event.before, event.after),
        reason=event.reason,
        explanation=decision_sentences(event.explanation),
    )
