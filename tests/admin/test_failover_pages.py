from __future__ import annotations

import html
import re

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from capacity.models import ReservationAllocation
from capacity.nova.pipelines import ensure_shipped_pipelines
from console.charts import HeatHost, Segment, heat_level, heat_map, stacked_bar
from failover.drill_models import CoverageAccount, FailureDrill, ShadowPlan
from failover.models import FailoverDecision, FailoverReservation
from failover.services.coverage import account_coverage
from failover.services.drills import drill_zone
from hosts.models import Host, Instance
from tests.factories import make_domain, make_project, make_vm
from tests.failover.drill_rows import ZoneRows, make_zone

USERS = "capacity_reservationallocation"
S3 = "rA@3{a@1,b@2} rB@4{a@1} rC@5{b@2}"


def share(kind: str, vms: int) -> Segment:
    return Segment(kind=kind, amount_units=vms, text=f"{vms:,}", label=kind)


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


def test_racks_that_leave_vms_without_a_slot_come_first_then_by_number() -> None:
    racks = ["bb-1", "bb-10", "bb-2", "", "bb-3", "7"]
    picture = heat_map(
        [heat_host(f"h{at}", vms=1, unprotected=int(at == 4), rack=r) for at, r in enumerate(racks)]
    )

    shown = re.findall(r'hr-heat-rack"[^>]*>([^<]+)<', picture)
    assert shown == ["bb-3", "7", "bb-1", "bb-2", "bb-10", "no rack"]


def test_one_vm_among_very_many_is_seen_within_the_bar() -> None:
    picture = stacked_bar(
        [
            share("covered", 99_999),
            share("bare", 1),
        ],
        capacity_units=100_000,
        title="all",
    )

    (x, width) = re.findall(r'hr-cover-bare" x="(\d+)" y="\d+" width="(\d+)"', picture)[0]
    assert int(width) >= 10
    assert int(x) + int(width) <= 1000


def test_heat_map_of_no_host_is_a_picture_too() -> None:
    assert heat_map([]).startswith("<svg")


