"""VMs leave hosts that are to become empty, as Nova is asked to (spec hosts, C.3, Eviction)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import transaction

from hosts.clients.cloud import OpenStackCloud
from hosts.clients.listing import CloudUnreachable, Refusal
from hosts.models import Eviction, Host, Maintenance
from hosts.services import leaving
from hosts.services.evictions import look_at_evictions, open_eviction, prune_evictions
from hosts.services.leaving import move_vms
from journal.actors import Actor
from journal.clock import database_now
from journal.models import AuditEntry
from tests.factories import make_host, make_vm
from tests.hosts.mini_cloud import MiniCloud
from tests.hosts.served_cloud import served_cloud

ANN = Actor(name="ann")
Json = Any


class Nova:
    """What Nova answers, and what it was told; a move takes as long as from one look to the next.

    Attributes:
        stays: Uuids of VMs that end where they were.
        refuses: Uuid, or ``service`` -> what is refused.
    """

    region_name = "r"

    def __init__(self, host: str, **vms: str) -> None:
        self.vms = {
            uuid: {"id": uuid, "status": status, "OS-EXT-SRV-ATTR:host": host}
            for uuid, status in vms.items()
        }
        self.services = [{"id": "s1", "host": host, "status": "enabled"}]
        self.told: list[tuple[str, str]] = []
        self.stays: set[str] = set()
        self.refuses: dict[str, Refusal] = {}
        self.is_away = False
        self.before_list: Callable[[], object] = lambda: None

    def has(self, service: str) -> bool:
        return service == "compute"

    def get(self, service: str, path: str) -> Json:
        assert service == "compute"
        if self.is_away:
            raise CloudUnreachable("compute: no answer")
        parts = urlsplit(path)
        query = {name: value for name, (value,) in parse_qs(parts.query).items()}
        if parts.path == "/os-services":
            return {"services": [one for one in self.services if one["host"] == query["host"]]}
        if parts.path == "/servers/detail":
            self.before_list()
            there = [vm for vm in self.vms.values() if vm["OS-EXT-SRV-ATTR:host"] == query["host"]]
            return {"servers": [dict(vm) for vm in there]}
        vm = self.vms.get(parts.path.rpartition("/")[2])
        if vm is None:
            return None
        told = {"server": dict(vm)}
        self._goes_on(vm)
        return told

    def change(self, service: str, method: str, path: str, body: Json) -> Refusal | None:
        assert service == "compute"
        kind, one = path.split("/")[1:3]
        if kind == "os-services":
            assert method == "PUT"
            if "service" in self.refuses:
                return self.refuses["service"]
            self.services[0] |= body
            self.told.append((one, body["status"]))
            return None
        assert method == "POST"
        (action,) = body
        self.told.append((one, action))
        if one in self.refuses:
            return self.refuses[one]
        vm = self.vms[one]
        if action == "confirmResize":
            vm["status"] = "SHUTOFF"
        else:
            vm["status"] = "MIGRATING" if action == "os-migrateLive" else "RESIZE"
        return None

    def ask(self, service: str, path: str, body: Json) -> Json:
        raise NotImplementedError

    def _goes_on(self, vm: dict[str, str]) -> None:
        """Let a move end, after it was seen under way."""
        if vm["status"] in {"MIGRATING", "RESIZE"}:
            was_live = vm["status"] == "MIGRATING"
            vm["status"] = "ACTIVE" if was_live else "VERIFY_RESIZE"
            if vm["id"] in self.stays:
                vm["status"] = "ACTIVE" if was_live else "SHUTOFF"
            else:
                vm["OS-EXT-SRV-ATTR:host"] = "elsewhere"


def order(name: str = "h1") -> Host:
    host = make_host(name, maintenance="manual", maintenance_reason="disks")
    with transaction.atomic():
        open_eviction(host, reason="new disks", actor=ANN)
    return host


def move(nova: Nova) -> dict[str, int]:
    return move_vms(nova, actor=ANN, request_id="r")


def looks(nova: Nova, count: int = 30) -> list[str]:
    return [stands for _ in range(count) for stands in move(nova)]


@pytest.mark.django_db
def test_a_host_becomes_empty_one_vm_after_the_other_and_serves_again() -> None:
    host = order()
    nova = Nova("h1", a="ACTIVE", b="SHUTOFF", broken="ERROR", c="ACTIVE", own="VERIFY_RESIZE")

    stands = looks(nova)

    assert nova.told == [
        ("s1", "disabled"),
        ("c", "os-migrateLive"),
        ("b", "migrate"),
        ("b", "confirmResize"),
        ("a", "os-migrateLive"),
    ]
    assert (stands[0], stands[-1]) == ("disabled", "waiting")
    assert nova.services[0]["disabled_reason"] == "manual: new disks"
    left = {uuid for uuid, vm in nova.vms.items() if vm["OS-EXT-SRV-ATTR:host"] == "h1"}
    assert left == {"broken", "own"}
    row = Eviction.objects.get()
    assert (row.moving_uuid, row.failed, row.trouble) == ("", {}, "")
    told = AuditEntry.objects.filter(action="vm_told_to_leave").values_list("object_id", flat=True)
    assert set(told) == {"a", "b", "c"}

    nova.told.clear()
    Eviction.objects.update(opened_at="2026-01-01T00:00Z")
    Host.objects.filter(pk=host.pk).update(maintenance=Maintenance.NONE)
    look_at_evictions(actor=ANN, request_id="r")
    Eviction.objects.update(closed_at="2026-01-01T00:00Z")
    assert prune_evictions() == 0  # its service is to be enabled
    assert looks(nova, 2) == ["in service"]
    assert nova.told == [("s1", "enabled")]
    assert prune_evictions() == 1


@pytest.mark.django_db
def test_a_service_that_was_disabled_before_stays_so_and_ha_is_left_alone() -> None:
    host = order()
    nova = Nova("h1")
    nova.services[0]["status"] = "disabled"
    assert looks(nova, 2) == ["waiting"] * 2
    for maintenance, stands in ((Maintenance.HA, "left to others"), ("", "in service")):
        Host.objects.filter(pk=host.pk).update(maintenance=maintenance)
        assert looks(nova, 1) == [stands]
    assert nova.told == []


@pytest.mark.django_db
def test_one_that_stays_or_is_refused_has_its_next_turn_later() -> None:
    order()
    nova = Nova("h1", a="ACTIVE", b="ACTIVE", c="ACTIVE")
    nova.stays, nova.refuses = {"c"}, {"b": Refusal(status=409, message="locked")}

    looks(nova)

    assert [told for told in nova.told if told[0] != "s1"] == [
        ("c", "os-migrateLive"), ("b", "os-migrateLive"), ("a", "os-migrateLive"),
    ]  # fmt: skip
    row = Eviction.objects.get()
    reasons = {uuid: facts["reason"] for uuid, facts in row.failed.items()}
    assert reasons == {"c": "it stayed", "b": "Nova refuses (409): locked"}

    make_vm("c", Host.objects.get(), status="ACTIVE")
    look_at_evictions(actor=ANN, request_id="r")
    (shown,) = Eviction.objects.get().outstanding
    assert shown.get("failed") == reasons.get(shown["uuid"])
    early = datetime.fromisoformat(row.failed["c"]["at"]) - timedelta(minutes=6)
    Eviction.objects.update(failed={"c": {"at": early.isoformat(), "reason": "it stayed"}})
    nova.stays.clear()
    nova.told.clear()
    nova.refuses["b"] = Refusal(status=409, message="locked")
    looks(nova, 4)
    assert nova.told[0] in {("c", "os-migrateLive"), ("b", "os-migrateLive")}
    looks(nova)
    assert "c" not in Eviction.objects.get().failed
    assert nova.vms["c"]["OS-EXT-SRV-ATTR:host"] == "elsewhere"


@pytest.mark.django_db
def test_who_died_before_nova_was_asked_has_the_vm_looked_at_again() -> None:
    order()
    nova = Nova("h1", a="ACTIVE", b="ACTIVE")
    looks(nova, 1)
    Eviction.objects.update(moving_uuid="b")
    looks(nova, 2)
    assert nova.told[1:] == [("a", "os-migrateLive")]
    Eviction.objects.update(moving_uuid="gone", failed={})
    looks(nova, 1)
    assert nova.told[2:] == [("b", "os-migrateLive")]  # which was not told before


@pytest.mark.django_db
def test_of_two_that_look_at_once_one_asks() -> None:
    order()
    nova = Nova("h1", a="ACTIVE")
    looks(nova, 1)
    nova.before_list = lambda: Eviction.objects.update(moving_uuid="a")
    assert looks(nova, 1) == ["waiting"]
    assert nova.told == [("s1", "disabled")]


@pytest.mark.django_db
def test_hosts_that_take_long_take_no_turn_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is time for two in a look, and the first one ends the third look."""
    for name in ("h1", "h2", "h3"):
        make_vm(host=order(name))
    Eviction.objects.filter(host__name="h1").update(
        closed_at=database_now(), end="cancelled", service_disabled=True
    )
    Host.objects.filter(name="h1").update(maintenance=Maintenance.NONE)
    asked: list[str] = []
    monkeypatch.setattr(leaving, "time", SimpleNamespace(monotonic=lambda: 20.0 * len(asked)))

    class SlowNova(Nova):
        def get(self, service: str, path: str) -> Json:
            asked.extend(parse_qs(urlsplit(path).query)["host"])
            if len(asked) == 5:
                raise KeyError("what nobody expected")
            raise CloudUnreachable("compute: no answer")

    for _ in range(2):
        assert move(SlowNova("h1")) == {"unreachable": 2}
        look_at_evictions(actor=ANN, request_id="r")
    with pytest.raises(KeyError):
        move(SlowNova("h1"))
    move(SlowNova("h1"))

    assert asked == ["h1", "h2", "h3", "h1", "h2", "h3", "h1"]


