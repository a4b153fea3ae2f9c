"""An operator's questions, each answered in at most two clicks; numbers are compared with rows."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.urls import reverse
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from capacity.figures.group_capacity import ensure_fresh
from capacity.models import HostCapacity
from commitments.domain.statuses import CommitmentStatus
from commitments.models import Commitment, Condition, RefusedChange, SyncRun
from failover.domain.drill import simulate
from failover.models import FailoverDecision
from failover.selectors.drills import drill_state
from hosts.models import Instance
from journal.actors import Actor
from journal.clock import database_now
from journal.services import Change, record_changes
from tests import factories
from tests.admin.test_browser import browser, problems_of, pytestmark, sign_in, until

__all__ = ["browser", "pytestmark"]
GIB = 1 << 30
MAIN = "document.getElementById('main').innerText"


class Operator:
    """Someone who clicks; each question begins at the overview."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver, self.address = driver, address
        self.clicks = 0
        self.problems: list[str] = []

    def asks(self) -> None:
        self.driver.get(self.address + reverse("admin:index"))
        self.clicks = 0

    def click(self, words: str, *, within: str = "#main") -> None:
        """Follow the first link of these words; a third click of a question is one too many."""
        self.clicks += 1
        assert self.clicks <= 2
        found = [
            link
            for link in self.driver.find_elements(By.CSS_SELECTOR, f"{within} a")
            if words in (link.get_attribute("textContent") or "").split("\n")
            or words == (link.get_attribute("textContent") or "").strip()
        ]
        assert found, f"no link {words!r} on {self.driver.current_url}"
        self.driver.execute_script("window.isLeft = true; arguments[0].click()", found[0])
        until(self.driver, "window.isLeft === undefined && document.readyState === 'complete'")
        self.problems += problems_of(self.driver, self.driver.current_url)

    def menu(self, words: str) -> None:
        """Follow an entry of the sidebar."""
        self.clicks += 1
        entry = self.driver.execute_script(
            "return [...document.querySelectorAll('#nav-sidebar-apps a')]"
            ".find(one => one.textContent.trim().endsWith(arguments[0])).href",
            words,
        )
        self.driver.get(entry)
        self.problems += problems_of(self.driver, entry)

    def search(self, words: str, *, leads_to: str) -> None:
        """Press the key of the search, and ask for a whole id or name."""
        self.driver.find_element(By.TAG_NAME, "body").send_keys("t")
        until(self.driver, "document.activeElement.id === 'nav-filter'")
        self.driver.switch_to.active_element.send_keys(words, Keys.ENTER)
        ended = f"location.pathname.endsWith('{leads_to}') && document.readyState === 'complete'"
        until(self.driver, ended)
        self.problems += problems_of(self.driver, self.driver.current_url)

    def send(self, field: str) -> None:
        """Send the form of a field."""
        self.driver.execute_script("window.isLeft = true")
        self.driver.find_element(By.NAME, field).send_keys(Keys.ENTER)
        until(self.driver, "window.isLeft === undefined && document.readyState === 'complete'")
        self.problems += problems_of(self.driver, self.driver.current_url)

    @property
    def page(self) -> str:
        """What is read on the page."""
        return str(self.driver.execute_script(f"return {MAIN}"))

    def text(self, element_id: str) -> str:
        """What an element says."""
        return self.driver.find_element(By.ID, element_id).text


def make_region() -> None:
    """Make a region in which each question has one answer."""
    now = database_now()
    factories.make_group("hana_1", flavors=[("small", 4096, 1)])
    factories.make_domain()
    for name in ("thrifty", "wasteful"):
        factories.make_project(name, name=f"{name}-erp")
    hosts = [
        factories.make_host("h1", memory_gib=64),
        factories.make_host("h2", memory_gib=50, building_block="rack-2"),
        factories.make_host("h3", memory_gib=64, vcpus=3),
        factories.make_host("closed", memory_gib=64, status="disabled"),
    ]
    month = (now.replace(day=1) + timedelta(days=32)).replace(day=2)
    used = factories.make_commitment(
        project_id="thrifty", amount_gib=8, accepted_amount=8 * GIB, used_memory_bytes=8 * GIB,
        last_usage_reconcile_at=now,
    )  # fmt: skip
    idle = factories.make_commitment(
        project_id="wasteful", amount_gib=12, accepted_amount=12 * GIB, end_time=month,
        last_usage_reconcile_at=now,
    )  # fmt: skip
    factories.make_commitment(
        project_id="wasteful", state=CommitmentStatus.PENDING, is_accepted=False,
        ready_status=False, ready_reason=Condition.RESERVING,
        ready_message="largest free room: 2 GiB", status_summary="Reserving: largest free room",
    )  # fmt: skip
    for index in range(2):
        factories.make_vm(
            f"used-{index}", hosts[0], slot=factories.make_slot(used, hosts[0]),
            project_id="thrifty", memory_gib=4,
        )  # fmt: skip
    for _ in range(3):
        factories.make_slot(idle, hosts[0])
    lost = factories.make_vm("lost-vm", hosts[1], memory_gib=4)
    FailoverDecision.objects.create(
        vm_uuid=lost.openstack_id, zone="az-a", required_count=1, current_count=0,
        reason="no_room", since=now,
    )  # fmt: skip
    RefusedChange.objects.create(
        request_id="req-refused", actor="limes", zone="az-a", reason="no room",
        asked=[{"commitment": "c-1", "project": "wasteful", "resource": "hw_version_hana_1_ram",
                "old_status": None, "new_status": "confirmed", "amount_units": 999}],
        refused=[{"commitment": "c-1", "message": "no room", "advice": "fits now: 90 units"}],
    )  # fmt: skip
    SyncRun.objects.create(
        started_at=now, finished_at=now, source="limes", outcome="done", counts={"skipped": 8}
    )
    change = Change(
        action="commitment_accepted", object_type="Commitment", object_id=used.commitment_uuid,
        before={"amount": 4}, after={"amount": 8}, topic="commitment",
    )  # fmt: skip
    with transaction.atomic():
        record_changes([change], actor=Actor(name="limes"), request_id="req-changed")
    ensure_fresh(["az-a"])


