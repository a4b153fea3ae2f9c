"""``/admin/projects/``: projects by what they hold and leave idle, and a page for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db.models import Count, Exists, OuterRef, QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from commitments.domain.statuses import ResourceType
from commitments.models import Commitment, InstanceAssignment
from commitments.selectors.usage_history import usage_history
from commitments.usage_models import CommitmentAccount, CommitmentHour
from console.base import PageData, may_view, verdict
from console.charts import Segment, stacked_bar
from console.links import find_url, list_url, row_url
from console.pages import check_view, seen_row, show_page
from console.projects.holdings import holdings, holdings_by_group
from console.time_charts import project_chart
from core.text import (
    NOTHING,
    count_text,
    gib_number,
    gib_text,
    moment_text,
    percent_text,
    plural,
    relative_text,
)
from hosts.models import Instance, Project
from journal.clock import database_now

PROJECTS_SHOWN: Final = 200
VMS_SHOWN: Final = 15
ENDS_SHOWN: Final = 8
ORDERS: Final[Mapping[str, tuple[str, str]]] = {
    "idle": ("most idle", "-idle"),
    "held": ("most held", "-held"),
    "used": ("most used", "-used"),
}


def projects_view(request: HttpRequest) -> HttpResponse:
    """Show the projects that hold most, or leave most idle."""
    check_view(request, Project, Commitment)
    now = database_now()
    chosen = request.GET.get("order", "")
    order = chosen if chosen in ORDERS else "idle"
    found = list(holdings(now).order_by(ORDERS[order][1], "project_id"))
    held, used, idle = (sum(row[name] for row in found) for name in ("held", "used", "idle"))
    most = max((row["held"] for row in found), default=0)
    page = PageData(
        verdict=_held_verdict(found, held, idle),
        order=order,
        orders=[(word, label, f"?order={word}") for word, (label, _) in ORDERS.items()],
        held=gib_text(held),
        used=gib_text(used),
        idle=gib_text(idle),
        idle_share=percent_text(idle, held),
        count=plural(len(found), "project"),
        hidden=max(0, len(found) - PROJECTS_SHOWN),
        lines=[_holding_line(row, most) for row in found[:PROJECTS_SHOWN]],
    )
    return show_page(
        request,
        "admin/projects_page.html",
        title="Which projects hold most and use least",
        model=Project,
        page=page,
    )


def _held_verdict(rows: Sequence[Mapping[str, Any]], held: int, idle: int) -> PageData:
    """Say how much of what projects hold is idle, and who uses nothing of it."""
    if not rows:
        return verdict(
            "idle",
            "No project holds memory by a commitment",
            "Limes asks for commitments once it knows Headroom (docs/limes.md).",
        )
    unused = sum(not row["used"] for row in rows)
    worst = max(rows, key=lambda row: (row["idle"], row["project_id"]))
    share = percent_text(idle, held)
    sentence = (
        f"Most idle: {worst['project_name'] or worst['project_id']} with {gib_text(worst['idle'])}."
        if worst["idle"]
        else "VMs use all of it."
    )
    if unused == 1:
        sentence = f"1 project uses nothing of what it holds. {sentence}"
    elif unused:
        sentence = f"{unused:,} projects use nothing of what they hold. {sentence}"
    return verdict(
        "warn" if unused else "ok",
        f"{gib_text(idle)} ({share}) of {gib_text(held)} held for {plural(len(rows), 'project')} "
        "are idle",
        sentence,
    )


def _holding_line(row: Mapping[str, Any], most: int) -> PageData:
    name = row["project_name"] or row["project_id"]
    pk = row["project_pk"]
    return PageData(
        name=name,
        url=reverse("headroom_project", args=[pk]) if pk else "",
        commitments=count_text(row["commitments"]),
        commitments_url=list_url("commitments.commitment", project_id__exact=row["project_id"]),
        **_amounts(row),
        bar=_bar(row, most, name),
    )


def _amounts(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "held": gib_text(row["held"]),
        "used": gib_text(row["used"]),
        "idle": gib_text(row["idle"]),
        "idle_share": percent_text(row["idle"], row["held"]),
    }


def _bar(row: Mapping[str, Any], whole: int, name: str) -> str:
    segments = (
        Segment(kind="own_vms", amount_units=row["used"], text=gib_text(row["used"]), label="used"),
        Segment(
            kind="committed", amount_units=row["idle"], text=gib_text(row["idle"]), label="idle"
        ),
    )
    share = percent_text(row["idle"], row["held"])
    return stacked_bar(
        segments,
        capacity_units=whole,
        title=f"{name}: {gib_text(row['held'])} held, {share} of it idle",
    )


def project_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Show what a project holds, uses and leaves idle, and its VMs in and out of commitments."""
    project = seen_row(request, Project, pk)
    check_view(request, Commitment)
    now = database_now()
    rows = list(holdings_by_group(project.openstack_id, now))
    whole = {name: sum(row[name] for row in rows) for name in ("held", "used", "idle")}
    most = max((row["held"] for row in rows), default=0)
    identity = {"project_id__exact": project.openstack_id}
    page = PageData(
        **_amounts(whole),
        is_idle=whole["idle"] * 2 > whole["held"],
        holds=bool(whole["held"]),
        bar=_bar(whole, whole["held"], project.name),
        project_id=project.openstack_id,
        domain_url=find_url("domain", project.domain_id) if project.domain_id else "",
        domain=project.domain_id,
        row_url=row_url(project),
        commitments_url=list_url("commitments.commitment", **identity),
        idle_url=list_url("commitments.commitment", use="idle", **identity),
        lines=[
            PageData(
                group=row["flavor_group_name"],
                zone=row["zone"],
                commitments=count_text(row["commitments"]),
                url=list_url(
                    "commitments.commitment",
                    flavor_group_name__exact=row["flavor_group_name"],
                    zone=row["zone"],
                    **identity,
                ),
                **_amounts(row),
                bar=_bar(row, most, f"{row['flavor_group_name']} in {row['zone']}"),
            )
            for row in rows
        ],
        vms=_vms(project) if may_view(request, Instance) else None,
        vms_url=list_url("hosts.instance", **identity),
        chart=_chart(request, project, now),
        ends=_ends(project, now),
        quota_url=list_url("capacity.projectquota", **identity),
        refusals_url=list_url("commitments.refusedchange", q=project.openstack_id),
    )
    return show_page(
        request,
        "admin/project_page.html",
        title=f"Project {project.name}",
        model=Project,
        page=page,
        crumbs=(("Projects", reverse("headroom_projects")), (project.name, "")),
    )


