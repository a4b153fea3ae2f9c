"""The sell page's number is the one that a change request gets: its dry run says so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from capacity.figures.group_capacity import ensure_fresh
from capacity.models import GroupCapacity
from core.text import gib_text
from journal.clock import database_now
from tests import factories
from tests.api.liquid_client import LiquidClient

pytestmark = pytest.mark.django_db
RAM = "hw_version_{}_ram"
GIB = 1 << 30
SLOT_UNITS = {"thin": 1, "wide": 16}
"""Of the smallest flavor: a planner holds whole slots, and less than one more is not refused."""


def is_accepted(liquid: LiquidClient, group: str, zone: str, units: int) -> bool:
    commitment = {
        "uuid": factories.make_uuid(), "oldStatus": None, "newStatus": "confirmed",
        "amount": units, "expiresAt": "2099-01-01T00:00:00Z",
    }  # fmt: skip
    changeset = {
        "totalConfirmedBefore": 0, "totalConfirmedAfter": units, "totalGuaranteedBefore": 0,
        "totalGuaranteedAfter": 0, "commitments": [commitment],
    }  # fmt: skip
    version = liquid.get_info()["version"]
    body = {
        "az": zone, "dryRun": True, "infoVersion": version,
        "byProject": {"alpha": {"byResource": {RAM.format(group): changeset}}},
    }  # fmt: skip
    answer = liquid.send("POST", liquid.change, body)
    assert answer.status_code == 200, answer.content
    return not answer.json().get("rejectionReason")


@pytest.fixture
def groups(liquid: LiquidClient) -> list[GroupCapacity]:
    """Two groups that share hosts, of which some are closed, full, short of vCPUs or shredded."""
    factories.make_group("wide", flavors=[("w16", 16 << 10, 4), ("w48", 48 << 10, 12)])
    factories.make_group("thin", flavors=[("t8", 8 << 10, 8)], ram_unit_gib=8)
    for number, (memory_gib, vcpus, taken_gib) in enumerate(
        [(64, 32, 0), (70, 32, 3), (64, 6, 0), (40, 64, 30), (200, 64, 20), (64, 32, 64)]
    ):
        host = factories.make_host(f"h{number}", memory_gib=memory_gib, vcpus=vcpus)
        if taken_gib:
            factories.make_vm(host=host, memory_gib=taken_gib, vcpus=1)
    factories.make_host("closed", memory_gib=64, status="disabled")
    factories.make_host("elsewhere", zone="az-b", memory_gib=64)
    ensure_fresh(["az-a", "az-b"])
    return list(GroupCapacity.objects.all())


def test_what_is_sellable_is_what_a_dry_run_accepts(
    groups: list[GroupCapacity], liquid: LiquidClient, admin_client: Client
) -> None:
    lines = {
        (line.group, line.zone): line
        for line in admin_client.get(reverse("headroom_sell")).context["page"].lines
    }
    assert len(lines) == len(groups) == 4
    for row in groups:
        room = admin_client.get(reverse("headroom_sell_group", args=[row.pk])).context["page"].room
        unit_gib = 8 if row.group_name == "thin" else 1
        units = room.sellable_bytes // GIB // unit_gib

        assert units > 0
        assert is_accepted(liquid, row.group_name, row.zone, units)
        assert not is_accepted(liquid, row.group_name, row.zone, units + SLOT_UNITS[row.group_name])
        assert lines[row.group_name, row.zone].sellable == gib_text(room.sellable_bytes)


def test_all_free_memory_is_sellable_or_has_one_reason_why_not(
    groups: list[GroupCapacity], admin_client: Client
) -> None:
    for row in groups:
        room = admin_client.get(reverse("headroom_sell_group", args=[row.pk])).context["page"].room
        lost = [limit.lost for limit in room.limits]
        named = [host.name for limit in room.limits for host in limit.hosts]
        assert room.lost == f"{sum(int(one.split()[0]) for one in lost)} GiB"
        assert len(named) == len(set(named))
        assert ("closed" in named) == (row.zone == "az-a")
        assert "elsewhere" not in named or row.zone == "az-b"


def test_what_if_answers_as_the_planner_does(
    groups: list[GroupCapacity], admin_client: Client
) -> None:
    row = next(one for one in groups if (one.group_name, one.zone) == ("wide", "az-b"))
    url = reverse("headroom_sell_group", args=[row.pk])

    def asked(**query: Any) -> Any:
        page = admin_client.get(url, query).context["page"]
        assert page.answer_problem == ""
        return page.answer

    assert page_title(asked(amount_gib=64)) == "64 GiB would be accepted"
    assert page_title(asked(amount_gib=65)) == "65 GiB would be refused"
    more = asked(amount_gib=160, hosts=2, like="elsewhere", others_gib=32)
    assert page_title(more) == "160 GiB would be accepted"
    assert dict(more.facts)["left after it"] == "0 GiB"
    tomorrow = (database_now() + timedelta(days=1)).date().isoformat()
    assert page_title(asked(at=tomorrow, others_gib=16)) == "48 GiB would be sellable"
    assert page_title(asked(others_gib=16)) == "48 GiB would be sellable"


def page_title(answer: Any) -> str:
    title: str = answer.title
    return title


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"hosts": 2, "like": "nobody"}, "no host nobody"),
        ({"amount_gib": 1, "at": "2001-01-01"}, "must not be in the past"),
        ({"amount_gib": "x"}, "Enter a whole number"),
        ({"amount_gib": 10**30}, "less than or equal"),
        ({"at": "0001-01-01", "amount_gib": 1}, "must not be in the past"),
        ({"at": "9999-12-31", "amount_gib": 1}, "At the latest in 2200"),
        ({"hosts": 1, "like": " "}, "Name the host that the new ones are like"),
    ],
)
def test_a_wrong_question_is_answered_with_words(
    groups: list[GroupCapacity], admin_client: Client, query: dict[str, Any], words: str
) -> None:
    answer = admin_client.get(reverse("headroom_sell_group", args=[groups[0].pk]), query)

    assert answer.status_code == 200
    assert words in answer.content.decode()


def test_the_pages_take_few_statements_however_many_rows(
    groups: list[GroupCapacity], admin_client: Client
) -> None:
    def counted(url: str) -> int:
        admin_client.get(url)
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(url).status_code == 200
        return len(captured)

    urls = [reverse("headroom_sell"), reverse("headroom_sell_group", args=[groups[0].pk])]
    before = [counted(url) for url in urls]
    factories.make_hosts(5, prefix="more")
    for number in range(3):
        factories.make_group(f"more_{number}", flavors=[(f"m{number}", 4096, 1)])
    ensure_fresh(["az-a", "az-b"])
    assert [counted(url) for url in urls] == before
    assert max(before) <= 30


def test_a_group_that_is_gone_has_a_page_that_says_so(admin_client: Client) -> None:
    row = factories.make_group_capacity("gone")

    page = admin_client.get(reverse("headroom_sell_group", args=[row.pk])).content.decode()

    assert "Nothing is sold of this group" in page
    assert admin_client.get(reverse("headroom_sell_group", args=[row.pk + 99])).status_code == 404
