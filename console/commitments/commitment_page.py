"""What the page of a commitment shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Exists, OuterRef, Q, Sum
from django.utils.safestring import SafeString

from capacity.agents.following import SLOT
from capacity.models import (
    AllocationState,
    FlavorGroup,
    FlavorGroupMember,
    HostCapacity,
    LeavingRoom,
    Reservation,
    ReservationAllocation,
    ReservationKind,
)
from commitments.domain.children import ChildView, children_status
from commitments.domain.statuses import ResourceType
from commitments.domain.story import Period, StoryEvent, periods
from commitments.models import Commitment, CommitmentEvent, InstanceAssignment
from console.base import TONE_ICONS, PageData, time_tag
from console.capacity.page_data import (
    OTHERS_LEGEND,
    OwnShare,
    decision_sentences,
    leaving_lines,
    legend,
    room_lines,
    shown_note,
    slot_lines,
)
from console.charts import BAR_HEIGHT, BAR_WIDTH, Segment, picture, rectangle, stacked_bar
from console.commitments.presentation import (
    amount_text,
    change_lines,
    commitment_name,
    condition_title,
    condition_tone,
    term_text,
    why_text,
)
from console.links import list_url, row_url
from console.names import Names, name_rows, names_of
from core.text import NOTHING, count_text, duration_text, gib_number, memory_text, plural, time_text
from hosts.agents.workload_models import Workload
from hosts.domain.vm import ABSENT_STATUSES
from hosts.domain.workloads import WorkloadState
from hosts.models import Domain, Instance, Project

EVENTS_READ = 1000
PERIODS_SHOWN = 30
VMS_SHOWN = 50
NARROWEST = 4
TONE_OF_CONDITION = {
    "Accepted": "ok",
    "Reserving": "warn",
    "Rejected": "bad",
}


def story_page(row: Commitment, now: datetime) -> PageData:
    """Return the story of a commitment; the number of queries does not depend on its length.

    Args:
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
        agents_verdict=_agents_verdict(row),
    )


def _happenings(row: Commitment) -> list[StoryEvent]:
    events = CommitmentEvent.objects.filter(commitment_uuid=row.commitment_uuid).order_by("-id")
    newest = events.values_list("created_at", "action", "actor", "after", "reason")[:EVENTS_READ]
    return [
        StoryEvent(
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
        lasted = duration_text((one.until or now) - one.since)
        spoken.append(f"{one.state}, {one.condition} for {lasted}")
        tone = TONE_OF_CONDITION.get(one.condition, "idle")
        rectangles.append(rectangle(f"hr-period hr-period-{tone}", start, width, words=spoken[-1]))
        start += width
    return picture("hr-bar", (start, BAR_HEIGHT), rectangles, spoken=spoken)


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
        gone = {"flavor": "", "memory": NOTHING, "vcpus": NOTHING, "host": "gone", "host_url": ""}
        return PageData(name=uuid, url="", slot=place, **gone)
    return PageData(
        name=vm.name or uuid,
        url=row_url(vm),
        flavor=vm.flavor_name,
        memory=gib_number(vm.memory_bytes),
        vcpus=count_text(vm.vcpus),
        host=vm.host.name if vm.host is not None else "no host",
        host_url=row_url(vm.host) if vm.host is not None else "",
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
    names = Names(one[-1] for one in listed if one[-1])
    own: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for uuid, state, index, owner, owner_uuid in listed:
        seen = "" if state == "confirmed" else ", expected"
        if owner == row.pk:
            own.setdefault(uuid, []).append(f"slot {index}{seen}")
        else:
            name = names.of("commitment", owner_uuid or "") or owner_uuid
            others.setdefault(uuid, []).append(f"slot {index} of {name}{seen}")
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


def _agents_verdict(row: Commitment) -> str:
    """Return how many of the slots the agents of their hosts have made; nothing without agents."""
    keys = Reservation.objects.filter(commitment=row).values_list("pk", flat=True)
    asked = Workload.objects.filter(
        owner_kind=SLOT, owner_id__in=[str(pk) for pk in keys], to_delete=False
    )
    counts = dict(asked.order_by().values_list("state").annotate(count=Count("pk")))
    if not counts:
        return ""
    made = counts.pop(WorkloadState.DEPLOYED.value, 0)
    rest = "".join(f", {count} {state}" for state, count in sorted(counts.items()))
    return f"made by agents: {count_text(made)} of {count_text(made + sum(counts.values()))}{rest}"


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
        title=commitment_name(row),
        condition=_condition(row, now),
        facts=_facts(row, totals, now),
        is_memory=row.resource_type == ResourceType.MEMORY,
        slots=shown,
        slots_note=shown_note(len(shown), totals.count, "slot"),
        slots_url=list_url("capacity.reservation", q=row.commitment_uuid),
        leaving=leaving_lines(LeavingRoom.objects.filter(commitment_key=row.pk)),
        hosts=hosts,
        hosts_note=shown_note(len(hosts), host_count, "host"),
        legend=tuple(
            (kind, OTHERS_LEGEND.get(kind, words))
            for kind, words in legend(
                "own_vms", "own_hold", "vms", "committed", "failover", "in_flight", "free"
            )
        ),
        events=_events(events[:EVENTS_SHOWN]),
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


def _events(events: Sequence[CommitmentEvent]) -> tuple[PageData, ...]:
    name_rows(events, ("reason", "before", "after"))
    return tuple(_event(event) for event in events)


def _event(event: CommitmentEvent) -> PageData:
    names = names_of(event)
    return PageData(
        when=time_tag(event.created_at),
        actor=event.actor,
        action=event.action.replace("_", " "),
        request_id=event.request_id,
        audit_url=list_url("journal.auditentry", q=event.request_id) if event.request_id else "",
        changes=tuple(map(names.linked, change_lines(event.before, event.after))),
        reason=names.linked(event.reason) if event.reason else "",
        explanation=decision_sentences(event.explanation),
    )