def free_slots() -> dict[str, int]:
    """Return how many smallest slots each host has room for, counted one by one from the rows."""
    counted: dict[str, int] = defaultdict(int)
    for room in HostCapacity.objects.select_related("host"):
        if room.host.status != "enabled":
            continue
        memory = room.effective_memory_bytes - room.allocated_memory_bytes
        memory -= room.committed_memory_bytes + room.failover_memory_bytes
        vcpus = room.effective_vcpus - room.allocated_vcpus - room.committed_vcpus
        vcpus -= room.failover_vcpus
        while memory >= 4 * GIB and vcpus >= 1:
            counted[room.host.name] += 1
            memory, vcpus = memory - 4 * GIB, vcpus - 1
    return counted


def check_commitments(operator: Operator) -> None:
    """Why refused; which wait and on what; which end next month; which are idle."""
    operator.asks()
    operator.menu("Refusals")
    assert "req-refused" in operator.page
    assert "limes" in operator.page

    operator.asks()
    assert "largest free room: 2 GiB" in operator.page
    operator.click("1 live commitment waiting")
    assert "Reserving: largest free room" in operator.page

    idle = Commitment.objects.get(project_id="wasteful", state=CommitmentStatus.CONFIRMED)
    for words in ("Ending next month", "Idle"):
        operator.asks()
        operator.menu("Commitments")
        operator.click(words)
        assert {idle.flavor_group_name, "wasteful-erp", "12"} <= {*operator.page.split()}
        assert "thrifty-erp" not in operator.page


def check_selling(operator: Operator) -> None:
    """How much can be sold, what limits it, the largest hole; and with more hosts and demand."""
    slots = free_slots()
    sellable_gib = 4 * sum(slots.values())
    largest = max(slots, key=lambda name: slots[name])

    operator.asks()
    operator.menu("Sell")
    operator.click(f"{sellable_gib:,} GiB")
    assert operator.text("hr-sellable") == f"{sellable_gib:,} GiB"
    assert f"Largest hole: {4 * slots[largest]} GiB on {largest}" in operator.page
    assert "closed" not in operator.page.split("Where there is room")[1].split("What limits it")[0]

    for name, words in (("others_gib", "16"), ("hosts", "2"), ("like", "h2")):
        field = operator.driver.find_element(By.NAME, name)
        field.clear()
        field.send_keys(words)
    field.send_keys(Keys.ENTER)
    until(operator.driver, "location.search.includes('others_gib=16')")
    until(operator.driver, "document.readyState === 'complete'")
    assert f"{sellable_gib - 16 + 2 * 48:,} GiB would be sellable" in operator.page


def check_projects(operator: Operator) -> None:
    """Which projects hold most and use least."""
    operator.asks()
    operator.menu("Projects")
    told = [operator.text(f"hr-{name}") for name in ("held", "used", "idle")]
    assert told == ["20 GiB", "8 GiB", "12 GiB"]
    assert operator.page.index("wasteful-erp") < operator.page.index("thrifty-erp")
    operator.click("wasteful-erp")
    assert "0 GiB of 12 GiB committed memory are used, 12 GiB (100 %) are idle" in operator.page


def check_losses(operator: Operator) -> None:
    """Which VMs would not survive, and why; what if a rack dies; may the host be drained."""
    operator.asks()
    operator.menu("Failover")
    operator.click("Decisions", within="body")
    assert "lost-vm" in operator.page
    assert "no host has room" in operator.page

    operator.asks()
    operator.menu("Failover")
    operator.click("What if this dies?", within="body")
    Select(operator.driver.find_element(By.NAME, "rack")).select_by_value("rack-2")
    operator.send("hosts")
    lost = simulate(drill_state(["az-a"], now=database_now()), ["h2"]).unprotected
    vms = Instance.objects.filter(host__building_block="rack-2").count()
    assert (len(lost), vms) == (1, 1)
    assert "1 VM of 1 would not survive" in operator.page

    operator.asks()
    operator.search("h2", leads_to="/change/")
    assert "1 VM of 1 would not survive" in operator.page
    operator.click("May it be drained, when, what moves where?")
    assert operator.driver.current_url.endswith("/drain/")
    assert "lost-vm" in operator.page


def check_record(operator: Operator) -> None:
    """What was skipped; what changed, by whom, before and after; everything about it."""
    operator.asks()
    operator.click("8 objects skipped by limes")
    assert "skipped" in operator.page
    operator.menu("System")
    assert "done, 8 skipped" in operator.page

    operator.asks()
    operator.menu("Changes")
    operator.click("The last hour")
    assert all(words in operator.page for words in ("limes", "amount: 4 → 8", "req-changed"))

    row = Commitment.objects.get(project_id="thrifty")
    operator.asks()
    operator.search(row.commitment_uuid, leads_to=f"/commitment/{row.pk}/change/")
    operator.click("Everything about it", within="body")
    assert "commitment_accepted" in operator.page


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("admin_user")
def test_each_question_is_answered_in_two_clicks(
    browser: webdriver.Chrome, live_server: Any
) -> None:
    make_region()
    sign_in(browser, live_server.url)
    operator = Operator(browser, live_server.url)
    for check in (check_commitments, check_selling, check_projects, check_losses, check_record):
        check(operator)

    assert operator.problems == []
