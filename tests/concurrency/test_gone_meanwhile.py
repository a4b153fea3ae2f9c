"""What an order is about is deleted between the look for it and its lock: nothing is done."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from types import ModuleType
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import QuerySet
from django.test import Client

from commitments.services import evicting
from hosts.agents import results, workloads
from hosts.agents.models import HostAgent
from hosts.agents.resource_models import HostResource
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.models import Eviction, Host
from hosts.services import host_orders
from journal.models import AuditEntry
from tests.api.liquid_client import ADMIN
from tests.concurrency.at_once import all_at_once, wait_for_a_blocked_session
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled, report, signed
from tests.hosts.agents.test_enrolment import code_of
from tests.hosts.agents.test_orders import _tokens, order, refusal  # noqa: F401 - a fixture
from tests.hosts.agents.test_results import tell
from tests.hosts.agents.workloads import enforcing, make_workload

pytestmark = pytest.mark.django_db(transaction=True)

#: Has another session delete rows just before a function of a module is called.
Deletes = Callable[[ModuleType, str, QuerySet[Any]], None]


@pytest.fixture
def deletes(monkeypatch: pytest.MonkeyPatch) -> Deletes:
    def prepare(module: ModuleType, name: str, rows: QuerySet[Any]) -> None:
        called = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            (deleted,) = all_at_once(lambda _: rows.all().delete(), count=1)
            assert deleted[0], "it was not there any more"
            return called(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    return prepare


def test_a_host_that_is_changed(deletes: Deletes) -> None:
    enforcing()
    deletes(host_orders, "set_mode", Host.objects.filter(name="h1"))
    body = {"agent_mode": "observe", "maintenance": "auto", "reason": "fans"}
    answer = Client(raise_request_exception=False).patch(
        "/api/v1/hosts/h1", json.dumps(body), "application/json", headers={"X-Auth-Token": ADMIN}
    )
    assert refusal(answer) == (404, "host_unknown")  # type: ignore[arg-type]  # the test client's own
    assert HostAgent.objects.get().mode == "enforce"
    changed = ["host_changed", "host_agent_mode_set"]
    assert not AuditEntry.objects.filter(action__in=changed).exists()


def test_a_host_that_is_evicted(deletes: Deletes, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host("h1", maintenance="manual")
    monkeypatch.setattr(evicting, "load_group_definitions", lambda **_: None)
    deletes(evicting, "open_eviction", Host.objects.filter(name="h1"))
    assert refusal(order("evict", {"reason": "fans"})) == (404, "host_unknown")
    assert not Eviction.objects.exists()
    assert not AuditEntry.objects.filter(action="host_evicted").exists()


def test_a_reservation_that_its_agent_tells_of(deletes: Deletes) -> None:
    identity, row = enforcing(), make_workload()
    deletes(results, "lock_agent", Workload.objects.filter(pk=row.pk))
    assert code_of(tell(identity, row)) == (404, "no_such_reservation")
    assert not WorkloadResult.objects.exists()


def test_a_reservation_that_an_operator_removes(deletes: Deletes) -> None:
    enforcing()
    row = make_workload()
    deletes(workloads, "delete_workloads", Workload.objects.filter(pk=row.pk))
    answer = order(f"reservations/{row.gwid}/decommission", {"reason": "broken"})
    assert refusal(answer) == (404, "unknown_reservation")


def test_a_host_that_its_agent_reports() -> None:
    make_host("h1")
    identity = enrolled("h1")
    answers: list[int] = []

    def tell_report() -> None:
        try:
            answers.append(signed(identity, report()).send().status_code)
        finally:
            connection.close()

    thread = threading.Thread(target=tell_report)
    with transaction.atomic():
        Host.objects.filter(name="h1").delete()
        thread.start()
        wait_for_a_blocked_session()
    thread.join()
    assert answers == [HTTPStatus.NO_CONTENT]
    assert HostAgent.objects.get().reported_at is not None
    assert not HostResource.objects.exists()