def _chart(request: HttpRequest, project: Project, now: datetime) -> PageData | None:
    if not (may_view(request, CommitmentHour) and may_view(request, CommitmentAccount)):
        return None
    return project_chart(usage_history(project.openstack_id, now=now))


def _vms(project: Project) -> tuple[PageData, PageData]:
    """Return the VMs in commitments, and those that no commitment covers; largest first."""
    assigned = InstanceAssignment.objects.filter(
        vm_uuid=OuterRef("openstack_id"), resource_type=ResourceType.MEMORY
    )
    rows = Instance.objects.filter(project_id=project.openstack_id).annotate(
        is_covered=Exists(assigned)
    )
    return (
        _vm_list("In commitments", rows.filter(is_covered=True), "No VM is in a commitment."),
        _vm_list("Pay as you go", rows.filter(is_covered=False), "Every VM is in a commitment."),
    )


def _vm_list(title: str, rows: QuerySet[Instance], empty: str) -> PageData:
    sums = rows.aggregate(vms=Count("pk"), memory=Sum("memory_bytes"))
    shown = list(rows.select_related("host").order_by("-memory_bytes", "name")[:VMS_SHOWN])
    return PageData(
        title=title,
        note=f"{plural(sums['vms'], 'VM')}, {gib_text(sums['memory'] or 0)}",
        empty=empty,
        lines=[
            PageData(
                name=str(vm),
                url=row_url(vm),
                memory=gib_text(vm.memory_bytes),
                flavor=vm.flavor_name,
                host=vm.host.name if vm.host else "",
                host_url=row_url(vm.host) if vm.host else "",
            )
            for vm in shown
        ],
        hidden=sums["vms"] - len(shown),
    )


def _ends(project: Project, now: datetime) -> list[PageData]:
    rows = Commitment.objects.filter(project_id=project.openstack_id, end_time__gt=now)
    return [
        PageData(
            name=f"{row.flavor_group_name} in {row.zone}",
            url=row_url(row),
            memory=gib_number(row.requested_amount)
            if row.resource_type == ResourceType.MEMORY
            else NOTHING,
            vcpus=NOTHING
            if row.resource_type == ResourceType.MEMORY
            else count_text(row.requested_amount),
            at=moment_text(row.end_time) if row.end_time else "",
            ago=relative_text(row.end_time, now) if row.end_time else "",
        )
        for row in rows.order_by("end_time", "pk")[:ENDS_SHOWN]
    ]
