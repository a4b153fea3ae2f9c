"""``/admin/vms/UUID/``: everything about a VM, at an address that stays when the VM goes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from capacity.models import ReservationAllocation, ReservationKind, SchedulingDecision
from capacity.nova.destinations import Destinations, Refusal, vm_destinations
from commitments.models import Commitment, InstanceAssignment
from console.base import TONE_ICONS, PageData, badge, may_view, time_tag
from console.capacity.decision_page import step_title
from console.links import columns_url, find_url, list_url, row_url
from console.pages import answered, check_view, show_page
from console.vms.history import VMEvent, happenings, last_arrival
from core.text import count_text, gib_text, memory_text, plural
from failover.choices import Uncovered
from failover.domain.patterns import required_count
from failover.models import FailoverDecision, FailoverReservation
from failover.selectors.zone import failover_requirements
from hosts.models import Domain, Host, Image, Instance, Project, ServerGroup
from journal.heavy import Length, computed_apart, heavy_question

HOSTS_SHOWN: Final = 12
REFUSING_SHOWN: Final = 200
OPENSTACK_ID: Final = re.compile(
    r"\b(?:[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"
)


def vm_view(request: HttpRequest, vm_uuid: str) -> HttpResponse:
    """Show a VM, or what is recorded of one that is gone.

    Raises:
        PermissionDenied: VMs may not be seen.
        Http404: nothing is known of it.
    """
    check_view(request, Instance)
    vm = Instance.objects.filter(openstack_id=vm_uuid).select_related("host").first()
    history = happenings(request, vm_uuid)
    if vm is None and not history:
        raise Http404
    name = str(vm) if vm is not None else vm_uuid
    page = PageData(
        is_known=vm is not None,
        uuid=vm_uuid,
        history=[_happening(one) for one in history],
        links=_links(request, vm_uuid, vm),
    )
    if vm is not None:
        page.facts = _facts(request, vm, history)
        page.holds = _holds(request, vm)
        page.cover = _cover(vm) if may_view(request, FailoverDecision) else None
        page.goes = _goes(vm) if may_view(request, Host) else None
    return show_page(
        request,
        "admin/vm_page.html",
        title=f"VM {name}",
        model=Instance,
        page=page,
        crumbs=(("VMs", list_url("hosts.instance")), (name, "")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What is known of the VM.

    Attributes:
        url: Where it leads; empty for nowhere.
        note: What else is to be said of it.
    """

    label: str
    text: str
    url: str = ""
    note: object = ""


def _facts(request: HttpRequest, vm: Instance, history: Sequence[VMEvent]) -> list[Fact]:
    project = Project.objects.filter(openstack_id=vm.project_id).first()
    domain = (
        Domain.objects.filter(openstack_id=project.domain_id).first()
        if project is not None and project.domain_id
        else None
    )
    image = Image.objects.filter(openstack_id=vm.image_id).first() if vm.image_id else None
    group = ServerGroup.objects.filter(members__contains=[vm.openstack_id]).first()
    arrival = last_arrival(vm, history)
    facts = [
        Fact(
            label="Host",
            text=vm.host.name if vm.host else "not placed",
            url=row_url(vm.host) if vm.host and may_view(request, Host) else "",
            note=arrival.words,
        ),
        Fact(label="There since", text="" if arrival.at else "not known", note=_tag(arrival.at)),
        Fact(label="Zone", text=vm.zone or "none"),
        Fact(label="Status", text=vm.status, note=vm.task_state),
        Fact(
            label="Project",
            text=project.name if project else vm.project_id,
            url=reverse("headroom_project", args=[project.pk])
            if project and may_view(request, Project) and may_view(request, Commitment)
            else "",
            note=f"in domain {domain.name or domain.openstack_id}" if domain else "",
        ),
        Fact(label="Flavor", text=vm.flavor_name, url=find_url("flavor", vm.flavor_name)),
        Fact(
            label="Size",
            text=f"{memory_text(vm.memory_bytes)}, {count_text(vm.vcpus, 'vCPUs')}",
            note=f"{count_text(vm.disk_gib, 'GiB')} of disk",
        ),
        Fact(
            label="Image",
            text=(image.name if image else "") or "not known",
            note=f"operating system {vm.os_type}",
        ),
        Fact(label="Launched", text="" if vm.launched_at else "never", note=_tag(vm.launched_at)),
    ]
    if group is not None:
        facts.append(
            Fact(
                label="Server group",
                text=str(group),
                url=row_url(group) if may_view(request, ServerGroup) else "",
                note=f"{group.policy}, {plural(len(group.members), 'VM')}",
            )
        )
    return facts


def _tag(moment: object) -> object:
    return time_tag(moment) if moment is not None else ""  # type: ignore[arg-type]


def _links(request: HttpRequest, vm_uuid: str, vm: Instance | None) -> list[tuple[str, str]]:
    everything = f"{reverse('headroom_search')}?q={vm_uuid}&everything=1"
    links = [("everything about it", everything)]
    if vm is not None:
        links.append(("its columns in OpenStack's list", columns_url(vm)))
    if may_view(request, SchedulingDecision):
        links.append(("scheduling decisions", list_url("capacity.schedulingdecision", q=vm_uuid)))
    return links