@pytest.mark.django_db
def test_why_nova_cannot_be_asked_is_kept_and_others_go_on() -> None:
    order()
    order("h2")
    nova = Nova("h2", a="ACTIVE")
    nova.refuses["service"] = Refusal(status=403, message="policy")
    assert move(nova) == {"waiting": 1, "unreachable": 1}  # Nova never had a service of h1
    trouble = Eviction.objects.get(host__name="h2").trouble
    assert "Nova refuses (403): policy" in trouble
    nova.is_away = True
    assert move(nova) == {"unreachable": 2}
    nova.is_away = False
    nova.refuses.clear()
    move(nova)
    assert set(Eviction.objects.values_list("trouble", flat=True)) == {""}


class AskedNova(MiniCloud):
    """Answers to what it is told to do."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[int, Json]] = []
        self.told: list[tuple[str, Json]] = []

    def change(self, target: str, body: Json) -> tuple[int, Json]:
        self.told.append((target, body))
        return self.answers.pop(0)


def test_what_is_told_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nova = AskedNova()
    nova.answers = [
        (202, None),
        (409, {"conflictingRequest": {"code": 409, "message": "Cannot 'migrate'\n while locked"}}),
        (403, b"not JSON \xff"),
        (503, {}),
    ]
    with served_cloud(nova, tmp_path, monkeypatch):
        cloud = OpenStackCloud("mini", timeout_seconds=30)

        def tell() -> Refusal | None:
            return cloud.change("compute", "POST", "/servers/a/action", {"migrate": None})

        assert tell() is None
        assert tell() == Refusal(status=409, message="Cannot 'migrate' while locked")
        refused = tell()
        assert refused is not None
        assert refused.message.startswith("not JSON")
        with pytest.raises(CloudUnreachable, match="status 503"):
            tell()
    assert nova.told == [("/compute/v2.1/servers/a/action", {"migrate": None})] * 4
