"""What admin pages show of a host's room and of reservations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.db.models import Count, Min, Q, QuerySet, Sum
from django.utils.safestring import SafeString

from capacity.agents.following import slot_states
from capacity.models import (
    GroupCapacity,
    HostCapacity,
    LeavingRoom,
    Reservation,
    ReservationAllocation,
)
from capacity.offboarding import holdings_of, life_of
from console.base import PageData, badge, time_tag
from console.charts import LEGEND, Segment, stacked_bar
from console.commitments.presentation import commitment_name
from console.links import find_url, list_url, row_url
from console.names import Names, reservation_name
from core.text import (
    NOTHING,
    count_text,
    gib_number,
    gib_text,
    memory_short,
    moment_text,
    percent_text,
    plural,
    relative_text,
)
from hosts.agents.workload_models import Workload
from hosts.domain.lifecycle import Phase
from hosts.domain.offboarding import Step, offboarding
from hosts.domain.workloads import WorkloadState
from hosts.models import Host, HostLifecycle, Instance, Maintenance
from journal.clock import database_now
from placement.selectors.allocated import unlisted_claims

ROWS_SHOWN = 100
LEFT_PARTS: Final[Mapping[str, Callable[[int], str]]] = {
    "memory_bytes": gib_text,
    "vcpus": partial(count_text, unit="vCPUs"),
    "gpus": lambda count: plural(count, "GPU"),
    "network_bps": lambda rate: f"{memory_short(rate)}/s of network",
    "disk_io_bps": lambda rate: f"{memory_short(rate)}/s of disk I/O",
}
#: Of a slot without being asked; the template knows it too.
VMS_SHOWN = 5
OTHERS_LEGEND = {"vms": "other VMs", "committed": "held for other commitments"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnShare:
    """What one commitment has on a host: VMs inside its slots, and what it still blocks."""

    vm_memory_bytes: int = 0
    vm_vcpus: int = 0
    blocked_memory_bytes: int = 0
    blocked_vcpus: int = 0


def room_lines(room: HostCapacity, own: OwnShare | None = None) -> tuple[PageData, ...]:
    """Return the bars of a host, memory first.

    Args:
        room: The host's capacity row.
        own: Share of the commitment whose page this is; its parts are drawn apart.
    """
    return (
        _room_line("memory", room, own, "memory_bytes", memory_short),
        _room_line("vCPUs", room, own, "vcpus", count_text),
    )


def _room_line(
    resource: str, room: HostCapacity, own: OwnShare | None, suffix: str, text: Any
) -> PageData:
    capacity_units = getattr(room, f"effective_{suffix}")
    running = getattr(room, f"allocated_{suffix}")
    committed = getattr(room, f"committed_{suffix}")
    amounts = {
        "vms": running,
        "committed": committed,
        "failover": getattr(room, f"failover_{suffix}"),
        "in_flight": getattr(room, f"in_flight_{suffix}"),
    }
    if own is not None:
        own_vms = min(getattr(own, f"vm_{suffix}"), running)
        own_hold = min(getattr(own, f"blocked_{suffix}"), committed)
        amounts = {
            "own_vms": own_vms,
            "own_hold": own_hold,
            **amounts,
            "vms": running - own_vms,
            "committed": committed - own_hold,
        }
    used = sum(amounts.values())
    free = capacity_units - used
    amounts["free"] = max(0, free)
    segments = [
        Segment(kind=kind, amount_units=amount, text=text(amount), label=_label(kind, own))
        for kind, amount in amounts.items()
    ]
    rest = f"{text(free)} free" if free >= 0 else f"{text(-free)} over-subscribed"
    summary = (
        f"{text(used)} of {text(capacity_units)} taken "
        f"({percent_text(used, capacity_units)}), {rest}"
    )
    return PageData(
        resource=resource,
        bar=stacked_bar(segments, capacity_units=capacity_units, title=f"{resource}: {summary}"),
        summary=summary,
        parts=tuple((segment.label, segment.text) for segment in segments if segment.amount_units),
    )


def _label(kind: str, own: OwnShare | None) -> str:
    return OTHERS_LEGEND.get(kind, LEGEND[kind]) if own is not None else LEGEND[kind]


def legend(*kinds: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of kind and words, for the key under a picture."""
    return tuple((kind, LEGEND[kind]) for kind in kinds)


