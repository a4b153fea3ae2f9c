from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from capacity.models import Pipeline, Reservation, ReservationKind, SchedulingDecision
from config.environment import AccessToken
from journal.actors import Actor
from tests.api.conftest import Configure
from tests.api.liquid_client import ADMIN, VIEWER
from tests.api.scheduler_client import (
    DATA,
    SCHEDULER,
    NovaClient,
    assert_error,
    recorded_request,
)
from tests.factories import make_hosts

pytestmark = pytest.mark.django_db(transaction=True)
READ_ONLY = {
    "read_only": True,
    "skip_history": True,
    "skip_inflight": True,
    "skip_committed_resource_tracking": True,
}
TYPE = "capabilities:hypervisor_type"


@pytest.fixture
def nova(configure: Configure) -> NovaClient:
    configure(
        auth="token",
        tokens=(
            AccessToken(
                token=SecretStr(SCHEDULER), name="nova", roles=("cloud_resource_scheduler",)
            ),
            AccessToken(token=SecretStr(ADMIN), name="limes", roles=("cloud_resource_admin",)),
            AccessToken(token=SecretStr(VIEWER), name="viewer", roles=("cloud_resource_viewer",)),
        ),
    )
    return NovaClient()


def in_flight() -> list[str]:
    rows = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT)
    return sorted(rows.values_list("target_host__name", flat=True))


def test_the_recorded_request_of_nova_is_answered(nova: NovaClient) -> None:
    body = recorded_request()
    names = [entry["host"] for entry in body["hosts"]]
    for name in names:
        make_hosts(1, prefix=f"{name}-", memory_gib=256)
    from hosts.models import Host

    for host in Host.objects.all():
        Host.objects.filter(pk=host.pk).update(name=host.name.removesuffix("-1"))
    hosts = nova.hosts(body)
    assert len(hosts) == 3
    assert set(hosts) <= set(names)
    assert in_flight() == sorted(hosts)


def test_smoke(nova: NovaClient) -> None:
    make_hosts(3)
    assert sorted(nova.hosts()) == ["h1", "h2", "h3"]
    decision = SchedulingDecision.objects.get()
    assert decision.is_successful
    assert decision.request_id == "req-0221e2c2-ffd7-4894-b246-cbcfd1028568"
