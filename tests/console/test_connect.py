"""``connect`` against recorded bodies over real HTTP, and against a real Keystone."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import openstack
import pytest
from django.core.management import CommandError, call_command

from capacity.models import FlavorGroup, FlavorGroupRule, FlavorGroupSettings
from failover.models import FailoverPolicy
from hosts.clients.listing import CloudUnreachable
from hosts.clients.registration import Registration, register
from hosts.models import Host, Instance
from journal.models import AuditEntry
from tests.hosts.mini_cloud import MiniCloud
from tests.hosts.served_cloud import served_cloud
from tests.peers.keystone import Keystone

pytestmark = pytest.mark.django_db(transaction=True)
URL = "https://headroom.example.com/commitments/"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniCloud]:
    fake = MiniCloud()
    with served_cloud(fake, tmp_path, monkeypatch):
        yield fake


def connect(*arguments: str) -> str:
    output = StringIO()
    call_command("connect", "mini", *arguments, stdout=output)
    return output.getvalue()


@pytest.mark.usefixtures("cloud")
def test_without_yes_nothing_is_written() -> None:
    printed = connect()
    assert "flavors g_* are of group g" in printed
    assert "VMs of flavors * have 2 reservations for failover" in printed
    assert "nothing was done (--yes does it)" in printed
    for model in (FlavorGroupRule, FlavorGroupSettings, FailoverPolicy, Host):
        assert not model._default_manager.exists()


@pytest.mark.usefixtures("cloud")
def test_with_yes_the_cloud_is_read_and_can_be_committed() -> None:
    printed = connect("--yes")
    assert (Host.objects.count(), Instance.objects.count()) == (18, 53)
    assert {"g", "gpu", "gpu_l40", "huge", "v2"} == set(
        FlavorGroup.objects.values_list("name", flat=True)
    )
    assert FlavorGroupSettings.objects.get(group_name="g").ram_handles_commitments
    assert FailoverPolicy.objects.get().required_count == 2
    assert "This is your cloud" in printed
    assert "az-a" in printed.partition("This is your cloud")[2]
    assert AuditEntry.objects.filter(actor="command:connect").exists()


@pytest.mark.usefixtures("cloud")
def test_a_second_time_nothing_is_left_to_decide() -> None:
    connect("--yes")
    assert "all is decided already" in connect("--yes", "--no-pass")


def test_a_cloud_that_cannot_be_read_stops_it(cloud: MiniCloud) -> None:
    cloud.refused = "/os-hypervisors/detail"
    with pytest.raises(CommandError, match="the cloud cannot be read as it is"):
        connect("--yes")
    assert not FlavorGroupRule.objects.exists()


def test_migrations_without_hosts_are_told_in_a_line(cloud: MiniCloud) -> None:
    hosts = dict.fromkeys(("source_compute", "source_node", "dest_compute", "dest_node"))
    cloud.region["compute"]["migrations"] = [{"uuid": "m", "status": "completed", **hosts}]
    output = StringIO()
    with pytest.raises(CommandError, match="the cloud cannot be read as it is"):
        call_command("connect", "mini", "--yes", stdout=output)
    (line,) = [one for one in output.getvalue().splitlines() if "os-migrations" in one]
    assert "os_compute_api:os-migrations:index:host" in line
    assert not FlavorGroupRule.objects.exists()


def test_an_unnamed_cloud_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OS_CLOUD", "OS_AUTH_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CommandError, match=r"name an entry of clouds\.yaml"):
        call_command("connect")


def test_registering_says_what_is_missing_then_makes_it_once(
    cloud: MiniCloud, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("a password\n")
    arguments = ("--register", "--liquid-url", URL, "--no-pass", "--limes-user", "nova")
    before = {kind: len(found) for kind, found in cloud.region["identity"].items()}
    printed = connect(*arguments)
    assert "missing: service headroom of type liquid-headroom" in printed
    assert f"missing: public endpoint {URL} in region RegionOne" in printed
    assert "missing: service headroom of type capacity" in printed
    root = "https://headroom.example.com"
    assert f"missing: internal endpoint {root} in region RegionOne" in printed
    assert before == {kind: len(found) for kind, found in cloud.region["identity"].items()}
    connect(*arguments, "--yes", "--password-file", str(password))
    assert "Keystone knows us" in connect(*arguments)
    types = {one["id"]: one["type"] for one in cloud.region["identity"]["services"]}
    ours = {
        (types[one["service_id"]], one["interface"]): one["url"]
        for one in cloud.region["identity"]["endpoints"]
        if "headroom" in one["url"]
    }
    assert ours == {
        (kind, interface): url
        for kind, url in (("liquid-headroom", URL), ("capacity", root))
        for interface in ("public", "internal")
    }
    other = "https://capacity.example.com"
    assert f"endpoint {other} in region" in connect(*arguments, "--capacity-url", other)


@pytest.fixture
def connection(keystone: Keystone) -> Any:
    person = keystone.person("registrar", "admin", project="admin")
    login = {
        "auth_url": keystone.url,
        "username": person.name,
        "password": person.password,
        "project_name": person.project_name,
        "user_domain_id": "default",
        "project_domain_id": "default",
    }
    return openstack.connect(
        load_yaml_config=False, load_envvars=False, auth=login, region_name="region-a"
    )


def wanted(**fields: Any) -> Registration:
    return Registration(
        **{
            "services": {"liquid-headroom": URL},
            "region": "region-a",
            "user": "capacity",
            "password": lambda: "a password of tests",
            "project": "admin",
            **fields,
        }
    )


def test_a_real_keystone_is_told_once(connection: Any) -> None:
    missing = register(connection, wanted(), is_dry=True)
    assert missing[0] == "service headroom of type liquid-headroom"
    assert register(connection, wanted(), is_dry=True) == missing
    assert register(connection, wanted(), is_dry=False) == missing
    assert register(connection, wanted(), is_dry=True) == []
    assert connection.identity.find_user("capacity") is not None
    elsewhere = "https://elsewhere/commitments/"
    moved = wanted(services={"liquid-headroom": elsewhere})
    assert register(connection, moved, is_dry=False) == [
        f"{kind} endpoint {elsewhere} in region region-a, in place of {URL}"
        for kind in ("public", "internal")
    ]
    assert register(connection, moved, is_dry=True) == []
    with pytest.raises(CloudUnreachable, match="nobody"):
        register(connection, wanted(limes_user="nobody"), is_dry=True)