def utilisation_bar(room: HostCapacity | None) -> SafeString | str:
    """Return the small memory bar of a list, or a dash for a host without capacity row."""
    return room_lines(room)[0].bar if room is not None else NOTHING


def group_bar(row: GroupCapacity) -> SafeString:
    """Draw the memory of a group in a zone: running, reserved and unused, free, the rest."""
    running = row.running_memory_bytes
    unused = row.reserved_unused_memory_bytes
    free = row.exclusively_free_memory_bytes
    rest = max(0, row.total_memory_bytes - running - unused - free)
    segments = [
        Segment(kind=kind, amount_units=amount, text=memory_short(amount))
        for kind, amount in (
            ("vms", running),
            ("committed", unused),
            ("free", free),
            ("other", rest),
        )
    ]
    used = percent_text(running + unused, row.total_memory_bytes)
    return stacked_bar(
        segments,
        capacity_units=row.total_memory_bytes,
        title=f"{row.group_name} in {row.zone}: memory {used} running or reserved",
    )


def host_page(host: Host) -> PageData:
    """Return what the page of a host shows: room, reservations on it, VMs on it."""
    room = HostCapacity.objects.filter(host=host).first()
    here = Q(target_host=host) | Q(confirmed_host=host)
    reservations = Reservation.objects.filter(here)
    slots = slot_lines(reservations.order_by("kind", "commitment_id", "slot_index")[:ROWS_SHOWN])
    running = Instance.objects.filter(host=host)
    vms = tuple(
        PageData(
            name=str(vm),
            url=row_url(vm),
            state=vm.status,
            size=f"{gib_text(vm.memory_bytes)}, {count_text(vm.vcpus, 'vCPUs')}",
        )
        for vm in running.order_by("-memory_bytes", "name")[:ROWS_SHOWN]
    )
    claims = unlisted_claims(host.pk, most=ROWS_SHOWN)
    names = Names(one for claim in claims for one in (claim.consumer, claim.project_id))
    return PageData(
        lines=room_lines(room) if room is not None else (),
        leaving=leaving_lines(LeavingRoom.objects.filter(host=host)),
        legend=legend("vms", "committed", "failover", "in_flight", "free"),
        slots=slots,
        slots_note=shown_note(len(slots), reservations.count(), "reservation"),
        slots_url=list_url("capacity.reservation", q=host.name),
        vms=vms,
        vms_note=shown_note(len(vms), running.count(), "VM"),
        vms_url=list_url("hosts.instance", host__id__exact=host.pk),
        claims=tuple(
            PageData(
                name=names.of("vm", claim.consumer) or claim.consumer,
                url=find_url("consumer", claim.consumer),
                kind=claim.kind.lower(),
                project=names.link("project", claim.project_id),
                size=f"{gib_text(claim.memory_bytes)}, {count_text(claim.vcpus, 'vCPUs')}",
                since=time_tag(claim.since),
            )
            for claim in claims
        ),
        decisions_url=list_url("capacity.schedulingdecision", about_host=host.name),
        offboarding=_offboarding(host),
        lifecycle=_lifecycle(host),
    )


def _lifecycle(host: Host) -> PageData | None:
    """Return how far a host is that Nova is asked to bring in or take out; None for others."""
    if "Onboarding" not in host.conditions and host.maintenance != Maintenance.TERMINATION:
        return None
    row = HostLifecycle.objects.filter(host_name=host.name).order_by("-pk").first()
    if row is None or (row.closed_at is not None and row.phase == Phase.SUCCEEDED):
        return None
    return PageData(
        title=f"Through Nova {row.get_kind_display()}",
        phase=row.phase,
        words=row.trouble or row.waits_for or "Nova is asked for the next step.",
        is_hindered=bool(row.trouble),
        url=row_url(row),
        tests=plural(row.tests, "test VM") if row.tests else "",
    )


