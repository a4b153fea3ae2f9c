"""What ends by itself: workloads past their end, tombstones and seen requests (spec D.13)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F

from hosts.agents.models import RequestNonce
from hosts.agents.pruning import TOMBSTONE, expire_workloads, prune_agents
from hosts.agents.workload_models import Workload, WorkloadResult
from journal.clock import database_now
from tests.hosts.agents.test_enrolment import code_of
from tests.hosts.agents.test_results import tell
from tests.hosts.agents.workloads import ANN, enforcing, get, make_workload, poll

pytestmark = pytest.mark.django_db


def test_what_is_past_its_end_is_removed_by_its_agent() -> None:
    identity = enforcing()
    now = database_now()
    over = make_workload(1, expires_at=now - timedelta(seconds=1))
    make_workload(2, expires_at=now + timedelta(hours=1))
    make_workload(3)
    assert expire_workloads(actor=ANN, request_id="r") == 1
    assert expire_workloads(actor=ANN, request_id="r") == 0
    (told,) = poll(identity, "from=3")["reservations"]
    assert (told["id"], told["to_delete"], told["seq"]) == (over.gwid, True, 4)


def test_old_tombstones_and_requests_are_forgotten() -> None:
    identity = enforcing()
    old, young = make_workload(1), make_workload(2)
    live = make_workload(3)
    for row in (old, young):
        tell(identity, row, state="deleted")
    tell(identity, live)
    Workload.objects.exclude(pk=young.pk).update(state_since=F("state_since") - TOMBSTONE)
    RequestNonce.objects.filter(pk__in=RequestNonce.objects.all()[:2]).update(
        seen_at=F("seen_at") - timedelta(hours=1)
    )

    assert prune_agents() == {"tombstones": 1, "nonces": 2}

    assert set(Workload.objects.values_list("pk", flat=True)) == {young.pk, live.pk}
    assert WorkloadResult.objects.count() == 2
    assert code_of(get(identity, f"reservations/{old.gwid}")) == (404, "no_such_reservation")
    assert code_of(get(identity, f"reservations/{young.gwid}")) == (410, "reservation_deleted")
