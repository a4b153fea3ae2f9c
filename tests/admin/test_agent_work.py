"""What pages show of what agents make."""

from __future__ import annotations

import pytest
from django.test import Client

from capacity.agents.following import follow_slots
from capacity.models import LeavingRoom
from console.links import list_url, row_url
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.models import Host
from tests.factories import make_commitment, make_slot
from tests.hosts.agents.test_results import tell
from tests.hosts.agents.workloads import ANN, agent_named, enforcing


@pytest.mark.django_db(transaction=True)
def test_pages_say_what_agents_made_and_whether_it_is_signed(admin_client: Client) -> None:
    identity = enforcing("h1")
    commitment = make_commitment()
    for _ in range(2):
        make_slot(commitment, Host.objects.get())
    assert "its agent" not in admin_client.get(row_url(commitment)).content.decode()
    follow_slots(actor=ANN, request_id="r")
    first, second = Workload.objects.order_by("pk")
    tell(identity, first)
    tell(identity, second, state="error", error="no room <b>")

    page = admin_client.get(row_url(commitment)).content.decode()

    assert "made by agents: 1 of 2, 1 failed" in page
    assert "made by its agent" in page
    assert "its agent could not make it: no room &lt;b&gt;" in page
    work = admin_client.get(row_url(first)).content.decode()
    assert "slot 0" in work
    result = WorkloadResult.objects.get(workload=first)
    assert "verified" in admin_client.get(row_url(result)).content.decode()
    WorkloadResult.objects.update(document={**result.document, "error": "forged"})
    assert "does not hold" in admin_client.get(row_url(result)).content.decode()
    host = admin_client.get(row_url(Host.objects.get())).content.decode()
    assert f">{first.gwid}</a>" in host
    assert f">{second.gwid}</a>" in host
    assert ("does not hold" in host, "verified" in host) == (True, False)  # all are forged
    WorkloadResult.objects.filter(pk=result.pk).update(document=result.document)
    assert "verified" in admin_client.get(row_url(Host.objects.get())).content.decode()
    assert identity.kid in host
    assert ">enrolled</td>" in admin_client.get(list_url("hosts.host")).content.decode()
    assert first.gwid in admin_client.get(f"/admin/hosts/workload/?q={first.gwid}").content.decode()
    assert "reservations" in admin_client.get(row_url(agent_named())).content.decode()


@pytest.mark.django_db(transaction=True)
def test_pages_say_what_is_held_of_slots_that_left(admin_client: Client) -> None:
    enforcing("h1")
    commitment = make_commitment()
    make_slot(commitment, Host.objects.get(), memory_gib=2, vcpus=8)
    follow_slots(actor=ANN, request_id="r")
    work = Workload.objects.get()
    assert "held there until" not in admin_client.get(row_url(commitment)).content.decode()
    LeavingRoom.objects.create(
        workload=work,
        host=Host.objects.get(),
        memory_bytes=2 << 30,
        vcpus=8,
        gpus=1,
        network_bps=10 << 20,
        commitment_key=commitment.pk,
    )

    words = "2 GiB, 8 vCPUs, 1 GPU, 10 MiB/s of network held there until the agent of h1"
    for row, place in ((commitment, "h1</a>"), (Host.objects.get(), "this host")):
        page = admin_client.get(row_url(row)).content.decode()
        assert f"1 slot that left {place}"[:16] in page
        assert words in page
        assert place in page
        assert "/admin/hosts/workload/?q=h1&amp;state__exact=deleting" in page