def _offboarding(host: Host) -> PageData | None:
    """Return what is done and what is left of a host that leaves service; None for others."""
    if host.maintenance in {Maintenance.NONE, Maintenance.HA}:
        return None
    holdings = holdings_of(host)
    words = {
        Step.TERMINATION: ("Termination is ordered", "not ordered: it may come back"),
        Step.RESERVATIONS: (
            "Nothing is held here",
            f"{plural(holdings.reservations, 'reservation')} still here",
        ),
        Step.VMS: (
            "No VM is here",
            f"{plural(holdings.vms, 'VM')} still here: the cloud moves them",
        ),
        Step.AGENT: ("It has no agent", "its agent is not decommissioned"),
        Step.AGGREGATES: (
            "It is in no aggregate",
            f"in {plural(holdings.aggregates, 'aggregate')} still",
        ),
    }
    steps = offboarding(holdings)
    return PageData(
        state=life_of(host, holdings).reason,
        steps=tuple(
            PageData(is_done=is_done, words=words[step][not is_done]) for step, is_done in steps
        ),
        is_over=all(is_done for _, is_done in steps),
    )


def leaving_lines(rooms: QuerySet[LeavingRoom]) -> tuple[PageData, ...]:
    """Return by host what slots that left hold there until the agent gave it back.

    Args:
        rooms: Which, such as those of a host or of a commitment.
    """
    sums = (
        rooms.order_by("host__name")
        .values("host__name")
        .annotate(
            slots=Count("pk"),
            since=Min("since"),
            **{name: Sum(name) for name in LEFT_PARTS},
        )
    )
    return tuple(
        PageData(
            slots=plural(one["slots"], "slot"),
            amounts=", ".join(text(one[name]) for name, text in LEFT_PARTS.items() if one[name]),
            host_name=one["host__name"],
            host_url=find_url("host", one["host__name"]),
            asked_url=list_url("hosts.workload", q=one["host__name"], state__exact="deleting"),
            since=time_tag(one["since"]),
        )
        for one in sums
    )


def shown_note(shown: int, total: int, noun: str) -> str:
    """Say how many rows there are, and how many of them are shown when not all."""
    if shown == total:
        return plural(total, noun)
    return f"first {shown:,} of {plural(total, noun)}"


def slot_lines(
    reservations: QuerySet[Reservation] | Sequence[Reservation],
) -> tuple[PageData, ...]:
    """Return reservations for a table, with their VMs and agents' words, in four queries.

    Args:
        reservations: Rows in the order to show; hosts and commitments are read along.
    """
    if isinstance(reservations, QuerySet):
        reservations = list(
            reservations.select_related("target_host", "confirmed_host", "commitment", "failover")
        )
    keys = [row.pk for row in reservations]
    vms, asked = _vms_by_reservation(keys), slot_states(keys)
    return tuple(_slot_line(row, vms.get(row.pk, ()), asked.get(row.pk)) for row in reservations)


def _vms_by_reservation(reservation_ids: Sequence[int]) -> Mapping[int, tuple[PageData, ...]]:
    allocations = list(
        ReservationAllocation.objects.filter(reservation_id__in=reservation_ids).order_by(
            "reservation_id", "-state", "vm_uuid"
        )
    )
    uuids = {row.vm_uuid for row in allocations}
    names = dict(
        Instance.objects.filter(openstack_id__in=uuids).values_list("openstack_id", "name")
    )
    lines: dict[int, tuple[PageData, ...]] = {}
    now = database_now()
    for row in allocations:
        state = row.get_state_display()
        line = PageData(
            name=names.get(row.vm_uuid) or row.vm_uuid,
            url=find_url("vm", row.vm_uuid),
            state=state if row.vm_uuid in names else f"{state}, not listed yet,",
            since=relative_text(row.confirmed_at or row.since, now),
            moment=moment_text(row.confirmed_at or row.since),
            size=f"{gib_text(row.memory_bytes)}, {count_text(row.vcpus, 'vCPUs')}",
        )
        lines[row.reservation_id] = (*lines.get(row.reservation_id, ()), line)
    return lines


