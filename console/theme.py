"""Settings of the admin theme: its look, and where the sidebar leads."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy


def may_view_label(request: HttpRequest, label: str) -> bool:
    """Return whether who is signed in may see rows of a model ``app.model``."""
    app, _, name = label.partition(".")
    return bool(request.user.has_perm(f"{app}.view_{name}"))


def _page(title: str, icon: str, model: str, page: str = "changelist") -> dict[str, Any]:
    """Return a sidebar entry for the list of a model, or another page about it."""
    label = model.replace("_", ".", 1)
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{model}_{page}"),
        "permission": lambda request: may_view_label(request, label),
    }


UNFOLD = {
    "SITE_TITLE": "Headroom",
    "SITE_HEADER": "Headroom",
    "SITE_SUBHEADER": "Capacity commitments",
    "SITE_SYMBOL": "stacked_bar_chart",
    "SITE_URL": None,
    "SHOW_BACK_BUTTON": True,
    "SHOW_HISTORY": False,  # the audit trail knows more
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "type": "image/svg+xml",
            "href": lambda _request: static("headroom/icon.svg"),
        }
    ],
    "STYLES": [lambda _request: static("headroom/admin.css")],
    "SCRIPTS": [lambda _request: static("headroom/page.js")],
    "DASHBOARD_CALLBACK": "console.dashboard.dashboard_callback",
    "SIDEBAR": {
        "show_search": True,
        "navigation": [
            {
                "title": "Commitments",
                "items": [
                    {
                        "title": "Dashboard",
                        "icon": "dashboard",
                        "link": reverse_lazy("admin:index"),
                    },
                    _page("Commitments", "handshake", "commitments_commitment"),
                    _page("Events", "history", "commitments_commitmentevent"),
                    _page("Covered VMs over time", "timeline", "commitments_assignmentperiod"),
                    _page("Project quota", "speed", "capacity_projectquota"),
                ],
            },
            {
                "title": "Capacity",
                "items": [
                    _page("Flavor groups", "category", "capacity_flavorgroup"),
                    _page("Group settings", "tune", "capacity_flavorgroupsettings"),
                    _page("Group rules", "rule", "capacity_flavorgrouprule"),
                    _page("Group capacity", "donut_large", "capacity_groupcapacity"),
                    _page("Reservations", "bookmark", "capacity_reservation"),
                    _page("Pipelines", "account_tree", "capacity_pipeline"),
                    _page("Decisions", "filter_alt", "capacity_schedulingdecision"),
                    _page("Host capacity", "stacked_bar_chart", "capacity_hostcapacity"),
                ],
            },
            {
                "title": "Failover",
                "items": [
                    _page("Failover coverage", "health_and_safety", "failover_coverageaccount"),
                    _page("Failure drills", "emergency", "failover_failuredrill"),
                    _page("Evacuations", "move_up", "failover_evacuationplan"),
                    _page(
                        "Failover reservations", "bookmark_added", "failover_failoverreservation"
                    ),
                    _page("Failover decisions", "gpp_maybe", "failover_failoverdecision"),
                    _page("Failover runs", "autorenew", "failover_failoverrun"),
                    _page("Failover events", "event_note", "failover_failoverevent"),
                    _page("Failover policies", "policy", "failover_failoverpolicy"),
                    _page("Failover zones", "front_hand", "failover_failoverzone"),
                    _page("Shadow plans", "compare_arrows", "failover_shadowplan"),
                ],
            },
            {
                "title": "Placement",
                "items": [
                    _page("Providers", "lan", "placement_resourceprovider"),
                    _page(
                        "Candidate explorer",
                        "travel_explore",
                        "placement_resourceprovider",
                        "candidates",
                    ),
                    _page("Consumers", "inventory_2", "placement_consumer"),
                    _page("Traits", "label", "placement_trait"),
                    _page("Resource classes", "view_module", "placement_resourceclass"),
                    _page("Provider aggregates", "hub", "placement_aggregate"),
                ],
            },
            {
                "title": "Region",
                "items": [
                    _page("Hosts", "dns", "hosts_host"),
                    _page("VMs", "deployed_code", "hosts_instance"),
                    _page("Flavors", "straighten", "hosts_flavor"),
                    _page("Projects", "folder", "hosts_project"),
                    _page("Domains", "domain", "hosts_domain"),
                    _page("Aggregates", "workspaces", "hosts_aggregate"),
                    _page("Images", "album", "hosts_image"),
                    _page("Server groups", "group_work", "hosts_servergroup"),
                ],
            },
            {
                "title": "Audit",
                "items": [
                    _page("Audit entries", "receipt_long", "journal_auditentry"),
                    _page("Sync runs", "sync", "commitments_syncrun"),
                    _page("Slot checks", "fact_check", "commitments_slotcheck"),
                    _page("Compaction runs", "compress", "commitments_compactionrun"),
                    _page("Usage checks", "checklist", "commitments_usagecheck"),
                    _page("Doctor", "stethoscope", "journal_checkfinding"),
                    _page("Feed", "rss_feed", "hosts_feedpass"),
                    _page("Heartbeats", "monitor_heart", "journal_heartbeat"),
                    _page("Process clocks", "schedule", "journal_processclock"),
                    _page("Leases", "key", "journal_lease"),
                    _page("Beat entries", "schedule", "journal_beatentry"),
                    _page("Outbox", "outbox", "journal_outbox"),
                    _page("Mirror", "flip", "bridge_mirrorstate"),
                    _page("Consumers of logs", "step_over", "journal_logconsumer"),
                    _page("Users", "person", "auth_user"),
                ],
            },
        ],
    },
}
