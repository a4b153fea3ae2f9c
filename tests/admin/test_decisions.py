from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from capacity.models import SchedulingDecision
from capacity.nova.decisions import KeptStep
from capacity.nova.stored_decisions import Fate, HostFate
from console.capacity.decision_page import decision_page, fate_sentence
from hosts.models import Host
from scheduling.intents import Intent
from tests import factories
from tests.admin.test_pages import count_queries
from tests.capacity.decision_records import (
    HOSTS,
    candidate,
    make_record,
    mask,
    store_decision,
)

pytestmark = pytest.mark.django_db

LIST = "admin:capacity_schedulingdecision_changelist"


def page_of(client: Client, row: SchedulingDecision, **query: str) -> str:
    url = reverse("admin:capacity_schedulingdecision_change", args=[row.pk])
    response = client.get(url, query)
    assert response.status_code == 200
    return response.content.decode()


def refused(**fields: Any) -> SchedulingDecision:
    return store_decision(
        **fields,
        steps=(
            KeptStep(step="filter_status", removed=mask("h1"), remaining=3),
            KeptStep(step="filter_capacity", removed=mask("h2", "h3", "h4"), remaining=0),
        ),
        top=(),
        hosts_out=0,
        target_host_name="",
        is_successful=False,
    )


def test_the_page_says_at_once_who_won_and_out_of_how_many(admin_client: Client) -> None:
    page = page_of(admin_client, store_decision())

    assert "h3 was chosen" in page
    assert "2 of 4 hosts passed every filter; the next best was h4." in page


def test_the_funnel_shows_every_filter_with_numbers_and_names(admin_client: Client) -> None:
    page = page_of(admin_client, store_decision())

    assert "status: 1 host removed, 3 left" in page
    assert "capacity: 1 host removed, 2 left" in page
    assert "quota: removed none" in page
    assert "passed over: no quota record" in page
    removed = re.search(r"1 host removed, 2 left.*?hr-names\">(.*?)</p>", page, re.DOTALL)
    assert removed is not None
    assert "<span>h2</span>" in removed.group(1)


def test_the_funnel_narrows_to_what_is_left(admin_client: Client) -> None:
    page = page_of(admin_client, store_decision())

    left = re.findall(r'hr-funnel-left" x="\d+" y="0" width="(\d+)"', page)
    assert left == ["1000", "750", "750", "500"]


def test_the_ranking_shows_what_each_weigher_gave_and_took(admin_client: Client) -> None:
    factories.make_host("h3")
    page = page_of(admin_client, store_decision())

    assert "kvm_binpack: +0.700" in page
    assert "kvm_prefer_smaller_hosts: -0.100" in page
    assert "weight given by the caller: +0.100" in page
    host_page = reverse("admin:hosts_host_change", args=[Host.objects.get(name="h3").pk])
    assert f'href="{host_page}">h3</a>' in page


def test_a_planned_evacuation_comes_first_and_says_why(admin_client: Client) -> None:
    row = store_decision()
    assert "evacuation was planned" not in page_of(admin_client, row)
    row.top_hosts[0]["score"] = row.top_hosts[1]["score"] - 1
    SchedulingDecision.objects.filter(pk=row.pk).update(
        top_hosts=row.top_hosts, intent=Intent.EVACUATE
    )

    page = page_of(admin_client, row)

    assert "the first is where its evacuation was planned, whatever it scores" in page


def test_a_refusal_names_the_filter_that_removed_the_last_host(admin_client: Client) -> None:
    page = page_of(admin_client, refused())

    assert "No host was chosen" in page
    assert "Of 4 hosts, the last were removed by capacity." in page
    assert "3 hosts removed, 0 left: the last" in page
    assert "How the hosts ranked" not in page


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("h1", "h1 was removed by status (filter_status)."),
        ("h3", "h3 was chosen."),
        ("h4", "h4 passed every filter and came 2nd with a score of 0.400."),
        ("h5", "h5 was known but not among the candidates of this request."),
        ("h9", "h9 was not known when this was decided."),
    ],
)
def test_a_host_can_be_asked_about(admin_client: Client, host: str, sentence: str) -> None:
    assert sentence in page_of(admin_client, store_decision(), host=host)


def test_the_question_is_a_form_of_its_own(admin_client: Client) -> None:
    page = page_of(admin_client, store_decision())

    before = page[: page.index('class="hr-ask"')]
    assert before.count("<form") - before.count("</form>") == 1, "the one that it opens itself"


@pytest.mark.parametrize(
    ("position", "words"), [(1, "1st"), (3, "3rd"), (11, "11th"), (22, "22nd"), (10, "10th")]
)
def test_places_are_written_as_people_do(position: int, words: str) -> None:
    fate = HostFate(host_name="h", fate=Fate.PASSED, position=position, score=0.5)

    assert f"came {words} with" in fate_sentence(fate, "x")