#: What the agent of a slot's host makes of it, for people.
AGENT_WORDS: Final = {
    WorkloadState.PENDING: "its agent is asked to make it",
    WorkloadState.DISPATCHED: "its agent was asked to make it",
    WorkloadState.DEPLOYED: "made by its agent",
    WorkloadState.FAILED: "its agent could not make it",
    WorkloadState.LOST: "its agent was lost before it answered",
    WorkloadState.DELETING: "its agent is asked to remove it",
}


def agent_text(asked: Workload | None) -> str:
    """Return what the agent of a slot's host makes of it; nothing where none is asked."""
    if asked is None:
        return ""
    words = AGENT_WORDS[WorkloadState(asked.state)]
    return f"{words}: {asked.error}" if asked.error else words


def _slot_line(row: Reservation, vms: tuple[PageData, ...], asked: Workload | None) -> PageData:
    host = row.confirmed_host or row.target_host
    return PageData(
        agent=agent_text(asked),
        agent_url=row_url(asked) if asked is not None else "",
        title=reservation_name(row),
        url=row_url(row),
        kind=row.get_kind_display(),
        flavor=row.resource_name or NOTHING,
        memory=gib_number(row.memory_bytes),
        vcpus=count_text(row.vcpus),
        blocked_gib=gib_number(row.blocked_memory_bytes),
        blocked_vcpus=count_text(row.blocked_vcpus),
        host_name=host.name if host else "",
        host_url=row_url(host) if host else "",
        zone=row.zone,
        owner=commitment_name(row.commitment) if row.commitment else row.project_id or NOTHING,
        owner_url=row_url(row.commitment) if row.commitment else "",
        ready=reservation_badge(row),
        message="" if row.is_ready else row.ready_message,
        vms=vms,
        vms_more=f"{len(vms) - VMS_SHOWN:,}",
        why=decision_sentences(row.decision),
    )


def reservation_badge(row: Reservation) -> SafeString:
    """Show whether a reservation holds its capacity, and why."""
    reason = row.get_ready_reason_display() if row.ready_reason else "not placed yet"
    if row.is_ready:
        moving = row.target_host_id != row.confirmed_host_id
        return badge("warn", "moving", row.ready_message) if moving else badge("ok", reason)
    tone = "bad" if row.is_ready is False else "idle"
    return badge(tone, reason, row.ready_message)


def decision_sentences(decision: object) -> tuple[str, ...]:
    """Write a stored placement decision as short sentences, the outcome first.

    Keys that are not known are written as ``key: content``, so that nothing stored is hidden.

    Args:
        decision: What the placement stored on the reservation, or None.
    """
    if not isinstance(decision, Mapping):
        return () if decision in (None, "") else (str(decision),)
    rest = {key: content for key, content in decision.items() if content not in (None, "", [], {})}
    lines: list[str] = []
    if "removals" in rest and "candidates_in" in rest:
        lines = _outcome_lines(rest)
    lines += [f"{str(key).replace('_', ' ')}: {_plain(content)}" for key, content in rest.items()]
    return tuple(lines)


def _outcome_lines(rest: dict[str, Any]) -> list[str]:
    """Take what a scheduler decision holds out of ``rest`` and write it for people."""
    started = rest.pop("candidates_in")
    removals = rest.pop("removals")
    chosen, top, closest = rest.pop("host", None), rest.pop("top", []), rest.pop("closest", None)
    left = removals[-1]["remaining"] if removals else started
    outcome = f"best of {plural(left, 'host')}" if chosen else "no host left"
    lines = [f"{outcome}, out of {started:,}"]
    lines += [
        f"{step['step'].replace('_', ' ')} removed {plural(step['removed'], 'host')}"
        for step in removals
        if step["removed"]
    ]
    if top:
        shares = ", ".join(f"{name} {share:.3f}" for name, share in top[0]["contributions"].items())
        lines.append(f"score {top[0]['score']:.3f}" + (f" ({shares})" if shares else ""))
        later = [f"{candidate['host']} {candidate['score']:.3f}" for candidate in top[1:]]
        lines += [f"next best: {', '.join(later)}"] if later else []
    return lines + ([f"largest free room: {closest}"] if closest else [])


def _plain(content: object) -> str:
    if isinstance(content, Mapping):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in content.items())
    if isinstance(content, list | tuple):
        return ", ".join(_plain(inner) for inner in content)
    return str(content)
