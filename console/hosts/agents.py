"""Admin of agents on hosts: what they reported, their keys, the tokens they enrolled with."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString

from console.base import SystemOwnedAdmin, badge, column, link, shown
from console.links import register_findable
from hosts.agents.models import EnrolmentToken, HostAgent, HostKey, HostLease, KeyState
from hosts.domain.liveness import Liveness

register_findable("host_key", HostKey, "kid")
register_findable("enrolment_token", EnrolmentToken, "id")


TONES = {Liveness.UP: "ok", Liveness.SUSPECT: "warn", Liveness.DOWN: "bad"}


def liveness_badge(lease: HostLease) -> SafeString:
    """Show whether an agent is heard."""
    return badge(TONES.get(Liveness(lease.liveness), "idle"), lease.liveness)


@admin.register(HostAgent)
class HostAgentAdmin(SystemOwnedAdmin[HostAgent]):
    """Agents that enrolled, with their last report."""

    owner_note = "Written when an agent enrols and reports."
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
        "agent_version",
        "enrolled_at",
    )
    list_filter = ("lease__liveness",)
    search_fields = ("host_name", "=uuid")
    search_help_text = "Name of a host, or whole id of its agent"
    page_columns = (
        host,
        "uuid",
        "agent_version",
        liveness,
        column("lease__liveness_since", "since"),
        heard,
        column("lease__expires_at", "end of the lease"),
        column("lease__run_id", "run"),
        column("lease__boot_id", "kernel's boot"),
        column("lease__uptime_seconds", "uptime of the host, s"),
        column("lease__outbox_depth", "results not delivered"),
        "fence_epoch",
        "enrolled_at",
        "generated_at",
        "reported_at",
        "report",
    )


def key_badge(row: HostKey) -> SafeString:
    """Show whether what a key signs is taken."""
    tones = {KeyState.ACTIVE: "ok", KeyState.RETIRING: "warn"}
    return badge(tones.get(KeyState(row.state), "idle"), row.get_state_display())


@admin.register(HostKey)
class HostKeyAdmin(SystemOwnedAdmin[HostKey]):
    """Keys of agents."""

    owner_note = (
        "Written when an agent enrols and rotates. ./run manage host_agent key revoke KID revokes "
        "a key."
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


@admin.register(EnrolmentToken)
class EnrolmentTokenAdmin(SystemOwnedAdmin[EnrolmentToken]):
    """Tokens that let agents enrol; only their digests are kept."""

    owner_note = (
        "./run manage host_agent token create --name 'node0*' --uses 40 --ttl 1h makes one, "
        "token revoke ID ends it."
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
