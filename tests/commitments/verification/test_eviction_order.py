"""An operator has the slots of a host go elsewhere (spec hosts, D.6)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from commitments.models import CommitmentEvent
from hosts.models import Eviction, Host
from journal.models import AuditEntry
from tests.api.liquid_client import ADMIN, VIEWER
from tests.commitments.slot_worlds import accepted_slot, put_into, vm_on
from tests.hosts.agents.test_orders import _tokens, refusal, told  # noqa: F401 - a fixture
from tests.ledger import assert_rooms_add_up

pytestmark = pytest.mark.django_db(transaction=True)


def evict(host: str = "host-1", *, token: str = ADMIN, reason: object = "fans") -> Any:
    return Client(raise_request_exception=False).post(
        f"/api/v1/hosts/{host}/evict",
        json.dumps({"reason": reason}),
        "application/json",
        headers={"X-Auth-Token": token},
    )


def test_empty_slots_go_and_what_has_vms_is_told(host_1: Host, host_new: Host) -> None:
    empty, used, vm = accepted_slot(host_1), accepted_slot(host_1), vm_on(host_1)
    put_into(used, vm.openstack_id, minutes=30, is_confirmed=True)
    Host.objects.filter(pk=host_1.pk).update(maintenance="manual")

    found = told(evict(), "EvictedHost", status=202)
    task = found.pop("task_id")

    assert found == {
        "host": "host-1", "slots_moved": 1, "slots_without_place": 0, "slots_with_vms": 1,
        "vms": 1, "vms_memory_bytes": vm.memory_bytes,
    }  # fmt: skip
    empty.refresh_from_db()
    used.refresh_from_db()
    assert (empty.target_host, used.target_host) == (host_new, host_1)
    assert_rooms_add_up()
    event = CommitmentEvent.objects.get(action="slot_evicted_from_host")
    assert event.reason.endswith("moved to host-new: host host-1 is evicted: fans")
    entry = AuditEntry.objects.get(action="host_evicted")
    assert (entry.reason, entry.request_id) == ("fans", task)
    open_one = Eviction.objects.get()
    assert (open_one.host, open_one.outstanding_vms) == (host_1, 1)
    assert open_one.outstanding[0]["uuid"] == vm.openstack_id
    again = told(evict(), "EvictedHost", status=202)
    assert again == found | {"slots_moved": 0, "task_id": again["task_id"]}


def test_a_slot_that_fits_nowhere_stays(host_1: Host) -> None:
    slot = accepted_slot(host_1)
    Host.objects.filter(pk=host_1.pk).update(maintenance="auto")
    found = told(evict(), "EvictedHost", status=202)
    assert (found["slots_moved"], found["slots_without_place"]) == (0, 1)
    slot.refresh_from_db()
    assert slot.target_host == host_1
    assert_rooms_add_up()


def test_a_host_in_service_keeps_its_slots(host_1: Host, host_new: Host) -> None:
    slot = accepted_slot(host_1)
    for maintenance in ("", "ha"):
        Host.objects.filter(pk=host_1.pk).update(maintenance=maintenance)
        assert refusal(evict()) == (409, "host_in_service")
    assert refusal(evict("h9")) == (404, "host_unknown")
    assert refusal(evict(reason=" ")) == (400, "invalid_input")
    assert refusal(evict(token=VIEWER))[0] == 403
    slot.refresh_from_db()
    assert slot.target_host == host_1