def _happening(one: VMEvent) -> PageData:
    return PageData(at=time_tag(one.at), what=one.what, detail=one.detail, url=one.url, who=one.who)


def _holds(request: HttpRequest, vm: Instance) -> PageData | None:
    """Return the commitment that covers the VM and the slots that carry it."""
    if not may_view(request, Commitment):
        return None
    covering = (
        InstanceAssignment.objects.filter(vm_uuid=vm.openstack_id)
        .select_related("commitment")
        .order_by("-resource_type")
    )
    slots = (
        ReservationAllocation.objects.filter(vm_uuid=vm.openstack_id)
        .exclude(reservation__kind=ReservationKind.FAILOVER)
        .select_related("reservation__commitment", "reservation__target_host")
        .order_by("pk")
    )
    return PageData(
        commitments=[
            PageData(
                name=f"{row.commitment.flavor_group_name} in {row.commitment.zone}",
                url=row_url(row.commitment),
                kind=row.get_resource_type_display(),
                ends=time_tag(row.commitment.end_time),
            )
            for row in covering
        ],
        slots=[
            PageData(
                name=str(row.reservation),
                url=row_url(row.reservation),
                kind=row.reservation.get_kind_display(),
                state=row.get_state_display(),
                memory=gib_text(row.memory_bytes),
                host=row.reservation.target_host,
                since=time_tag(row.since),
            )
            for row in slots
        ],
    )


def _cover(vm: Instance) -> PageData:
    """Return what would happen to the VM if its host died, and its failover places."""
    places = list(
        FailoverReservation.objects.filter(reservation__allocations__vm_uuid=vm.openstack_id)
        .select_related("reservation__target_host")
        .order_by("name")
    )
    decision = FailoverDecision.objects.filter(vm_uuid=vm.openstack_id).first()
    tone, title, why = _verdict(vm, decision, len(places))
    return PageData(
        tone=tone,
        icon=TONE_ICONS[tone],
        title=title,
        why=why,
        since=time_tag(decision.since) if decision is not None else "",
        places=[
            PageData(
                host=row.reservation.target_host,
                url=row_url(row.reservation.target_host) if row.reservation.target_host else "",
                slot=row.name,
                slot_url=row_url(row),
                state=badge("ok", row.get_state_display())
                if row.reservation.is_ready
                else badge("bad", "not ready", row.reservation.ready_message),
            )
            for row in places
        ],
    )


def _verdict(vm: Instance, decision: FailoverDecision | None, held: int) -> tuple[str, str, str]:
    """Return tone, sentence and reason."""
    if vm.host is None:
        return "idle", "It runs on no host that is known", ""
    if decision is not None:
        why = Uncovered(decision.reason).label
        if not decision.current_count:
            return "bad", "It would not survive the loss of its host", f"Why: {why}."
        counted = f"{decision.current_count} of {decision.required_count}"
        return "warn", f"It has {counted} failover slots", f"Why not all: {why}."
    owed = required_count(failover_requirements(), vm.flavor_name)
    if not owed and not held:
        return "idle", "No failover slot is owed to it", "No failover policy names its flavor."
    if held < owed:
        return "warn", f"It has {held} of {owed} failover slots", "The loop has not decided yet."
    slots = plural(held, "failover slot")
    return "ok", f"It would survive the loss of its host: it has {slots}", ""


def _goes(vm: Instance) -> PageData:
    """Return where the VM may go, and who refuses it and why."""
    found, problem = answered(lambda: _asked(vm))
    if found is None:
        return PageData(problem=problem, hosts=(), refusals=())
    count = len(found.hosts)
    return PageData(
        problem=f"The run failed: {found.failure}" if found.failure else "",
        tone="ok" if count else "bad",
        icon=TONE_ICONS["ok" if count else "bad"],
        title=f"{plural(count, 'host')} would take it" if count else "No other host would take it",
        intent=found.intent.value.replace("_", " "),
        pipeline=found.pipeline,
        hosts=[(name, find_url("host", name)) for name in found.hosts[:HOSTS_SHOWN]],
        hidden=max(0, count - HOSTS_SHOWN),
        refusals=_refusals(found.refusals),
    )


def _asked(vm: Instance) -> Destinations:
    with heavy_question(Length.SHORT):
        return vm_destinations(vm, computed=computed_apart)


def _refusals(rows: Sequence[Refusal]) -> list[PageData]:
    """Return who refuses and why; names of projects stand for the ids in the reasons."""
    ids = {one for row in rows for one in OPENSTACK_ID.findall(row.remedy)}
    names = dict(Project.objects.filter(openstack_id__in=ids).values_list("openstack_id", "name"))
    return [
        _refusal(
            replace(
                row,
                remedy=OPENSTACK_ID.sub(lambda one: names.get(one[0]) or one[0], row.remedy),
            )
        )
        for row in rows
    ]


def _refusal(row: Refusal) -> PageData:
    return PageData(
        title=step_title(row.step),
        step=row.step,
        summary=plural(len(row.hosts), "host"),
        remedy=f"{row.hosts[0]}: {row.remedy}" if row.remedy else "",
        hosts=[(name, find_url("host", name)) for name in row.hosts[:REFUSING_SHOWN]],
        hidden=max(0, len(row.hosts) - REFUSING_SHOWN),
    )
