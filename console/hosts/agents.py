"""Admin of agents on hosts: what they reported, their keys, the tokens they enrolled with."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from capacity.agents.following import SLOT
from capacity.models import Reservation
from console.base import CheckedActions, SystemOwnedAdmin, badge, column, link, shown
from console.hosts.orders import (
    ReasonForm,
    decommission_agents,
    fence_agents,
    new_tokens,
    revoke_keys,
    revoke_tokens,
)
from console.links import list_url, register_findable, row_link, text_link
from core.text import NOTHING, gib_text
from hosts.agents.cell_models import CellResource, HostCell
from hosts.agents.models import EnrolmentToken, HostAgent, HostKey, HostLease, KeyState
from hosts.agents.resource_models import HostResource
from hosts.agents.results import is_signed
from hosts.agents.rollout_models import AgentRollout
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.domain.liveness import Liveness
from hosts.domain.workloads import WorkloadState

register_findable("host_key", HostKey, "kid")
register_findable("enrolment_token", EnrolmentToken, "id")
register_findable("host_workload", Workload, "gwid")


TONES = {Liveness.UP: "ok", Liveness.SUSPECT: "warn", Liveness.DOWN: "bad"}


def liveness_badge(lease: HostLease) -> SafeString:
    """Show whether an agent is heard."""
    return badge(TONES.get(Liveness(lease.liveness), "idle"), lease.liveness)


def resources_text(row: HostAgent) -> str:
    """Show network, disk I/O and GPUs of a host: what it has, what VMs and slots take."""
    known = HostResource.objects.filter(host__name=row.host_name).order_by("pk")
    return "; ".join(
        f"{one.get_resource_display()}: VMs {one.allocated:,}, slots {one.reserved:,} of "
        + ("what is not known" if one.source == "unknown" else f"{one.effective_capacity:,}")
        for one in known
    )


def cells_text(row: HostAgent) -> str:
    """Show the NUMA cells of a host: what each has, and what is taken of it."""
    cells: dict[int, list[str]] = {}
    for one in HostCell.objects.filter(host__name=row.host_name).order_by("cell", "resource"):
        is_count = one.resource == CellResource.CPU
        taken, has = (
            f"{amount:,}" if is_count else gib_text(amount)
            for amount in (one.allocated, one.capacity)
        )
        words = {"cpu": "CPUs pinned", "memory": "in huge pages", "hugepages": "of those in use"}
        if one.is_described:
            words = {"cpu": "CPUs allocated", "memory": "allocated"}
        cells.setdefault(one.cell, []).append(f"{taken} of {has} {words[one.resource]}")
    return "; ".join(f"cell {cell}: {', '.join(told)}" for cell, told in cells.items()) or NOTHING


def version_text(row: HostAgent) -> str:
    """Show which version runs, and which is wanted if that is another one."""
    runs = row.agent_version or "unknown"
    is_other = row.wanted_version not in ("", row.agent_version)
    return f"{runs}, {row.wanted_version} is wanted" if is_other else runs


def work_link(row: HostAgent) -> SafeString:
    """Link to what an agent was asked."""
    return text_link(list_url("hosts.workload", q=row.host_name), "reservations")


@admin.register(HostAgent)
class HostAgentAdmin(SystemOwnedAdmin[HostAgent], CheckedActions[HostAgent]):
    """Agents that enrolled, with their last report."""

    actions = (fence_agents, decommission_agents, new_tokens)  # type: ignore[assignment]  # those of this page
    action_form = ReasonForm

    owner_note = "Written when an agent enrols and reports."
    empty_note = (
        "No agent runs on a host: ./run manage host_agent token create lets the first enrol "
        "(docs/hosts.md)."
    )
    host = link("host", "host_name", "host")
    liveness = shown("liveness", lambda row: liveness_badge(row.lease), "lease__liveness")
    heard = column("lease__renewed_at", "last heartbeat")
    list_select_related = ("lease",)
    list_display = (
        host,
        liveness,
        column("lease__liveness_since", "since"),
        heard,
        "reported_at",
        "mode",
        shown("asked of it", work_link),
        shown("version", version_text, "agent_version"),
    )
    list_filter = ("lease__liveness", "mode")
    search_fields = ("host_name", "=uuid")
    search_help_text = "Name of a host, or whole id of its agent"
    page_columns = (
        host,
        "uuid",
        shown("version", version_text),
        column("abilities", "what it can"),
        "mode",
        shown("asked of it", work_link),
        liveness,
        column("lease__liveness_since", "since"),
        heard,
        column("lease__expires_at", "end of the lease"),
        column("lease__run_id", "run"),
        column("lease__boot_id", "kernel's boot"),
        column("lease__uptime_seconds", "uptime of the host, s"),
        column("lease__outbox_depth", "results not delivered"),
        "fence_epoch",
        column("change_seq", "last change's number"),
        "timeline",
        shown("network and disk I/O (B/s), GPUs", resources_text),
        shown("NUMA cells", cells_text),
        column("stats", "what it says that it made"),
        column("stats_at", "counted"),
        column("stats_drift", "what differs: expected, said"),
        column("commands", "told to do"),
        column("instances_at", "list of VMs"),
        "decommissioned_at",
        "enrolled_at",
        "generated_at",
        "reported_at",
        "report",
    )

    def has_order_permission(self, request: HttpRequest) -> bool:
        """Whether the user may order something about agents."""
        return bool(request.user.has_perm("hosts.change_hostagent"))

    def has_token_permission(self, request: HttpRequest) -> bool:
        """Whether the user may let agents enrol."""
        return bool(request.user.has_perm("hosts.add_enrolmenttoken"))


WORK_TONES = {
    WorkloadState.PENDING: "warn",
    WorkloadState.DISPATCHED: "warn",
    WorkloadState.DEPLOYED: "ok",
    WorkloadState.FAILED: "bad",
    WorkloadState.LOST: "bad",
}


def work_badge(row: Workload) -> SafeString:
    """Show how far a workload is."""
    return badge(WORK_TONES.get(WorkloadState(row.state), "idle"), row.state)


def owner_link(row: Workload) -> SafeString | str:
    """Show what a workload is made for."""
    if row.owner_kind != SLOT:
        return f"{row.owner_kind} {row.owner_id}"
    slot = Reservation.objects.filter(pk=row.owner_id).first()
    return row_link(slot) if slot is not None else f"slot {row.owner_id}, which is gone"


def results_link(row: Workload) -> SafeString:
    """Link to what an agent answered."""
    return text_link(list_url("hosts.workloadresult", q=row.gwid), "what its agent answered")


@admin.register(Workload)
class WorkloadAdmin(SystemOwnedAdmin[Workload]):
    """What agents were asked to make."""

    owner_note = "Written when slots of hosts change whose agents enforce, and by agents' results."
    empty_note = (
        "No agent is asked for anything: slots are once agents run on their hosts (docs/hosts.md)."
    )
    host = link("host", "host_name", "host")
    list_select_related = ("agent",)
    list_display = (
        "gwid",
        column("agent"),
        shown("state", work_badge, "state"),
        column("state_since", "since"),
        "type",
        column("cpus", "CPUs"),
        "memory_bytes",
        "attempt",
        "error",
    )
    list_filter = ("state", "type")
    search_fields = ("=gwid", "agent__host_name", "=owner_id", "user_id")
    search_help_text = "Whole id, name of a host, key of a slot, or project"
    page_columns = (
        "gwid",
        column("agent"),
        shown("made for", owner_link),
        link("project", "user_id", "project"),
        "type",
        "data",
        column("cpus", "CPUs"),
        "memory_bytes",
        "disk_bytes",
        column("network_bps", "network, B/s"),
        column("disk_io_bps", "disk I/O, B/s"),
        column("gpus", "GPUs"),
        shown("state", work_badge, "state"),
        column("state_since", "since"),
        "error",
        "attempt",
        column("first_attempt", "first attempt of this version"),
        "version",
        column("is_made", "made"),
        column("seq", "number of the change"),
        "fence_epoch",
        "delete_reason",
        "expires_at",
        "created_at",
        shown("results", results_link),
    )


def signature_badge(row: WorkloadResult) -> SafeString:
    """Show whether the signature that is kept holds for the document that is kept."""
    holds = is_signed(row)
    return badge("ok" if holds else "bad", "verified" if holds else "does not hold")


@admin.register(WorkloadResult)
class WorkloadResultAdmin(SystemOwnedAdmin[WorkloadResult]):
    """What agents answered, with their signatures; rows are never changed."""

    owner_note = "Written when an agent tells what became of something."
    empty_note = "No agent told of a result yet (docs/hosts.md)."
    list_select_related = ("workload__agent",)
    list_display = (
        "id",
        column("workload"),
        shown("host", lambda row: row.workload.agent.host_name),
        "attempt",
        "kind",
        "state",
        "received_at",
        "kid",
    )
    list_filter = ("kind", "state")
    search_fields = ("=workload__gwid", "workload__agent__host_name")
    search_help_text = "Whole id of a reservation, or name of a host"
    page_columns = (
        column("workload"),
        "attempt",
        "kind",
        "state",
        shown("signature", signature_badge),
        "kid",
        "received_at",
        "document",
    )


def key_badge(row: HostKey) -> SafeString:
    """Show whether what a key signs is taken."""
    tones = {KeyState.ACTIVE: "ok", KeyState.RETIRING: "warn"}
    return badge(tones.get(KeyState(row.state), "idle"), row.get_state_display())


@admin.register(HostKey)
class HostKeyAdmin(SystemOwnedAdmin[HostKey], CheckedActions[HostKey]):
    """Keys of agents."""

    actions = (revoke_keys,)  # type: ignore[assignment]  # those of this page
    action_form = ReasonForm
    owner_note = (
        "Written when an agent enrols and rotates. What is revoked, here or by ./run manage "
        "host_agent key revoke KID, is of no use from then on."
    )
    empty_note = (
        "No agent has enrolled yet: ./run manage host_agent token create lets the first "
        "(docs/hosts.md)."
    )
    list_select_related = ("agent", "token")
    list_display = (
        "kid",
        "agent",
        shown("state", key_badge, "state"),
        "created_at",
        "not_after",
        "revoked_at",
    )
    list_filter = ("state",)
    search_fields = ("=kid", "agent__host_name")
    search_help_text = "Whole id of a key, or name of a host"

    page_columns = (
        "kid",
        column("agent"),
        shown("state", key_badge, "state"),
        column("token", "enrolled with"),
        "created_at",
        "not_after",
        "revoked_at",
    )

    def has_order_permission(self, request: HttpRequest) -> bool:
        """Whether the user may revoke keys."""
        return bool(request.user.has_perm("hosts.change_hostkey"))


@admin.register(EnrolmentToken)
class EnrolmentTokenAdmin(SystemOwnedAdmin[EnrolmentToken], CheckedActions[EnrolmentToken]):
    """Tokens that let agents enrol; only their digests are kept."""

    actions = (revoke_tokens,)  # type: ignore[assignment]  # those of this page
    action_form = ReasonForm
    owner_note = (
        "The lists of hosts and of agents make one for a host; ./run manage host_agent token "
        "create --name 'node0*' --uses 40 --ttl 1h makes one for many, token revoke ID ends it."
    )
    empty_note = (
        "No agent may enrol: ./run manage host_agent token create makes a token (docs/hosts.md)."
    )
    list_display = (
        "id",
        column("name_glob", "for hosts"),
        "uses_left",
        "expires_at",
        "created_by",
        "created_at",
    )
    search_fields = ("name_glob", "created_by")
    search_help_text = "Pattern of names, or who made it"

    page_columns = (
        "id",
        column("name_glob", "for hosts"),
        "uses_left",
        "expires_at",
        "created_by",
        "created_at",
    )

    def has_order_permission(self, request: HttpRequest) -> bool:
        """Whether the user may end tokens."""
        return bool(request.user.has_perm("hosts.change_enrolmenttoken"))


@admin.register(AgentRollout)
class AgentRolloutAdmin(SystemOwnedAdmin[AgentRollout]):
    """Versions of the agent that reach hosts in waves."""

    owner_note = (
        "Started by ./run manage host_agent rollout. Agents are told which version is wanted on "
        "their hosts; whoever keeps the packages of a host installs it."
    )
    empty_note = "No version was rolled out: ./run manage host_agent rollout start VERSION does it."
    stands = shown(
        "stands",
        lambda row: "halted" if row.halted_at else "goes on" if row.is_open else "over",
        "halted_at",
    )
    list_display = (
        "version",
        stands,
        shown("waves", lambda row: ", ".join(row.waves) or NOTHING),
        shown("failing", lambda row: ", ".join(row.failing) or NOTHING),
        "opened_by",
        "opened_at",
        "closed_at",
    )
    list_filter = ("is_open",)
    search_fields = ("version",)
    search_help_text = "A version"
    page_columns = (
        "version",
        stands,
        "reason",
        "opened_by",
        "opened_at",
        shown("waves", lambda row: ", ".join(row.waves) or NOTHING),
        "wave_at",
        shown("failing", lambda row: ", ".join(row.failing) or NOTHING),
        "halted_at",
        "closed_at",
    )
