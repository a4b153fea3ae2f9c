"""Settings of the admin theme: its look, and where the sidebar and its tabs lead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse


def may_view_label(request: HttpRequest, label: str) -> bool:
    """Return whether who is signed in may see rows of a model ``app.model``."""
    app, _, name = label.partition(".")
    return bool(request.user.has_perm(f"{app}.view_{name}"))


@cache
def _address(model: str, page: str) -> str:
    return reverse(f"admin:{model.replace('.', '_')}_{page}")


@dataclass(frozen=True, slots=True)
class Tab:
    """A list that an entry of the sidebar leads to, or another page about a model.

    Attributes:
        model: Its label ``app.model``.
        page: Which page of the model; empty for one with a name of its own.
        url_name: That name.
        needs: Further models whose rows the page shows, by label.
    """

    title: str
    model: str
    page: str = "changelist"
    url_name: str = ""
    needs: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Address of the page."""
        if self.url_name:
            return reverse(self.url_name)
        return _address(self.model, self.page)

    def is_allowed(self, request: HttpRequest) -> bool:
        """Return whether who is signed in may see it."""
        return all(may_view_label(request, label) for label in (self.model, *self.needs))


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the sidebar: what operators do, with the lists that they need for it.

    It leads to the first of its tabs that may be seen.

    Attributes:
        pages: Names of addresses of pages that belong to it and are no tab.
    """

    title: str
    icon: str
    tabs: tuple[Tab, ...]
    pages: tuple[str, ...] = ()

    def is_open(self, request: HttpRequest) -> bool:
        """Return whether the page is one of its own."""
        match = request.resolver_match
        if match is not None and match.url_name in self.pages:
            return True
        return any(request.path.startswith(tab.url) for tab in self.tabs)

    def item(self, request: HttpRequest) -> dict[str, Any] | None:
        """Return the entry as the theme wants it; ``None`` for who may see none of its tabs."""
        first = next((tab for tab in self.tabs if tab.is_allowed(request)), None)
        if first is None:
            return None
        return _item(self.title, first.url, icon=self.icon, active=self.is_open(request))

    def tab_set(self, request: HttpRequest) -> dict[str, Any]:
        """Return the tabs that who is signed in may see, as the theme wants them."""
        return {
            "models": {tab.model for tab in self.tabs},
            "items": [
                _item(tab.title, tab.url, active=request.path == tab.url)
                for tab in self.tabs
                if tab.is_allowed(request)
            ],
        }


def _item(title: str, link: str, **more: Any) -> dict[str, Any]:
    return {"title": title, "link": link, "has_permission": True, **more}


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the sidebar of who is signed in, as the theme wants it."""
    index = reverse("admin:index")
    overview = _item("Overview", index, icon="dashboard", active=request.path == index)
    groups: list[dict[str, Any]] = [{"items": [overview]}]
    for title, entries in SECTIONS:
        items = [entry.item(request) for entry in entries]
        groups.append({"title": title, "items": [item for item in items if item]})
    return groups


