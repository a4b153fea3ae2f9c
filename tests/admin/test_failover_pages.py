from __future__ import annotations

import re

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from failover.drill_models import CoverageAccount, FailureDrill
from failover.pictures import HeatHost, Share, heat_level, heat_map, share_bar
from failover.services.coverage import account_coverage
from failover.services.drills import drill_zone
from hosts.models import Host
from tests.failover.drill_rows import make_zone

S3 = "rA@3{a@1,b@2} rB@4{a@1} rC@5{b@2}"


def heat_host(name: str, *, vms: int, unprotected: int = 0, rack: str = "bb1") -> HeatHost:
    return HeatHost(
        name=name,
        rack=rack,
        vms=vms,
        unprotected_vms=unprotected,
        slots=0,
        slot_users=0,
        url=f"/{name}/",
    )


@pytest.mark.parametrize(
    ("touched", "most", "level"),
    [
        pytest.param(0, 100, 0, id="nothing"),
        pytest.param(1, 100, 1, id="least"),
        pytest.param(20, 100, 1, id="a fifth"),
        pytest.param(21, 100, 2, id="just above"),
        pytest.param(100, 100, 5, id="most"),
        pytest.param(1, 1, 1, id="the only one"),
        pytest.param(0, 0, 0, id="an empty region"),
    ],
)
def test_shade_of_a_host_follows_its_share_of_the_worst(
    touched: int, most: int, level: int
) -> None:
    assert heat_level(touched, most) == level


def test_heat_map_says_in_words_what_it_shows() -> None:
    picture = heat_map(
        [heat_host("h1", vms=7, unprotected=2), heat_host("h2", vms=3, rack="bb<2>")]
    )

    assert "h1: 7 VMs go down, 2 of them without a slot" in picture
    assert re.search(r">7!</text>", picture)
    assert "bb&lt;2&gt;" in picture
    assert 'href="/h2/"' in picture


def test_heat_map_of_no_host_is_a_picture_too() -> None:
    assert heat_map([]).startswith("<svg")


def test_parts_of_a_bar_are_told_apart_without_colour() -> None:
    picture = share_bar(
        [
            Share(kind="covered", vms=8, words="covered"),
            Share(kind="bare", vms=2, words="bare"),
            Share(kind="partly", vms=0, words="partly"),
        ],
        whole=10,
        title="all",
    )

    assert 'aria-label="all; covered: 8; bare: 2"' in picture
    assert len(set(re.findall(r' y="(\d+)"', picture))) == 2


@pytest.mark.django_db(transaction=True)
class TestPages:
    def test_drill_shows_failures_and_the_heat_map(self, admin_client: Client) -> None:
        rows = make_zone("r@3{a@1}", vms={"b": "2"}, racks={"2": "bb7"})
        drill_zone("az-a", request_id="test", now=timezone.now())
        row = FailureDrill.objects.get(scope="host")

        page = admin_client.get(
            reverse("admin:failover_failuredrill_change", args=[row.pk])
        ).content.decode()

        assert "1 of 2 VMs would have no slot to go to" in page
        assert "1 of 1 VMs without a slot" in page
        assert "without any slot" in page
        assert rows.uuid("b") in page
        assert "bb7" in page

    def test_drill_without_losses_says_so(self, admin_client: Client) -> None:
        make_zone(S3)
        drill_zone("az-a", request_id="test", now=timezone.now())
        row = FailureDrill.objects.get(scope="pair")

        page = admin_client.get(
            reverse("admin:failover_failuredrill_change", args=[row.pk])
        ).content.decode()

        assert "Every VM has a slot to go to" in page
        assert "the rules prove 5 harmless" in page

    def test_coverage_shows_classes_and_hosts(self, admin_client: Client) -> None:
        make_zone(S3, vms={"c": "6"})
        account_coverage(now=timezone.now())
        drill_zone("az-a", request_id="test", now=timezone.now())
        row = CoverageAccount.objects.get()

        page = admin_client.get(
            reverse("admin:failover_coverageaccount_change", args=[row.pk])
        ).content.decode()

        assert "small: have all their slots" not in page
        assert "have all their slots: 2" in page
        assert "have no slot: 1" in page
        assert "h6: 1 VMs go down, 1 of them without a slot" in page

    @pytest.mark.parametrize(
        ("names", "title"),
        [
            pytest.param(["h9"], "Safe to drain", id="an empty host"),
            pytest.param(["h1", "h9"], "Not safe to drain", id="the domain is not known"),
        ],
    )
    def test_action_on_hosts_answers_whether_they_may_be_drained(
        self, admin_client: Client, names: list[str], title: str
    ) -> None:
        make_zone("", vms={"a": "1"}, hosts=("9",))
        keys = list(Host.objects.filter(name__in=names).values_list("pk", flat=True))

        response = admin_client.post(
            reverse("admin:hosts_host_changelist"),
            {"action": "check_drain_action", ACTION_CHECKBOX_NAME: keys},
        )

        assert response.status_code == 200
        page = response.content.decode()
        assert title in page
        assert ("VMs fit nowhere else." in page) == (title == "Not safe to drain")

    def test_action_refuses_more_hosts_than_it_can_check(self, admin_client: Client) -> None:
        make_zone(hosts=[str(number) for number in range(201)])
        keys = list(Host.objects.values_list("pk", flat=True))

        response = admin_client.post(
            reverse("admin:hosts_host_changelist"),
            {"action": "check_drain_action", ACTION_CHECKBOX_NAME: keys},
            follow=True,
        )

        assert "1 to 200 names are needed, got 201" in response.content.decode()