def test_a_host_below_those_that_are_kept_is_said_to_be_so() -> None:
    fate = HostFate(host_name="h", fate=Fate.PASSED)

    assert fate_sentence(fate, "x") == (
        "h passed every filter, but ranked behind x below the hosts whose scores are kept."
    )


def test_the_runs_of_the_vm_are_listed(admin_client: Client) -> None:
    first, second = refused(), store_decision()

    page = page_of(admin_client, second)

    assert reverse("admin:capacity_schedulingdecision_change", args=[first.pk]) in page
    assert page.count("this one") == 1


def test_a_decision_whose_masks_are_damaged_still_has_a_page(admin_client: Client) -> None:
    row = store_decision()
    SchedulingDecision.objects.update(masks=b"damaged")

    page = page_of(admin_client, row, host="h1")

    assert "The stored removals cannot be read" in page
    assert "status: 1 host removed, 3 left" in page


def test_a_run_that_failed_has_a_page(admin_client: Client) -> None:
    row = store_decision(
        host_names=(), candidates=None, steps=(), top=(), hosts_out=0,
        target_host_name="", is_successful=False, message="Pipeline run failed: x.",
    )  # fmt: skip

    page = page_of(admin_client, row)

    assert "There was no host to choose from." in page
    assert "Pipeline run failed: x." in page


def test_hosts_that_passed_but_could_not_be_held_are_told_apart() -> None:
    row = store_decision(target_host_name="", is_successful=False)

    assert "none could be held" in decision_page(row).sentence


def test_thousands_of_removed_hosts_are_counted_and_the_first_named(admin_client: Client) -> None:
    names = tuple(f"host-{number:04}" for number in range(3000))
    row = store_decision(
        host_names=names,
        candidates=None,
        steps=(KeptStep(step="filter_az", removed=mask(*names[1:], of=names), remaining=1),),
        top=(candidate("host-0000", a=1.0),),
        hosts_out=1,
    )

    page = page_of(admin_client, row)

    assert "2,999 hosts removed, 1 left" in page
    assert "<span>and 2799 more</span>" in page


class TestList:
    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ({"q": "h3"}, 1),
            ({"q": "project-1"}, 2),
            ({"q": "req-1"}, 2),
            ({"is_successful__exact": "0"}, 1),
            ({"about_host": "h2"}, 2),
            ({"about_host": "h5"}, 0),
            ({"intent": "create"}, 2),
            ({"intent": "evacuate"}, 0),
            ({"pipeline": "kvm"}, 2),
        ],
    )
    def test_it_is_searched_and_filtered(
        self, admin_client: Client, query: dict[str, str], found: int
    ) -> None:
        store_decision()
        refused()

        response: Any = admin_client.get(reverse(LIST), query)

        assert response.status_code == 200
        assert len(response.context["cl"].result_list) == found

    def test_it_names_the_filter_that_decided(self, admin_client: Client) -> None:
        refused()

        page = admin_client.get(reverse(LIST)).content.decode()

        assert "capacity (−3)" in page  # noqa: RUF001 - a minus
        assert "no host" in page

    def test_it_says_why_vms_of_each_group_were_refused(self, admin_client: Client) -> None:
        store_decision()
        assert "Why VMs found no host" not in admin_client.get(reverse(LIST)).content.decode()
        for _ in range(2):
            refused(outcome_class="slot_blocked")
        refused()
        refused(request=replace(make_record().request, flavor_group="", intent=Intent.RESIZE))
        refused(request=replace(make_record().request, intent=Intent.CAPACITY_PROBE))

        page = admin_client.get(reverse(LIST)).content.decode()
        rows = re.findall(r"<tr>\s*<td>(.*?)</td>\s*<td>(.*?)</td>\s*<td>(.*?)</td>", page)

        assert rows == [
            ("hana_1", "3", "slot ruled out by other filters (2), no active commitment (1)"),
            ("no group", "1", "no active commitment (1)"),
        ]
        assert "capacity (3)" in page

    def test_a_host_page_leads_to_the_decisions_that_considered_it(
        self, admin_client: Client
    ) -> None:
        host = factories.make_host("h2")

        page = admin_client.get(reverse("admin:hosts_host_change", args=[host.pk])).content.decode()

        assert f"{reverse(LIST)}?about_host=h2" in page


def test_a_page_costs_the_same_for_few_and_many_hosts(admin_client: Client) -> None:
    few = reverse("admin:capacity_schedulingdecision_change", args=[store_decision().pk])
    names = tuple(f"x{number}" for number in range(500))
    many = store_decision(vm_uuid="other", host_names=(*HOSTS, *names), candidates=None, steps=())

    before = count_queries(admin_client, few)

    url = reverse("admin:capacity_schedulingdecision_change", args=[many.pk])
    assert count_queries(admin_client, url) == before