def test_parts_of_a_bar_are_told_apart_without_colour() -> None:
    picture = stacked_bar(
        [
            share("covered", 8),
            share("bare", 2),
            share("partly", 0),
        ],
        capacity_units=10,
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
        assert "of which 5 are proven harmless" in page

    def test_coverage_shows_classes_and_hosts(self, admin_client: Client) -> None:
        make_zone(S3, vms={"c": "6"})
        account_coverage(now=timezone.now())
        drill_zone("az-a", request_id="test", now=timezone.now())
        row = CoverageAccount.objects.get()
        FailoverDecision.objects.create(
            vm_uuid="c", zone="az-a", required_count=1, current_count=0, reason="no_room",
            since=timezone.now(),
        )  # fmt: skip

        page = admin_client.get(
            reverse("admin:failover_coverageaccount_change", args=[row.pk])
        ).content.decode()

        assert "<dt>no host has room</dt><dd>1</dd>" in page
        assert "small: have all their slots" not in page
        assert "have all their slots: 2" in page
        assert "have no slot: 1" in page
        assert "h6: 1 VMs go down, 1 of them without a slot" in page
        assert re.search(r"largest blast radius</dt><dd><a[^>]*>h\d: \d+ VMs</a>", page)
        assert "1 of 6" in page

    def test_coverage_by_flavor_is_what_was_accounted(self, admin_client: Client) -> None:
        make_zone(S3, vms={"c": "6"})
        account_coverage(now=timezone.now())
        make_vm("later", Host.objects.get(name="h6"))
        address = reverse(
            "admin:failover_coverageaccount_change", args=[CoverageAccount.objects.get().pk]
        )

        with CaptureQueriesContext(connection) as captured:
            page = admin_client.get(address).content.decode()

        assert "have no slot: 1" in page
        assert not [one for one in captured if "hosts_instance" in one["sql"]]

    def test_account_that_another_release_wrote_keeps_no_flavors(
        self, admin_client: Client
    ) -> None:
        row = CoverageAccount.objects.create(zone="az-a", accounted_at=timezone.now())
        response = admin_client.get(reverse("admin:failover_coverageaccount_change", args=[row.pk]))

        assert response.status_code == 200

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


@pytest.fixture
def zone() -> ZoneRows:
    return make_zone(S3, hosts=("6",))


def troubles_address() -> str:
    account_coverage(now=timezone.now())
    key = CoverageAccount.objects.get(zone="az-a").pk
    return reverse("admin:failover_coverageaccount_troubles", args=[key])


def page_text(client: Client) -> str:
    response = client.get(troubles_address())
    assert response.status_code == 200
    return html.unescape(response.content.decode())


@pytest.mark.django_db(transaction=True)
class TestTroubles:
    def test_sound_zone_has_none_and_coverage_links_to_the_page(
        self, admin_client: Client, zone: ZoneRows
    ) -> None:
        assert "Nothing is wrong" in page_text(admin_client)
        coverage = admin_client.get(
            reverse(
                "admin:failover_coverageaccount_change", args=[CoverageAccount.objects.get().pk]
            )
        )
        assert troubles_address() in coverage.content.decode()

    def test_vm_that_is_in_no_list_leaves_with_the_next_run(
        self, admin_client: Client, zone: ZoneRows
    ) -> None:
        Instance.objects.filter(openstack_id=zone.uuid("a")).delete()
        page = page_text(admin_client)
        assert "All rules hold; 2 things are out of date" in page
        assert page.count("the VM is in no list any more") == 2
        assert page.count("leaves with the next run") == 2

    def test_vm_that_only_its_host_knows_stays(self, admin_client: Client, zone: ZoneRows) -> None:
        uuid = zone.uuid("a")
        Instance.objects.filter(openstack_id=uuid).delete()
        Host.objects.filter(name="h1").update(
            reported_instances=[{"id": uuid, "name": "a", "active": True}]
        )
        page = page_text(admin_client)
        assert page.count("only its host reports the VM") == 2
        assert page.count("what a host still runs is not given up") == 2

    def test_brake_holds_what_would_leave(self, admin_client: Client, zone: ZoneRows) -> None:
        Instance.objects.all().delete()
        page = page_text(admin_client)
        assert "The brake is on" in page
        assert "held by the brake: vm_list_empty" in page
        assert "leaves with the next run" not in page

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"state": "down"}, id="host down"),
            pytest.param({"maintenance": "manual"}, id="under maintenance"),
        ],
    )
    def test_reservation_on_a_host_that_takes_no_vms_is_listed(
        self, admin_client: Client, zone: ZoneRows, fields: dict[str, str]
    ) -> None:
        Host.objects.filter(name="h3").update(**fields)
        page = page_text(admin_client)
        assert "rA" in page
        assert "its host takes no VMs now" in page

    def test_reservation_of_an_evacuation_stays(self, admin_client: Client, zone: ZoneRows) -> None:
        FailoverReservation.objects.filter(name="rA").update(state="consuming")
        page = page_text(admin_client)
        assert "an evacuation is planned into it" in page

    def test_broken_rule_is_named_with_who_leaves(
        self, admin_client: Client, zone: ZoneRows
    ) -> None:
        Instance.objects.filter(openstack_id=zone.uuid("b")).update(name="billing-database")
        with connection.cursor() as cursor:  # the database refuses it, so its guard is taken away
            cursor.execute(f"ALTER TABLE {USERS} DISABLE TRIGGER USER")
            ReservationAllocation.objects.filter(
                vm_uuid=zone.uuid("b"), reservation=zone.slots["rC"]
            ).update(reservation=zone.slots["rB"])
            cursor.execute(f"ALTER TABLE {USERS} ENABLE TRIGGER USER")
        page = page_text(admin_client)
        assert "2 VMs break a rule" in page
        assert "billing-database" in page
        assert "C5: it shares two reservations with the same VM" in page
        assert "it breaks a rule, and costs least to remove" in page

    def test_users_whose_hosts_left_the_zone_break_no_rule(self, admin_client: Client) -> None:
        make_zone("rA@3{a@1,b@2} rB@4{a@1,c@5}")
        Host.objects.filter(name__in=["h2", "h5"]).update(zone="az-b")
        page = page_text(admin_client)
        assert "All rules hold" in page
        assert page.count("the VM's host or the reservation's has left the zone") == 2
        assert page.count("leaves with the next run") == 2

    def test_all_vms_that_break_a_rule_are_counted(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch, zone: ZoneRows
    ) -> None:
        monkeypatch.setattr("failover.selectors.troubles.MOST_SHOWN", 1)
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {USERS} DISABLE TRIGGER USER")
            ReservationAllocation.objects.filter(
                vm_uuid=zone.uuid("b"), reservation=zone.slots["rC"]
            ).update(reservation=zone.slots["rB"])
            cursor.execute(f"ALTER TABLE {USERS} ENABLE TRIGGER USER")
        page = page_text(admin_client)
        assert "2 VMs break a rule" in page
        assert page.count("C5: it shares two reservations with the same VM") == 1

    def test_page_needs_the_right_to_see_coverage(self, client: Client, zone: ZoneRows) -> None:
        user = get_user_model().objects.create_user("staff", password="x", is_staff=True)
        client.force_login(user)
        assert client.get(troubles_address()).status_code == 403

    def test_zone_that_is_gone_is_not_found(self, admin_client: Client, zone: ZoneRows) -> None:
        address = troubles_address()
        CoverageAccount.objects.all().delete()
        assert admin_client.get(address).status_code == 404