def tab_sets(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the tabs of each entry that has several, as the theme wants them."""
    return [
        entry.tab_set(request)
        for _, entries in SECTIONS
        for entry in entries
        if len(entry.tabs) > 1
    ]


SECTIONS: tuple[tuple[str, tuple[Entry, ...]], ...] = (
    (
        "Sell",
        (
            Entry(
                "Sell",
                "donut_large",
                (
                    Tab("Sellable now", "capacity.groupcapacity", "", "headroom_sell"),
                    Tab("Per group and zone", "capacity.groupcapacity"),
                    Tab("Flavor groups", "capacity.flavorgroup"),
                    Tab("Flavors", "hosts.flavor"),
                    Tab("History", "capacity.capacityhistory"),
                    Tab("Last build", "capacity.flavorgroupsnapshot"),
                ),
            ),
            Entry(
                "Commitments",
                "handshake",
                (
                    Tab("Commitments", "commitments.commitment"),
                    Tab("Events", "commitments.commitmentevent"),
                    Tab("Covered VMs over time", "commitments.assignmentperiod"),
                    Tab("Accounts", "commitments.commitmentaccount"),
                    Tab("Used by hour", "commitments.commitmenthour"),
                    Tab("Observed hours", "commitments.observedhour"),
                    Tab("Prices", "commitments.groupprice"),
                    Tab("Service info", "commitments.serviceinfoversion"),
                ),
            ),
            Entry("Refusals", "block", (Tab("Refusals", "commitments.refusedchange"),)),
            Entry(
                "Projects",
                "folder",
                (
                    Tab(
                        "Held and idle",
                        "hosts.project",
                        "",
                        "headroom_projects",
                        ("commitments.commitment",),
                    ),
                    Tab("Projects", "hosts.project"),
                    Tab("Quota", "capacity.projectquota"),
                    Tab("Domains", "hosts.domain"),
                ),
            ),
        ),
    ),
    (
        "Run",
        (
            Entry(
                "Hosts",
                "dns",
                (
                    Tab("Hosts", "hosts.host"),
                    Tab("Map", "hosts.host", "", "headroom_map", ("capacity.hostcapacity",)),
                    Tab("Host capacity", "capacity.hostcapacity"),
                    Tab("History", "capacity.hosthistory"),
                    Tab("Planned changes", "hosts.plannedhostchange"),
                    Tab("Evictions", "hosts.eviction"),
                    Tab("In and out", "hosts.hostlifecycle"),
                    Tab("Overcommit rules", "hosts.overcommitrule"),
                    Tab("Aggregates", "hosts.aggregate"),
                    Tab("Region", "hosts.region"),
                    Tab("Agents", "hosts.hostagent"),
                    Tab("Agents' rollouts", "hosts.agentrollout"),
                    Tab("Agents' work", "hosts.workload"),
                    Tab("Agents' results", "hosts.workloadresult"),
                    Tab("Agents' keys", "hosts.hostkey"),
                    Tab("Enrolment tokens", "hosts.enrolmenttoken"),
                ),
                pages=("headroom_host_drain",),
            ),
            Entry(
                "VMs",
                "deployed_code",
                (
                    Tab("VMs", "hosts.instance"),
                    Tab("Migrations", "hosts.servermigration"),
                    Tab("Server groups", "hosts.servergroup"),
                    Tab("Images", "hosts.image"),
                ),
                pages=("headroom_vm",),
            ),
            Entry("Reservations", "bookmark", (Tab("Reservations", "capacity.reservation"),)),
            Entry(
                "Failover",
                "health_and_safety",
                (
                    Tab("Coverage", "failover.coverageaccount"),
                    Tab("Decisions", "failover.failoverdecision"),
                    Tab("Drills", "failover.failuredrill"),
                    Tab(
                        "What if this dies?",
                        "failover.failuredrill",
                        "",
                        "headroom_drill",
                        ("hosts.host", "hosts.instance"),
                    ),
                    Tab("Evacuations", "failover.evacuationplan"),
                    Tab("Moves", "failover.evacuationmove"),
                    Tab("Reservations", "failover.failoverreservation"),
                    Tab("Events", "failover.failoverevent"),
                    Tab("Shadow plans", "failover.shadowplan"),
                ),
            ),
            Entry(
                "Placement",
                "lan",
                (
                    Tab("Providers", "placement.resourceprovider"),
                    Tab("Candidate explorer", "placement.resourceprovider", "candidates"),
                    Tab("Consumers", "placement.consumer"),
                    Tab("Traits", "placement.trait"),
                    Tab("Resource classes", "placement.resourceclass"),
                    Tab("Aggregates", "placement.aggregate"),
                    Tab("Other answers", "placement.shadowdifference"),
                    Tab("Both sides", "placement.hybridreport"),
                    Tab("Checks", "placement.checkoutcome"),
                    Tab("Writes of both sides", "placement.splitwrite"),
                    Tab("Cut-over", "placement.resourceprovider", "cutover"),
                ),
            ),
        ),
    ),
    (
        "Explain",
        (
            Entry("Decisions", "filter_alt", (Tab("Decisions", "capacity.schedulingdecision"),)),
            Entry("Changes", "receipt_long", (Tab("Audit entries", "journal.auditentry"),)),
            Entry(
                "Runs",
                "sync",
                (
                    Tab("Syncs", "commitments.syncrun"),
                    Tab("Feed", "hosts.feedpass"),
                    Tab("Failover", "failover.failoverrun"),
                    Tab("Slot checks", "commitments.slotcheck"),
                    Tab("Compaction", "commitments.compactionrun"),
                    Tab("Usage", "commitments.usagecheck"),
                ),
            ),
        ),
    ),
    (
        "Keep",
        (
            Entry(
                "System",
                "stethoscope",
                (
                    Tab("All at a glance", "journal.checkfinding", "", "headroom_system"),
                    Tab("Doctor", "journal.checkfinding"),
                    Tab("Heartbeats", "journal.heartbeat"),
                    Tab("Clocks", "journal.processclock"),
                    Tab("Leases", "journal.lease"),
                    Tab("Beat", "journal.beatentry"),
                    Tab("Outbox", "journal.outbox"),
                    Tab("Log consumers", "journal.logconsumer"),
                    Tab("Mirror", "bridge.mirrorstate"),
                    Tab("Deliveries", "webhooks.delivery"),
                    Tab("Hypervisor fields", "bridge.ownedfieldconflict"),
                ),
            ),
            Entry(
                "Settings",
                "tune",
                (
                    Tab("Group settings", "capacity.flavorgroupsettings"),
                    Tab("Group rules", "capacity.flavorgrouprule"),
                    Tab("Pipelines", "capacity.pipeline"),
                    Tab("Failover policies", "failover.failoverpolicy"),
                    Tab("Failover zones", "failover.failoverzone"),
                    Tab("Webhooks", "webhooks.endpoint"),
                ),
            ),
            Entry("Accounts", "person", (Tab("Users", "auth.user"), Tab("Groups", "auth.group"))),
        ),
    ),
)
"""The sidebar: headings with their entries. Every registered model is in one tab."""


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
    "SIDEBAR": {"show_search": True},
}
