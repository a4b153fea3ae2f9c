from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from placement.models import Cutover, MirroredWrite, Origin, Phase
from tests.factories import make_host
from tests.placement.rows import make_provider

pytestmark = pytest.mark.django_db
PAGE = "/admin/placement/resourceprovider/cutover/"


def test_without_a_cutover_the_page_says_so(admin_client: Client) -> None:
    assert "No cut-over is on" in admin_client.get(PAGE).content.decode()


@pytest.mark.parametrize(
    ("phase", "told"),
    [
        (Phase.COPYING, "The other Placement answers, and is copied"),
        (Phase.SWITCHED, "Headroom answers, and is mirrored back"),
        (Phase.PARTED, "Each side answers for its own hosts"),
        (Phase.PARTING, "Hosts change sides"),
    ],
)
def test_the_page_says_who_answers(admin_client: Client, phase: Phase, told: str) -> None:
    Cutover.objects.create(phase=phase, began_at=timezone.now())
    assert told in admin_client.get(PAGE).content.decode()


def test_refused_writes_stand_first(admin_client: Client) -> None:
    Cutover.objects.create(phase=Phase.SWITCHED)
    MirroredWrite.objects.create(
        method="PUT", target="/allocations/x", minor=36, body=b"", refusal="409: <generation>"
    )
    page = admin_client.get(PAGE).content.decode()
    assert "1 write refused" in page
    assert "PUT /allocations/x: 409: &lt;generation&gt;" in page


def test_hosts_of_each_zone_are_counted_by_side(admin_client: Client) -> None:
    Cutover.objects.create(phase=Phase.PARTED)
    for number, origin in enumerate((Origin.API, Origin.UPSTREAM, Origin.UPSTREAM)):
        make_host(name=f"node-{number}", zone="az-parts")
        provider = make_provider(f"node-{number}")
        provider.origin = origin
        provider.save()
    page = " ".join(admin_client.get(PAGE).content.decode().split())
    row = '<td>az-parts</td><td class="hr-num">1</td><td class="hr-num">3</td>'
    assert row in page
