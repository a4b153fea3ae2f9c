"""Admin of VMs: what covers each, now and if its host dies."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from capacity.models import ReservationAllocation, ReservationKind
from commitments.models import InstanceAssignment
from console.base import COUNT_CAP, ChoiceFilter, SystemOwnedAdmin, badge, link, shown
from console.hosts.columns import (
    CLOUD_EMPTY,
    CLOUD_NOTE,
    FoundByName,
    ZoneFilter,
    with_project_name,
)
from console.links import find_link, row_link
from console.names import names_of, reservation_title
from core.text import NOTHING, count_text, gib_number, memory_text, plural
from failover.choices import Uncovered
from failover.domain.patterns import required_count
from failover.selectors.zone import failover_requirements
from hosts.models import Image, Instance, Project
from journal.statements import fetch_row

COVER = """
SELECT (SELECT count(*) FROM capacity_reservationallocation AS member
          JOIN capacity_reservation AS held
            ON held.id = member.reservation_id AND held.kind = 'failover'
         WHERE member.vm_uuid = asked.vm_uuid),
       decision.current_count, decision.required_count, decision.reason
  FROM (SELECT %s::text AS vm_uuid) AS asked
  LEFT JOIN failover_failoverdecision AS decision ON decision.vm_uuid = asked.vm_uuid
"""


def vm_cover_text(vm_uuid: str, flavor_name: str) -> str:
    """Return how many failover reservations cover a VM, of how many it needs.

    As the decision about the VM says; without one nothing lacks.
    """
    held, current, required, reason = fetch_row(COVER, [vm_uuid])
    if current is None:
        required = required_count(failover_requirements(), flavor_name)
        text = f"{held} of {required}"
        return text if held >= required else f"{text}: not decided yet, or none is owed"
    text = f"{current} of {required}: {Uncovered(reason).label}"
    uncounted = held - current
    if uncounted <= 0:
        return text
    verb = "does" if uncounted == 1 else "do"
    return f"{text}; {plural(uncounted, 'reservation')} {verb} not count"


class SystemFilter(ChoiceFilter):
    """VMs of one operating system."""

    title = "os type"
    parameter_name = "os_type"
    field = "os_type"

    def words(self) -> Sequence[tuple[str, str]]:
        """Return the systems of the newest VMs; where there are more, those of images as well."""
        newest = Instance.objects.order_by("-pk").values_list("os_type", flat=True)[:COUNT_CAP]
        known = list(newest)
        systems = set(known)
        if len(known) == COUNT_CAP:
            systems.update(Image.objects.order_by().values_list("os_type", flat=True).distinct())
        return [(system, system) for system in sorted(systems)]


RUNNING_STATUSES = frozenset({"ACTIVE", "RESIZE", "VERIFY_RESIZE", "MIGRATING", "REBOOT"})


@admin.register(Instance)
class InstanceAdmin(FoundByName[Instance], SystemOwnedAdmin[Instance]):
    """Nova servers."""

    owner_note = CLOUD_NOTE
    empty_note = CLOUD_EMPTY
    list_display = (
        "named",
        "project",
        "host_link",
        "zone",
        "flavor_link",
        "memory_gib",
        "vcpus_count",
        "state",
        "covered_by",
    )
    list_filter = (ZoneFilter, "status", SystemFilter)
    search_fields = ("openstack_id__whole", "name", "project_id__whole", "flavor_name__whole")
    search_help_text = "Name; whole id, project's name or id, or flavor name"
    named_columns = {"project_id": Project}
    list_display_links = None  # the name is one
    list_select_related = ("host",)
    ordering = ("-id",)
    page_columns = (
        "name",
        "openstack_id",
        "project",
        "user_id",
        "covered_by",
        "reservations",
        "failover_cover",
        "state",
        "vm_state",
        "task_state",
        "host_link",
        "host_name",
        "zone",
        "flavor_link",
        "memory_bytes",
        "vcpus",
        "disk_gib",
        "os_type",
        "nova_created_at",
        "launched_at",
        "nova_updated_at",
        "arrived_at",
        "flavor_extra_specs",
        "metadata",
        "updated_at",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Instance]:
        """Read VMs with project name and covering commitment."""
        covering = (
            InstanceAssignment.objects.filter(vm_uuid=OuterRef("openstack_id"))
            .order_by("-resource_type")
            .values("commitment__commitment_uuid")[:1]
        )
        named = with_project_name(super().get_queryset(request))
        annotated: QuerySet[Instance] = named.annotate(covering_uuid=Subquery(covering))
        return annotated

    names_in = ("covering_uuid",)
    named = shown("name", lambda row: row_link(row, hint=row.openstack_id), "name")
    project = shown(
        "project",
        lambda row: find_link("project", row.project_id, getattr(row, "project_name", None) or ""),
        "project_id",
    )
    host_link = shown(
        "host",
        lambda row: row_link(row.host) if row.host is not None else badge("idle", "not placed"),
        "host__name",
    )
    flavor_link = link("flavor", "flavor_name", "flavor")
    memory_gib = shown("memory, GiB", lambda row: gib_number(row.memory_bytes), "memory_bytes")
    vcpus_count = shown("vCPUs", lambda row: count_text(row.vcpus), "vcpus")

    @admin.display(description="status", ordering="status")
    def state(self, row: Instance) -> SafeString:
        """Show Nova's status."""
        if row.status == "ERROR":
            return badge("bad", row.status)
        return badge("ok" if row.status in RUNNING_STATUSES else "idle", row.status)

    @admin.display(description="covered by")
    def covered_by(self, row: Instance) -> SafeString | str:
        """Link to the commitment that covers the VM; otherwise it is pay-as-you-go."""
        uuid = getattr(row, "covering_uuid", None)
        return names_of(row).link("commitment", uuid) if uuid else "pay as you go"

    @admin.display(description="in reservations")
    def reservations(self, row: Instance) -> SafeString | str:
        """Link to the reservations the VM sits in, expected or confirmed, and to failover ones.

        A failover reservation waits for the VM elsewhere; whether it counts is the cover's to say.
        """
        found = list(
            ReservationAllocation.objects.filter(vm_uuid=row.openstack_id).select_related(
                "reservation__commitment", "reservation__failover"
            )
        )
        slots = [one for one in found if one.reservation.kind == ReservationKind.COMMITTED]
        parts = (
            (
                row_link(
                    allocation.reservation,
                    reservation_title(allocation.reservation),
                ),
                ""
                if allocation.reservation.kind == ReservationKind.FAILOVER
                else f" ({allocation.get_state_display()})",
                f", {memory_text(allocation.memory_bytes)} of it"
                if allocation in slots and len(slots) > 1
                else "",
            )
            for allocation in found
        )
        return format_html_join(", ", "{}{}{}", parts) or NOTHING

    failover_cover = shown(
        "failover cover", lambda row: vm_cover_text(row.openstack_id, row.flavor_name)
    )
