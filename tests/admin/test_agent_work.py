"""What pages show of what agents make."""

from __future__ import annotations

import pytest
from django.test import Client

from capacity.agents.following import follow_slots
from console.links import row_url
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
    assert first.gwid in admin_client.get(f"/admin/hosts/workload/?q={first.gwid}").content.decode()
    assert "reservations" in admin_client.get(row_url(agent_named())).content.decode()