@pytest.mark.django_db(transaction=True)
class TestActions:
    def chosen(self, admin_client: Client, page: str, action: str, key: int) -> str:
        response = admin_client.post(
            reverse(f"admin:failover_{page}_changelist"),
            {"action": action, ACTION_CHECKBOX_NAME: [key]},
            follow=True,
        )
        assert response.status_code == 200
        return html.unescape(response.content.decode())

    def waiting(self, vm_uuid: str) -> FailoverDecision:
        return FailoverDecision.objects.create(
            vm_uuid=vm_uuid,
            zone="az-a",
            required_count=1,
            current_count=0,
            reason="waiting",
            since=timezone.now(),
        )

    def test_uncovered_vm_is_planned_now(self, admin_client: Client) -> None:
        ensure_shipped_pipelines(request_id="test")
        make_domain()
        make_project()
        rows = make_zone("", vms={"a": "1"}, hosts=("2",), required=1)
        row = self.waiting(rows.uuid("a"))

        page = self.chosen(admin_client, "failoverdecision", "replan_now", row.pk)

        assert "a: has all its slots" in page
        assert rows.uuid("a") + ":" not in page
        assert not FailoverDecision.objects.exists()

    def test_vm_that_cannot_be_covered_says_why(self, admin_client: Client) -> None:
        rows = make_zone("", vms={"a": "1"}, required=1)
        row = self.waiting(rows.uuid("a"))

        page = self.chosen(admin_client, "failoverdecision", "replan_now", row.pk)

        assert "still lacks slots" in page
        row.refresh_from_db()
        assert row.reason != "waiting"

    def test_zone_is_rebalanced_by_the_worker(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started: list[tuple[str, int | None]] = []
        monkeypatch.setattr(
            "console.failover.coverage.start_rebalancing",
            lambda zone, steps: started.append((zone, steps)),
        )
        row = ShadowPlan.objects.create(
            zone="az-a",
            state="not_worth",
            computed_at=timezone.now(),
            reserved_memory_bytes=1,
            shadow_memory_bytes=1,
        )

        self.chosen(admin_client, "shadowplan", "start_now", row.pk)

        assert started == [("az-a", None)]
