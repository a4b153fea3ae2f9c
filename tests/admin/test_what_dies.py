"""The drill on demand, compared with the simulation of the domain and with rows."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from failover.domain.drill import simulate
from failover.drill_models import FailureDrill
from failover.models import FailoverPolicy, FailoverReservation
from failover.selectors.drills import drill_state
from hosts.models import Aggregate, Host, Instance
from journal.heavy import TooManyComputations
from tests import factories
from tests.admin.conftest import grow_region
from tests.admin.test_pages import count_queries

pytestmark = pytest.mark.django_db
URL = "headroom_drill"


def page_of(client: Client, **asked: str) -> Any:
    response = client.get(reverse(URL), asked)
    assert response.status_code == 200
    return response.context["page"]


def cover(vm: Instance, host: Host) -> None:
    held = factories.make_reservation(host)
    FailoverReservation.objects.create(reservation=held, name=f"slot-{held.pk}")
    factories.make_allocation(held, vm, state="expected")


@pytest.fixture
def racks() -> dict[str, Instance]:
    """Make rack r1 with two VMs that are saved, one whose slot is in it, and one without any."""
    FailoverPolicy.objects.create(flavor_pattern="small", required_count=1)
    a, b = (factories.make_host(name, building_block="r1", memory_gib=100) for name in "ab")
    other = factories.make_host("c", building_block="r2", memory_gib=100)
    factories.make_host("z", building_block="r1", zone="az-b")
    vms = {
        name: factories.make_vm(name, host)
        for name, host in (("kept", a), ("kept2", b), ("inside", a), ("bare", b), ("away", other))
    }
    factories.make_vm("free", b, flavor_name="tiny")
    for name, host in (("kept", other), ("kept2", other), ("inside", b), ("away", a)):
        cover(vms[name], host)
    return vms


def test_it_names_the_vms_of_a_rack_that_would_not_survive(
    admin_client: Client, racks: dict[str, Instance]
) -> None:
    page = page_of(admin_client, rack="r1", zone="az-a")
    answer = page.answer

    assert '<option value="r1" selected>r1</option>' in str(page.form["rack"])
    assert '<option value="r2">r2</option>' in str(page.form["rack"])
    state = drill_state(["az-a"], now=timezone.now())
    result = simulate(state, ["a", "b"])
    name_of = {vm.openstack_id: name for name, vm in racks.items()}
    assert [name for name, _ in answer.hosts] == ["a", "b"]
    assert {row.name for row in answer.lost} == {name_of[row.vm] for row in result.unprotected}
    assert {(row.name, row.host, row.why) for row in answer.lost} == {
        ("bare", "b", "without any slot outside what fails"),
        ("inside", "a", "all hosts of their slots fail with them"),
    }
    assert answer.title == "2 VMs of 5 would not survive"
    assert dict(answer.facts)["are owed none"] == "1"
    assert [(name, count) for name, _, count in answer.targets] == [("c", "2 VMs")]


@pytest.mark.usefixtures("racks")
def test_hosts_aggregates_and_zones_fail_together(admin_client: Client) -> None:
    Aggregate.objects.create(uuid="u", name="pair", host_names=["c", "z", "gone"])

    def failed(**asked: str) -> list[str]:
        return [name for name, _ in page_of(admin_client, **asked).answer.hosts]

    assert failed(hosts="a, c,") == ["a", "c"]
    assert failed(rack="r1") == ["a", "b", "z"]
    assert failed(aggregate="u") == ["c", "z"]
    assert failed(aggregate="u", rack="r2", zone="az-a") == ["c"]
    assert failed(zone="az-a") == ["a", "b", "c"]
    whole = page_of(admin_client, zone="az-a").answer
    assert {row.why for row in whole.lost} == {
        "without any slot outside what fails", "all of their zone fails, and their slots are in it"
    }  # fmt: skip
    kept = page_of(admin_client, hosts="c").answer
    assert kept.tone == "ok"


@pytest.mark.usefixtures("racks")
def test_what_is_wrong_is_said(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def errors(**asked: str) -> str:
        page = page_of(admin_client, **asked)
        assert page.answer is None
        return str(page.form.errors)

    assert "No such host: q" in errors(hosts="a,q")
    assert "No such host in az-b: a" in errors(hosts="a", zone="az-b")
    assert "No host is in all" in errors(rack="r2", zone="az-b")
    assert "Select a valid choice" in errors(rack="no such rack")
    assert page_of(admin_client).answer is None

    def full(*_: object) -> None:
        raise TooManyComputations("1 such computations are under way")

    monkeypatch.setattr("console.failover.what_dies.heavy_question", full)
    assert page_of(admin_client, rack="r1").problem.startswith("Not now: ")


@pytest.mark.usefixtures("region")
def test_it_takes_few_statements_however_many_rows(admin_client: Client) -> None:
    url = f"{reverse(URL)}?zone=az-a"
    before = count_queries(admin_client, url)
    grow_region(3)

    assert count_queries(admin_client, url) == before
    assert before <= 30


@pytest.mark.usefixtures("region")
def test_it_is_for_those_who_may_see_drills_hosts_and_vms() -> None:
    user = User.objects.create_user("looker", password="password", is_staff=True)
    client = Client()
    client.force_login(user)
    assert client.get(reverse(URL)).status_code == 403

    user.user_permissions.set(
        Permission.objects.filter(codename__in=["view_failuredrill", "view_host", "view_instance"])
    )
    client.force_login(User.objects.get(pk=user.pk))
    assert page_of(client, zone="az-a").answer is not None
    assert FailureDrill.objects.exists()
