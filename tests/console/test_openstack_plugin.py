"""``openstack capacity``: the real client, the installed plug-in, a served Headroom."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client as DjangoClient

from capacity.models import GroupCapacity
from commitments.models import RefusedChange
from config.launcher.places import this_checkout
from hosts.models import Host
from tests.api.conftest import configure, liquid  # noqa: F401 - fixtures
from tests.api.liquid_client import MEMBER, VIEWER
from tests.api.test_what_if import RAM
from tests.api.test_what_if import cloud as commitments_cloud  # noqa: F401 - fixture
from tests.console.api.conftest import _tokens, region  # noqa: F401 - fixtures
from tests.console.api.conftest import page as told
from tests.factories import make_hosts

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

SOURCE = this_checkout().root / "clients" / "osc"
Client = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the plug-in as its users do, but into a folder of its own."""
    place = tmp_path_factory.mktemp("osc")
    shutil.copytree(SOURCE, place / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--target", str(place / "lib")]
    subprocess.run([*command, str(place / "source")], check=True, timeout=300)  # noqa: S603 - our own
    return place / "lib"


@pytest.fixture
def openstack(installed: Path, live_server: Any, tmp_path: Path) -> Client:
    """Run ``openstack`` with a token of Headroom's own."""

    def run(*words: str, token: str = VIEWER, url: str = live_server.url) -> Any:
        cloud = {"auth_type": "admin_token", "auth": {"endpoint": url, "token": token}}
        clouds = tmp_path / "clouds.yaml"
        clouds.write_text(yaml.safe_dump({"clouds": {"headroom": cloud}}), encoding="utf-8")
        return subprocess.run(  # noqa: S603 - a test's own words
            [sys.executable, "-m", "openstackclient.shell", "--os-cloud", "headroom", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "PYTHONPATH": str(installed),
                "OS_CLIENT_CONFIG_FILE": str(clouds),
            },
        )

    return run


def answered(done: subprocess.CompletedProcess[str], status: int = 0) -> Any:
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def test_every_command_is_registered_and_has_its_class(installed: Path) -> None:
    written = tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))
    (metadata,) = installed.glob("*.dist-info")
    found = PathDistribution(metadata).entry_points.select(group="openstack.capacity.v1")
    registered = written["project"]["entry-points"]["openstack.capacity.v1"]
    assert {point.name: point.value for point in found} == registered
    words = {point.name.replace("_", " ") for point in found}
    page = (SOURCE / "README.md").read_text(encoding="utf-8")
    assert all(f"openstack {name}" in page for name in words)


LISTS = [
    ("capacity show", "/api/v1/group-capacity"),
    ("capacity commitment list", "/api/v1/commitments"),
    ("capacity host list", "/api/v1/hosts"),
    ("capacity failover uncovered", "/api/v1/uncovered-vms"),
    ("capacity refusal list", "/api/v1/refusals"),
    ("capacity change list", "/api/v1/audit-entries?limit=1000"),
    ("capacity sync list", "/api/v1/sync-runs"),
    ("capacity vm list", "/api/v1/vms"),
]


@pytest.mark.usefixtures("region")
def test_lists_have_what_the_api_tells(openstack: Client) -> None:
    for words, path in LISTS:
        rows = answered(openstack(*words.split(), "-f", "json"))
        items = told(path)["items"]
        assert len(rows) == len(items) > 0
        for row, item in zip(rows, items, strict=True):
            flat = {**item, **{f"room_{k}": v for k, v in (item.get("room") or {}).items()}}
            assert row == {name: flat[name] for name in row}
    assert GroupCapacity.objects.exists()
    assert RefusedChange.objects.exists()


@pytest.mark.usefixtures("region")
def test_one_commitment_is_shown_and_explained(openstack: Client) -> None:
    uuid = told("/api/v1/commitments")["items"][0]["uuid"]
    shown = answered(openstack("capacity", "commitment", "show", uuid, "-f", "json"))
    assert shown == told(f"/api/v1/commitments/{uuid}")
    explained = answered(openstack("capacity", "commitment", "explain", uuid, "-f", "json"))
    assert explained == told(f"/api/v1/explanations/commitments/{uuid}")
    drills = answered(openstack("capacity", "failover", "drill", "-f", "json"))
    known = told("/api/v1/failover/drills")["drills"]
    assert [row["unprotected_vms"] for row in drills] == [one["unprotected_vms"] for one in known]


