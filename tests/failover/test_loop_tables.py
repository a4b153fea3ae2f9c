"""Rows of the loop's tables against real rows (spec failover, 9.4, 9.6, 12.3-12.5, 14.1, 14.5)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.utils import timezone
from structlog.contextvars import bound_contextvars

from failover.choices import EventReason
from failover.domain.plan import BoolColumn, FloatColumn
from failover.domain.zone_columns import ZoneSnapshot
from failover.log import bound_logger, new_global_request_id
from failover.models import FailoverEvent, FailoverReservation, FailoverZone
from failover.services.validation import validate_zone
from hosts.models import Host, Instance
from journal.tracing import with_global_request_id
from tests.failover.zones import assert_sound, flavor, hosts, require, run, slots, state, vm

pytestmark = pytest.mark.django_db


class NoHosts:
    """A scheduler that finds no host for anybody: a run cleans up and adds nothing."""

    def __init__(self, snapshot: ZoneSnapshot) -> None:
        self._count = len(snapshot.hosts)

    def compatible(self, class_code: int) -> BoolColumn:
        del class_code
        return np.zeros(self._count, dtype=np.bool_)

    def scores(self, class_code: int, memory_bytes: int, vcpus: int) -> FloatColumn:
        del class_code, memory_bytes, vcpus
        return np.full(self._count, -np.inf)

    def place(self, host: int, class_code: int, memory_bytes: int, vcpus: int) -> None:
        raise AssertionError("nothing can be placed")


def report(active: str) -> None:
    """Let hosts report the VMs that run on them, from a text like ``vm-1@host1``."""
    listed: dict[str, list[dict[str, object]]] = {}
    for text in active.split():
        name, host = text.split("@")
        listed.setdefault(host, []).append({"id": name, "active": True})
    for host, vms in listed.items():
        Host.objects.filter(name=host).update(reported_instances=vms)


def confirm() -> None:
    """Let one run remove whatever it finds, so that the safeguard alone decides."""
    FailoverZone.objects.create(zone="az-a", confirmed_at=timezone.now(), confirmed_by="operator")


def users() -> dict[str, set[str]]:
    return {name: set(vms) for name, (_, vms) in state().items()}


@pytest.mark.parametrize(
    ("vms", "active", "before", "after", "counts"),
    [
        pytest.param(
            "vm-1@host1 vm-2@host2",
            "",
            "res-1@host3{vm-1@host1,vm-2@host2}",
            {"res-1": {"vm-1", "vm-2"}},
            (0, 0),
            id="R1",
        ),
        pytest.param(
            "vm-1@host1",
            "",
            "res-1@host3{vm-1@host1,vm-2@host2}",
            {"res-1": {"vm-1"}},
            (1, 0),
            id="R2",
        ),
        pytest.param(
            "vm-1@host1 vm-2@host4",
            "",
            "res-1@host3{vm-1@host1,vm-2@host2}",
            {"res-1": {"vm-1"}},
            (1, 0),
            id="R3",
        ),
        pytest.param(
            "vm-1@host1 vm-2@host2",
            "",
            "res-1@host3{vm-1@host1}, res-2@host4{vm-2@host2,vm-3@host3}",
            {"res-1": {"vm-1"}, "res-2": {"vm-2"}},
            (1, 0),
            id="R4",
        ),
        pytest.param("", "", "res-1@host3{vm-1@host1,vm-2@host2}", {}, (1, 1), id="R5"),
        pytest.param("vm-1@host1", "", "", {}, (0, 0), id="R6"),
        pytest.param("vm-1@host1", "", "res-1@host3{}", {}, (0, 1), id="R7"),
        pytest.param(
            "vm-1@host1 vm-2@host5 vm-4@host4",
            "",
            "res-1@host6{vm-1@host1,vm-2@host2}, res-2@host7{vm-3@host3,vm-4@host4}",
            {"res-1": {"vm-1"}, "res-2": {"vm-4"}},
            (2, 0),
            id="R8",
        ),
        pytest.param(
            "vm-1@host1",
            "vm-1@host1 vm-2@host2",
            "res-1@host3{vm-1@host1,vm-2@host2}",
            {"res-1": {"vm-1", "vm-2"}},
            (0, 0),
            id="R9",
        ),
        pytest.param(
            "",
            "vm-1@host1 vm-2@host2 vm-3@host3",
            "res-1@host4{vm-1@host1,vm-2@host2}, res-2@host5{vm-3@host3}",
            {"res-1": {"vm-1", "vm-2"}, "res-2": {"vm-3"}},
            (0, 0),
            id="R10",
        ),
        pytest.param(
            "vm-1@host1",
            "vm-1@host1 vm-2@host2",
            "res-1@host4{vm-1@host1,vm-2@host2,vm-3@host3}",
            {"res-1": {"vm-1", "vm-2"}},
            (1, 0),
            id="R11",
        ),
        pytest.param(
            "vm-1@host1 vm-2@host5",
            "vm-1@host1 vm-2@host5",
            "res-1@host3{vm-1@host1,vm-2@host2}",
            {"res-1": {"vm-1"}},
            (1, 0),
            id="R12",
        ),
    ],
)
def test_run_cleans_up_as_in_the_table(
    vms: str,
    active: str,
    before: str,
    after: dict[str, set[str]],
    counts: tuple[int, int],
) -> None:
    hosts(" ".join(f"host{number}" for number in range(1, 8)))
    for text in vms.split():
        vm(text)
    slots(before)
    report(active)
    require(any=1)
    confirm()
    result = run(chooser=NoHosts)
    assert users() == after
    figures = result.figures
    assert (figures.reservations_updated, figures.reservations_deleted) == counts
    changed = FailoverReservation.objects.filter(version__gt=1)
    assert changed.count() == counts[0] - (1 if counts == (1, 1) else 0)
    assert_sound()


def break_rules() -> None:
    """Let rows break the rules until the test ends, as if they came from elsewhere."""
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE capacity_reservationallocation "
            "DISABLE TRIGGER capacity_reservationallocation_failover_insert"
        )
        cursor.execute("DROP INDEX capacity_reservationallocation_vm_host_unique")


@pytest.mark.parametrize(
    ("before", "vms", "after"),
    [
        pytest.param(
            "res-1@host3{vm-1@host1,vm-2@host2}",
            "vm-1@host1 vm-2@host2",
            {"res-1": {"vm-1", "vm-2"}},
            id="K1",
        ),
        pytest.param("res-1@host3{vm-1@host1}", "vm-1@host3", {}, id="K2"),
        pytest.param(
            "res-1@host3{vm-1@host1}, res-2@host4{vm-2@host2}",
            "vm-1@host3 vm-2@host4",
            {},
            id="K3",
        ),
        pytest.param(
            "res-1@host3{va@host1,vb@host1}", "va@host1 vb@host1", {"res-1": {"va"}}, id="K5"
        ),
        pytest.param(
            "res-1@host3{va@host1,vb@host3}", "va@host1 vb@host3", {"res-1": {"va"}}, id="K6"
        ),
        pytest.param(
            "res-1@host3{v@host1}, res-2@host3{v@host1}", "v@host1", {"res-1": {"v"}}, id="K7"
        ),
        pytest.param(
            "res-1@host3{va@host1,vb@host2}, res-2@host4{va@host1,vb@host2}",
            "va@host1 vb@host2",
            {"res-1": {"va", "vb"}, "res-2": {"va"}},
            id="K8",
        ),
    ],
)
def test_run_removes_the_guilty_as_in_the_table(
    before: str, vms: str, after: dict[str, set[str]]
) -> None:
    break_rules()
    hosts("host1 host2 host3 host4")
    for text in vms.split():
        vm(text)
    slots(before)
    require(any=2)
    run(chooser=NoHosts)
    assert users() == after
    assert_sound()


def test_figures_of_a_run_are_those_of_the_summary() -> None:
    break_rules()
    hosts("host1 host2 host3 host4 host5 host6", vcpus=64, gib=64)
    vm("moved@host4")
    vm("first@host1")
    vm("second@host1")
    vm("small@host2", of=flavor("m1.small", vcpus=1, gib=1))
    # Loses one that moved by step 3 and one that breaks the rules by step 4: counts twice.
    slots("res-1@host3{moved@host2,first@host1,second@host1}, res-2@host5{gone@host6}")
    slots("res-3@host6{}")
    require(**{"m1.large": 1})
    result = run()
    figures = result.figures
    assert figures.total_vms == 4
    assert figures.vms_missing_failover == 2
    assert figures.vms_processed == 2
    assert figures.reservations_needed == 2
    assert figures.created + figures.reused == 2
    assert figures.failed == 0
    assert figures.reservations_updated == 3
    assert figures.reservations_deleted == 2
    assert figures.total_reservations == 1 + figures.created == len(state())
    assert_sound()


@pytest.mark.parametrize(
    ("name", "host", "target"),
    [
        pytest.param("vm-1", "host1", "host2", id="first row"),
        pytest.param("vm-2", "host3", "host4", id="second row"),
    ],
)
def test_new_reservation_has_the_size_and_place_of_the_table(
    name: str, host: str, target: str
) -> None:
    hosts(f"{host} {target}", zone="az1")
    vm(f"{name}@{host}")
    require(any=1)
    run("az1")
    held = FailoverReservation.objects.select_related("reservation__target_host").get()
    row = held.reservation
    assert held.name[:-5] == "failover-az1-"
    assert state()[held.name] == (target, {name: host})
    assert row.confirmed_host == row.target_host
    assert (row.memory_bytes, row.vcpus, row.flavor_group_name) == (8589934592, 4, "m1.large")
    assert (row.is_ready, row.ready_reason) == (True, "ReservationActive")


def draw_in_turn(monkeypatch: pytest.MonkeyPatch, suffixes: list[str]) -> None:
    left = iter(suffixes)
    monkeypatch.setattr(random, "choices", lambda *_, **__: list(next(left)))


def one_name_taken() -> None:
    """Make a zone whose one reservation is too small for the VM that lacks one."""
    hosts("host1 host2 host3", zone="az1")
    slots("failover-az1-bbbbb@host3{vm-2@host2}", vcpus=1, gib=1)
    vm("vm-1@host1")
    vm("vm-2@host2", of=flavor("small", vcpus=1, gib=1))
    require(any=1)


def test_name_that_is_taken_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one_name_taken()
    draw_in_turn(monkeypatch, ["bbbbb"] * 4 + ["ccccc"])
    run("az1")
    assert set(state()) == {"failover-az1-bbbbb", "failover-az1-ccccc"}


def test_name_that_stays_taken_is_given_up_after_five_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_name_taken()
    drawn: list[int] = []

    def always(*_: object, **__: object) -> list[str]:
        drawn.append(1)
        return list("bbbbb")

    monkeypatch.setattr(random, "choices", always)
    with pytest.raises(RuntimeError, match="no free names"):
        run("az1")
    assert len(drawn) == 5
    assert set(state()) == {"failover-az1-bbbbb"}


def told(reason: EventReason) -> list[dict[str, Any]]:
    fields = ("zone", "reservation_name", "host_name", "vm_uuid", "facts", "is_warning")
    return list(FailoverEvent.objects.filter(reason=reason).values(*fields))


def created() -> None:
    hosts("host1 host2")
    vm("vm-1@host1")
    require(any=1)
    run()


def joined() -> None:
    hosts("host1 host2 host3")
    slots("res@host3{vm-2@host2}")
    vm("vm-1@host1")
    vm("vm-2@host2")
    require(any=1)
    run()


def released() -> None:
    hosts("host1 host2 host3")
    vm("vm-1@host1")
    vm("vm-2@host1")
    slots("res@host3{vm-1@host1,vm-2@host2}")
    require(any=1)
    run(chooser=NoHosts)


def validated() -> None:
    joined()
    validate_zone("az-a", request_id="r")


def refused() -> None:
    hosts("host1 host2 host3")
    slots("res@host3{vm-1@host1}")
    vm("vm-1@host1")
    require(any=1)
    Host.objects.filter(name="host3").update(allowed_projects=["other"])
    validate_zone("az-a", request_id="r")


def kept() -> None:
    joined()
    report("vm-1@host1 vm-2@host2")
    Instance.objects.filter(openstack_id="vm-2").delete()
    run()


def lost() -> None:
    joined()
    Instance.objects.filter(openstack_id="vm-1").update(memory_bytes=64 << 30)
    run()


def restored() -> None:
    hosts("host1")
    vm("vm-1@host1")
    require(any=1)
    run()
    hosts("host2")
    run()


def halted() -> None:
    joined()
    Instance.objects.all().delete()
    run()


@pytest.mark.parametrize(
    ("happen", "reason", "expected"),
    [
        pytest.param(
            created,
            EventReason.SLOT_CREATED,
            {"host_name": "host2", "facts": {"vms": ["vm-1"]}, "is_warning": False},
            id="SlotCreated",
        ),
        pytest.param(
            joined,
            EventReason.SLOT_REUSED,
            {
                "reservation_name": "res",
                "host_name": "host3",
                "facts": {"vms": ["vm-1"]},
                "is_warning": False,
            },
            id="SlotReused",
        ),
        pytest.param(
            released,
            EventReason.SLOT_RELEASED,
            {
                "reservation_name": "res",
                "host_name": "host3",
                "vm_uuid": "vm-2",
                "facts": {"why": "moved"},
                "is_warning": False,
            },
            id="SlotReleased",
        ),
        pytest.param(
            validated,
            EventReason.VALIDATION_PASSED,
            {
                "reservation_name": "res",
                "host_name": "host3",
                "facts": {"users": 2},
                "is_warning": False,
            },
            id="ValidationPassed",
        ),
        pytest.param(
            refused,
            EventReason.VALIDATION_FAILED,
            {
                "reservation_name": "res",
                "host_name": "host3",
                "vm_uuid": "vm-1",
                "facts": {"filter": "filter_allowed_projects"},
                "is_warning": True,
            },
            id="ValidationFailed",
        ),
        pytest.param(
            kept,
            EventReason.SAFEGUARD_KEPT,
            {"facts": {"memberships": 1}, "is_warning": True},
            id="SafeguardKept",
        ),
        pytest.param(
            lost,
            EventReason.COVERAGE_LOST,
            {"vm_uuid": "vm-1", "is_warning": True},
            id="CoverageLost",
        ),
        pytest.param(
            restored,
            EventReason.COVERAGE_RESTORED,
            {"vm_uuid": "vm-1", "is_warning": False},
            id="CoverageRestored",
        ),
        pytest.param(
            halted,
            EventReason.REMOVAL_HALTED,
            {"is_warning": True},
            id="RemovalHalted",
        ),
    ],
)
def test_event_tells_what_happened(
    happen: Callable[[], None], reason: EventReason, expected: dict[str, Any]
) -> None:
    happen()
    (event,) = told(reason)
    assert {name: event[name] for name in expected} == expected
    assert event["zone"] == "az-a"


@pytest.mark.parametrize(
    ("greq", "req", "expected"),
    [
        pytest.param("", "", {"greq": "", "req": ""}, id="none bound"),
        pytest.param("failover-1", "", {"greq": "failover-1", "req": ""}, id="run alone"),
        pytest.param("failover-1", "vm-1", {"greq": "failover-1", "req": "vm-1"}, id="both"),
    ],
)
def test_log_lines_bear_the_ids_that_are_bound(
    greq: str, req: str, expected: dict[str, str]
) -> None:
    with with_global_request_id(greq), bound_contextvars(req=req):
        assert dict(bound_logger()._context) == expected


def test_every_run_has_an_id_of_its_own() -> None:
    ids = {new_global_request_id() for _ in range(10)}
    assert len(ids) == 10
    assert all(one.startswith("failover-") and len(one) == len("failover-") + 36 for one in ids)
