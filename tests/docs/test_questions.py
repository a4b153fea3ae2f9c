"""Every address, request and command of ``docs/questions``, tried on a region with answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client
from django.utils.html import strip_tags

from capacity.models import GroupCapacity
from commitments.models import Commitment, RefusedChange
from failover.drill_models import CoverageAccount, FailureDrill
from hosts.models import FeedPass, Host, Instance, PlannedHostChange, Project
from journal.clock import database_now
from journal.models import AuditEntry
from tests import factories
from tests.admin.test_questions_by_clicks import make_region
from tests.api.liquid_client import VIEWER
from tests.capacity.decision_records import store_decision
from tests.console.api.conftest import _tokens  # noqa: F401 - fixture
from tests.console.test_openstack_plugin import installed  # noqa: F401 - fixture
from tests.docs.tour import ROOT

FOLDER = ROOT / "docs" / "questions"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
SECTIONS = [
    "Where to click",
    "What it shows",
    "What to do next",
    "Over REST",
    "On the command line",
]
ADDRESS = re.compile(r"(?:\*\*([^*]+)\*\* \()?`(/admin/[^`]*)`")
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:curl|openstack) (?:[^\n]|\\\n|\n(?= |\}))*", re.MULTILINE)
MARK = "@@@"


def section(page: Path, title: str) -> str:
    text = page.read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(page: Path) -> str:
    return "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))


@pytest.fixture
def answers(transactional_db: None) -> dict[str, str]:
    """Make a region in which each question has an answer; return what pages ask of it."""
    del transactional_db
    make_region()
    now = database_now()
    Host.objects.update(building_block="r1")
    commitment = Commitment.objects.get(project_id="thrifty")
    factories.make_event(commitment, after={})
    factories.make_capacity_history(group_name="hana_1", at=now)
    vm = Instance.objects.get(name="lost-vm")
    store_decision(vm_uuid=vm.openstack_id, is_successful=False)
    FeedPass.objects.create(kind="servers", passes=3, listed_at=now)
    CoverageAccount.objects.create(
        zone="az-a", accounted_at=now, owed_vms=1, uncovered_vms=1, owed_vm_seconds=9,
        uncovered_vm_seconds=9, bounded_at=now,
    )  # fmt: skip
    PlannedHostChange.objects.create(edit="drain", at=now, host=Host.objects.get(name="closed"))
    FailureDrill.objects.create(
        zone="az-a", scope="host", started_at=now, finished_at=now, cases=4, simulated=4, vms=1,
        unprotected_vms=1, worst=[], hosts=[],
    )  # fmt: skip
    return {
        "ZONE": "az-a", "GROUP": "hana_1", "PROJECT": "wasteful", "HOST": "h2", "RACK": "r1",
        "COMMITMENT": commitment.commitment_uuid, "VM": vm.openstack_id, "REQUEST": "req-changed",
    }  # fmt: skip


def test_every_page_has_the_same_parts_and_is_in_the_list() -> None:
    listed = re.findall(
        r"^\| (.+) \| \[\w+\]\((.+)\) \|$", (FOLDER / "README.md").read_text(), re.M
    )
    titles = [(path.read_text().partition("\n")[0].removeprefix("# "), path.name) for path in PAGES]
    assert sorted(listed) == sorted(titles)
    assert len(titles) == 10
    for page in PAGES:
        assert re.findall(r"^## (.+)$", page.read_text(), re.M) == SECTIONS
        steps = re.findall(r"^(\d)\. ", section(page, "Where to click"), re.M)
        assert steps == ["1", "2"]
        assert "curl -s " in section(page, "Over REST")
        assert "openstack capacity " in section(page, "On the command line")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_address_opens_and_is_where_the_page_says(
    page: Path, answers: dict[str, str], admin_client: Client
) -> None:
    rows = {
        "commitments/refusedchange/": RefusedChange.objects.get().pk,
        "commitments/commitment/": Commitment.objects.get(project_id="thrifty").pk,
        "journal/auditentry/": AuditEntry.objects.get(request_id="req-changed").pk,
        "sell/": GroupCapacity.objects.get(group_name="hana_1", zone="az-a").pk,
        "hosts/": Host.objects.get(name="h2").pk,
        "projects/": Project.objects.get(openstack_id="wasteful").pk,
    }
    seen = words_of(admin_client, "/admin/")
    found = ADDRESS.findall(page.read_text(encoding="utf-8"))
    assert found
    for label, written in found:
        before = written.removeprefix("/admin/").partition("ID/")[0]
        address = written.replace("UUID", answers["VM"]).replace("ID/", f"{rows.get(before, 0)}/")
        if label == "May it be drained, when, what moves where?":
            seen += words_of(admin_client, f"/admin/hosts/host/{rows['hosts/']}/change/")
        if label:
            assert label in seen, (label, "is not on the pages before")
        seen += words_of(admin_client, address.replace("=VM", f"={answers['VM']}"))


def words_of(client: Client, address: str) -> str:
    response = client.get(address, follow="/find/" in address)
    assert response.status_code == 200, address
    assert [str(message) for message in response.context["messages"]] == [], address
    if "cl" in response.context and "yesterday" not in address:
        assert response.context["cl"].result_count, f"{address}: no rows"
    return strip_tags(response.content.decode())


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed (Debian: curl)")
def test_every_request_and_command_is_answered_with_rows(
    answers: dict[str, str],
    live_server: Any,
    installed: Path,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    cloud = {"auth_type": "admin_token", "auth": {"endpoint": live_server.url, "token": VIEWER}}
    clouds = tmp_path / "clouds.yaml"
    clouds.write_text(yaml.safe_dump({"clouds": {"headroom": cloud}}), encoding="utf-8")
    program = tmp_path / "openstack"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m openstackclient.shell "$@"\n')
    program.chmod(0o755)
    environment = {
        **answers,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(installed),
        "OS_CLIENT_CONFIG_FILE": str(clouds),
        "OS_CLOUD": "headroom",
        "HEADROOM": live_server.url,
        "TOKEN": VIEWER,
    }
    wrong = [problem for page in PAGES for problem in problems(page, environment)]
    assert wrong == [], "\n\n".join(wrong)


def problems(page: Path, environment: dict[str, str]) -> list[str]:
    """Run the commands of a page in one shell; return those that fail or tell no row."""
    text = blocks(page)
    commands = [command.rstrip() for command in COMMAND.findall(text)]
    assert len(commands) == len(re.findall(r"^(?:curl|openstack) ", text, re.MULTILINE)) > 1
    done = subprocess.run(  # noqa: S603 - the pages of this checkout
        [str(shutil.which("bash")), "-c", COMMAND.sub(_marked, text)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    printed = done.stdout.split(MARK)[:-1]
    assert len(printed) == len(commands), (page.name, done.stderr)
    return [
        f"{page.name}: {command}\n{output}\n{done.stderr}"
        for command, output in zip(commands, printed, strict=True)
        if not _has_rows(command, output)
    ]


def _marked(found: re.Match[str]) -> str:
    """Return the command as a program wants it, with a mark behind what it prints."""
    command = found[0].rstrip().replace("curl -s ", "curl -sS --fail-with-body ")
    if command.startswith("openstack") and "focus export" not in command:
        command += " -f json"
    return f"{command}\necho '{MARK}'\n"


def _has_rows(command: str, output: str) -> bool:
    if "focus export" in command:
        return output.startswith("BilledCost") or "CapacityReservationId" in output
    try:
        told = json.loads(output)
    except ValueError:
        return False
    if isinstance(told, dict) and "code" in told:
        return False
    if isinstance(told, dict):
        lists = [told[name] for name in ("items", "drills", "decisions") if name in told]
        return all(lists)
    return bool(told)