def test_list_is_filtered_cut_and_written_in_other_formats(openstack: Client) -> None:
    make_hosts(3)
    Host.objects.filter(name="h2").update(zone="elsewhere")
    one = answered(openstack("capacity", "host", "list", "--zone", "elsewhere", "-f", "json"))
    assert [row["name"] for row in one] == ["h2"]
    cut = openstack("capacity", "host", "list", "--limit", "2", "-f", "csv", "-c", "name")
    assert [row["name"] for row in csv.DictReader(io.StringIO(cut.stdout))] == ["h1", "h2"]
    table = openstack("capacity", "host", "list")
    assert all(name in table.stdout for name in ("h1", "h2", "h3", "room_effective_memory_bytes"))


def test_list_of_many_pages_is_read_to_its_end(openstack: Client) -> None:
    make_hosts(1002)
    done = openstack("capacity", "host", "list", "-f", "value", "-c", "name")
    assert len(set(done.stdout.split())) == 1002


def test_answers_that_are_a_no_are_told_by_the_exit_status(
    openstack: Client,
    commitments_cloud: Any,  # noqa: F811 - the fixture
) -> None:
    what_if = ["capacity", "commitment", "what-if", "-f", "json", "--zone", "az-a"]
    what_if += ["--project", "alpha", "--resource", RAM, "--amount"]
    assert answered(openstack(*what_if, "5"))["accepted"] is True
    refused = answered(openstack(*what_if, "500"), 1)
    assert (refused["accepted"], len(refused["decisions"])) == (False, 1)
    assert answered(openstack(*what_if, "500", "--added", "h1=50"))["accepted"] is True
    wrong = openstack(*what_if, "5", "--added", "h1")
    assert (wrong.returncode, "as in node001=20" in wrong.stderr) == (2, True)
    checked = openstack("capacity", "host", "drain-check", "h1", "-f", "json")
    answer = answered(checked, checked.returncode)
    assert (answer["hosts"], checked.returncode) == (["h1"], 0 if answer["safe"] else 1)


def test_endpoint_that_is_named_goes_before_any_other(openstack: Client, live_server: Any) -> None:
    make_hosts(1)
    words = ["--capacity-endpoint", live_server.url, "capacity", "host", "list", "-f", "json"]
    rows = answered(openstack(*words, url="http://127.0.0.1:9"))
    assert [row["name"] for row in rows] == ["h1"]


def test_refusals_are_one_line_with_their_reason(openstack: Client) -> None:
    make_hosts(1)
    for words, options, line in (
        ("host list --state sleepy", {}, "state: must be one of up, down, unknown"),
        ("host list", {"token": "nobody-knows-this-one"}, "401, unauthenticated"),
        ("host list", {"token": MEMBER}, "403, forbidden"),
        ("commitment show of-nobody", {}, "404, not_found"),
        ("host drain-check of-nobody", {}, "unknown_host"),
        ("host list", {"url": "http://127.0.0.1:9"}, "127.0.0.1:9"),
    ):
        done = openstack("capacity", *words.split(), **options)
        assert done.returncode == 1
        assert line in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("region")
def test_a_month_is_written_as_the_file_that_the_api_tells(
    openstack: Client, tmp_path: Path
) -> None:
    words = ("capacity", "focus", "export", "--month", "2026-11")
    answer = DjangoClient().get(
        "/api/v1/commitments/focus?month=2026-11", headers={"X-Auth-Token": VIEWER}
    )
    expected = b"".join(answer).decode()
    assert "CapacityReservationId" in expected
    printed = openstack(*words)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert printed.stdout.splitlines() == expected.splitlines()
    file = tmp_path / "november.csv"
    assert openstack(*words, "--output", str(file)).returncode == 0
    assert file.read_bytes().decode() == expected

    refused = openstack(*words[:-1], "2026-13", "--output", str(tmp_path / "none.csv"))
    assert (refused.returncode, "400, invalid_input" in refused.stderr) == (1, True)
    nowhere = openstack(*words, "--output", str(tmp_path / "no" / "file"))
    assert (nowhere.returncode, "Traceback" in nowhere.stderr) == (1, False)
    assert sorted(one.name for one in tmp_path.glob("*.csv*")) == ["november.csv"]
