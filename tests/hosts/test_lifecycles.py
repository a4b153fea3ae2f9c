"""Hosts come into service and leave it, as Nova and Placement are asked to (spec hosts, C.3)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from config.sections import FeedSettings
from hosts import tasks
from hosts.clients.listing import CloudUnreachable, Refusal
from hosts.models import Host, HostLifecycle, Maintenance
from hosts.services.host_orders import HostSpeaksForItself, UnknownHost
from hosts.services.lifecycles import (
    KEPT,
    OnboardingOrder,
    OnboardingRefused,
    abort_onboarding,
    order_onboarding,
    prune_lifecycles,
    run_lifecycles,
)
from hosts.tasks import bring_in_and_out
from journal.actors import Actor
from journal.errors import InvalidInput
from journal.models import AuditEntry
from tests.factories import make_commitment, make_host, make_slot, make_vm
from tests.hosts.agents.agents import enrolled

ANN = Actor(name="ann")
Json = Any
ORDER = OnboardingOrder(aggregates=("az-a", "fast"), traits=("CUSTOM_A",))


class Died(BaseException):
    """The worker was killed."""


class Cloud:
    """Nova, Glance and Placement with one compute host.

    Attributes:
        told: Each change that was taken.
        dies_at: Number of the change before, or after, which the worker dies.
        never_boots: Whether consoles stay empty.
    """

    region_name = "r"

    def __init__(self, host: str = "h1", *, status: str = "disabled", state: str = "up") -> None:
        self.host = host
        self.services = [
            {"id": "s1", "host": host, "status": status, "state": state, "forced_down": False,
             "zone": "az-a", "updated_at": "2026-01-01T00:00:00.000000"},
        ]  # fmt: skip
        self.aggregates: list[Json] = [
            {"id": 1, "name": "az-a", "availability_zone": "az-a", "hosts": []},
            {"id": 2, "name": "fast", "availability_zone": None, "hosts": []},
            {"id": 3, "name": "tests", "availability_zone": None, "hosts": []},
        ]
        self.servers: dict[str, Json] = {}
        self.others = 0
        self.providers: dict[str, str | None] = {"p1": None, "p1-gpu": "p1"}
        self.traits = {"HW_X"}
        self.allocations: dict[str, set[str]] = {}
        self.told: list[str] = []
        self.refuses: dict[str, Refusal] = {}
        self.is_away = False
        self.never_boots = False
        self.dies_at: float = 0

    def has(self, service: str) -> bool:
        return True

    def get(self, service: str, path: str) -> Json:
        if self.is_away:
            raise CloudUnreachable("compute: no answer")
        parts = urlsplit(path)
        query = {name: value for name, (value,) in parse_qs(parts.query).items()}
        words = parts.path.strip("/").split("/")
        of = self._of_nova if service == "compute" else self._of_others
        return of(words, query)

    def _of_nova(self, words: list[str], query: dict[str, str]) -> Json:
        match words:
            case ["os-services"]:
                return {"services": [one for one in self.services if one["host"] == query["host"]]}
            case ["os-aggregates"]:
                return {"aggregates": self.aggregates}
            case ["servers"]:
                return {"servers": [{"id": str(number)} for number in range(self.others)]}
            case ["servers", "detail"]:
                return {"servers": [dict(one) for one in self.servers.values()]}
            case ["flavors"]:
                return {"flavors": [{"id": "f1", "name": "tiny"}]}
        assert words[0] == "flavors"  # by its id
        return None

    def _of_others(self, words: list[str], query: dict[str, str]) -> Json:
        match words:
            case ["images", *by_id]:
                return None if by_id else {"images": [{"id": "i1", "name": "cirros"}]}
            case ["resource_providers"]:
                above = self.providers.items()
                tree = [{"uuid": one, "parent_provider_uuid": over} for one, over in above]
                return {"resource_providers": tree}
            case ["resource_providers", uuid]:
                return {"uuid": uuid} if uuid in self.providers else None
            case ["resource_providers", _, "traits"]:
                return {"traits": sorted(self.traits), "resource_provider_generation": 4}
            case ["resource_providers", uuid, "allocations"]:
                held = [name for name, where in self.allocations.items() if uuid in where]
                return {"allocations": {name: {} for name in held}}
        _, consumer = words
        return {"allocations": {uuid: {} for uuid in self.allocations.get(consumer, ())}}

    def ask(self, service: str, path: str, body: Json) -> Json:
        uuid = path.split("/")[2]
        assert list(body) == ["os-getConsoleOutput"]
        name = "" if self.never_boots else self.servers[uuid]["name"]
        return {"output": f"booting\n{name} login:"}

    def change(self, service: str, method: str, path: str, body: Json) -> Refusal | None:
        words = path.strip("/").split("/")
        what = f"{method} {words[0]}"
        if what in self.refuses:
            return self.refuses[what]
        if len(self.told) + 1 == self.dies_at:
            raise Died
        self._change(method, words, body)
        self.told.append(what)
        if len(self.told) + 0.5 == self.dies_at:
            raise Died
        return None

    def _change(self, method: str, words: list[str], body: Json) -> None:
        match method, words:
            case "PUT", ["os-services", _]:
                self.services[0] |= body
            case "DELETE", ["os-services", _]:
                self.services.clear()
            case "POST", ["os-aggregates", number, "action"]:
                ((action, who),) = body.items()
                hosts = self.aggregates[int(number) - 1]["hosts"]
                hosts.append(who["host"]) if action == "add_host" else hosts.remove(who["host"])
            case "POST", ["servers"]:
                server = body["server"]
                assert server["availability_zone"] == f"az-a:{self.host}"
                assert (server["flavorRef"], server["imageRef"]) == ("f1", "i1")
                uuid = f"v{len(self.told)}"
                self.servers[uuid] = {
                    "id": uuid, "name": server["name"], "status": "ACTIVE",
                    "created": datetime.now(UTC).isoformat(),
                }  # fmt: skip
            case "DELETE", ["servers", uuid]:
                del self.servers[uuid]
            case "PUT", ["traits", _]:
                pass
            case "PUT", ["resource_providers", _, "traits"]:
                assert body["resource_provider_generation"] == 4
                self.traits = set(body["traits"])
            case "DELETE", ["allocations", consumer]:
                del self.allocations[consumer]
            case "DELETE", ["resource_providers", uuid]:
                assert uuid not in self.providers.values(), "a parent before its child"
                del self.providers[uuid]
            case _:
                raise AssertionError((method, words))

    def where(self) -> set[str]:
        return {one["name"] for one in self.aggregates if self.host in one["hosts"]}


@pytest.fixture(autouse=True)
def chosen(settings: Any) -> Any:
    made = FeedSettings(
        cloud="mini",
        onboards_hosts=True,
        offboards_hosts=True,
        test_aggregate="tests",
        test_flavor="tiny",
        test_image="cirros",
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": made})
    return made


def look(cloud: Cloud, **which: bool) -> dict[str, int]:
    both = {"brings_in": True, "takes_out": True}
    return run_lifecycles(cloud, actor=ANN, request_id="r", **(both | which))


def later(**how_long: float) -> None:
    """Let the last test VM have been asked for earlier."""
    row = HostLifecycle.objects.get(closed_at=None)
    assert row.tried_at is not None
    HostLifecycle.objects.filter(pk=row.pk).update(tried_at=row.tried_at - timedelta(**how_long))


def new_host(**fields: Any) -> Host:
    return make_host("h1", provider_uuid="p1", **fields)


def order(what: OnboardingOrder = ORDER) -> HostLifecycle:
    return order_onboarding("h1", what, actor=ANN, request_id="r", reason="a new one")


@pytest.mark.django_db
def test_a_host_comes_in_tested_and_serves() -> None:
    new_host()
    assert not order().closed_at
    host = Host.objects.get()
    assert host.conditions == {"Onboarding": "True", "Ready": "False"}
    assert not host.is_ready
    cloud = Cloud()

    assert look(cloud) == {"testing": 1}
    assert (cloud.where(), cloud.services[0]["status"]) == ({"az-a", "tests"}, "enabled")
    (vm,) = cloud.servers.values()
    assert vm["name"] == f"headroom-test-{HostLifecycle.objects.get().pk}"
    look(cloud)

    assert not cloud.servers
    assert look(cloud) == {"succeeded": 1}
    assert cloud.where() == {"az-a", "fast"}
    assert cloud.traits == {"HW_X", "CUSTOM_A"}
    host = Host.objects.get()
    assert (host.conditions, host.is_ready, host.high_availability) == ({}, True, True)
    row = HostLifecycle.objects.get()
    assert (row.phase, row.tests, row.trouble, row.waits_for) == ("succeeded", 1, "", "")
    assert row.closed_at is not None
    assert look(cloud) == {}
    phases = AuditEntry.objects.filter(action="host_lifecycle_phase").order_by("pk")
    told = [entry.after["phase"] for entry in phases if entry.after]
    assert told == ["testing", "handover", "succeeded"]


@pytest.mark.django_db
def test_a_vm_that_says_nothing_is_deleted_and_tried_again() -> None:
    new_host()
    order()
    cloud = Cloud()
    cloud.never_boots = True
    look(cloud)
    look(cloud)
    assert "does not say its name yet" in HostLifecycle.objects.get().waits_for
    (vm,) = cloud.servers.values()
    vm["created"] = (datetime.now(UTC) - timedelta(minutes=6)).isoformat()
    look(cloud)
    assert not cloud.servers
    look(cloud)
    assert not cloud.servers  # within a minute
    later(minutes=1)
    look(cloud)
    assert len(cloud.servers) == 1
    assert HostLifecycle.objects.get().tests == 2
    why = AuditEntry.objects.get(action="host_delete_test_vm").reason
    assert why == "it is ACTIVE, and its console does not say its name"


@pytest.mark.django_db
def test_tests_are_skipped_and_places_to_start_anew_not_needed() -> None:
    new_host()
    order(OnboardingOrder(aggregates=("az-a",), skips_tests=True, high_availability=False))
    cloud = Cloud()
    assert look(cloud) == {"succeeded": 1}
    assert not any(what.endswith("servers") for what in cloud.told)
    assert Host.objects.get().high_availability is False


@pytest.mark.django_db
def test_an_abort_waits_until_no_test_vm_is_left() -> None:
    host = new_host()
    order()
    cloud = Cloud()
    look(cloud)
    abort_onboarding("h1", actor=ANN, request_id="r", reason="wrong rack")
    with pytest.raises(OnboardingRefused, match="aborted still"):
        order()
    cloud.refuses["DELETE servers"] = Refusal(status=409, message="locked")
    assert look(cloud) == {"trouble": 1}
    assert HostLifecycle.objects.get().trouble == "refused (409): locked"
    assert Host.objects.get().conditions["Onboarding"] == "True"
    cloud.refuses.clear()
    look(cloud)
    assert look(cloud) == {"aborting": 1}
    later(minutes=3)
    assert look(cloud) == {"aborted": 1}
    found = Host.objects.get()
    assert found.conditions == {"Onboarding": "False", "Ready": "False"}
    assert not found.is_ready
    with pytest.raises(OnboardingRefused):
        abort_onboarding("h1", actor=ANN, request_id="r", reason="again")

    assert order().phase == "initial"  # it may be ordered anew
    Host.objects.filter(pk=host.pk).update(maintenance=Maintenance.TERMINATION)
    assert look(cloud)["aborted"] == 1


@pytest.mark.django_db
def test_an_abort_is_carried_out_where_hosts_are_brought_in_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new_host()
    order()
    cloud = Cloud()
    look(cloud)
    assert cloud.servers
    monkeypatch.setattr(
        tasks,
        "CHOSEN",
        settings.HEADROOM.feed.model_copy(
            update={"cloud": "c", "onboards_hosts": False, "offboards_hosts": False}
        ),
    )
    monkeypatch.setattr(tasks, "configured_cloud", lambda _: cloud)
    assert bring_in_and_out() == {}  # it stands still: nobody ended it
    assert cloud.servers
    abort_onboarding("h1", actor=ANN, request_id="r", reason="wrong rack")
    bring_in_and_out()
    assert not cloud.servers
    later(minutes=3)
    assert bring_in_and_out() == {"aborted": 1}
    assert Host.objects.get().conditions["Onboarding"] == "False"
    assert bring_in_and_out() == {}


@pytest.mark.django_db
def test_a_test_vm_that_comes_after_the_abort_is_deleted_too() -> None:
    """Nova took what it was asked for, and nobody had its answer."""
    new_host()
    order()
    cloud = Cloud()
    usual, asked = cloud.change, list[Json]()

    def lost(service: str, method: str, path: str, body: Json) -> Refusal | None:
        if path != "/servers":
            return usual(service, method, path, body)
        asked.append((service, method, path, body))
        raise CloudUnreachable("compute /servers: no answer")

    cloud.change = lost  # type: ignore[method-assign]
    assert look(cloud) == {"trouble": 1}
    abort_onboarding("h1", actor=ANN, request_id="r", reason="wrong rack")
    assert look(cloud) == {"aborting": 1}
    usual(*asked[0])
    look(cloud)
    assert not cloud.servers
    later(minutes=3)
    assert look(cloud) == {"aborted": 1}


@pytest.mark.django_db
def test_who_is_behind_says_nothing_of_a_host_that_serves() -> None:
    """Nova answers one worker so late that others have brought the host in meanwhile."""
    new_host()
    order()
    cloud = Cloud()
    look(cloud)
    usual = cloud.get

    def late(*_: Any) -> Json:
        cloud.get = usual  # type: ignore[method-assign]
        while look(cloud):
            pass
        raise CloudUnreachable("compute: no answer")

    cloud.get = late  # type: ignore[assignment, method-assign]
    look(cloud)
    host = Host.objects.get()
    assert (host.conditions, host.condition_reasons, host.is_ready) == ({}, {}, True)
    assert HostLifecycle.objects.get().trouble == ""


@pytest.mark.django_db
def test_a_host_that_no_list_has_any_more_is_waited_for() -> None:
    new_host()
    order()
    cloud = Cloud()
    look(cloud)
    Host.objects.all().delete()
    assert look(cloud) == {"testing": 1}
    assert HostLifecycle.objects.get().waits_for == "no list has the host"
    abort_onboarding("h1", actor=ANN, request_id="r", reason="it is gone")
    assert look(cloud) == {"aborting": 1}
    later(minutes=3)
    assert look(cloud) == {"aborted": 1}
    assert not cloud.servers


@pytest.mark.django_db
def test_what_is_not_brought_in(chosen: FeedSettings, settings: Any) -> None:
    def problem() -> str:
        with pytest.raises(OnboardingRefused) as refused:
            order()
        return refused.value.message

    with pytest.raises(UnknownHost):
        order()
    host = new_host()
    vm = make_vm(host=host)
    assert "1 VMs and 0 reservations" in problem()
    vm.delete()
    slot = make_slot(make_commitment(), host)
    assert "0 VMs and 1 reservations" in problem()
    slot.delete()
    Host.objects.update(maintenance="manual", maintenance_reason="x")
    assert "in maintenance" in problem()
    Host.objects.update(maintenance="")
    for missing in ({"test_flavor": ""}, {"onboards_hosts": False}, {"cloud": ""}):
        feed = chosen.model_copy(update=missing)
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
        assert "HEADROOM_FEED__" in problem()
    with pytest.raises(InvalidInput):
        order_onboarding("h1", ORDER, actor=ANN, request_id="r", reason=" ")
    with pytest.raises(InvalidInput):
        order(OnboardingOrder(aggregates=("a\0b",)))
    Host.objects.update(is_self_described=True)
    with pytest.raises(HostSpeaksForItself):
        order()
    with pytest.raises(CommandError, match="object of its own"):
        call_command("onboard_host", "h1", "--reason", "x")
    assert not HostLifecycle.objects.exists()


def leaving() -> Cloud:
    new_host(maintenance="termination", maintenance_reason="old")
    cloud = Cloud(status="disabled", state="down")
    for one in cloud.aggregates[:2]:
        one["hosts"].append("h1")
    return cloud


@pytest.mark.django_db
def test_a_host_leaves_when_nothing_is_left_on_it() -> None:
    cloud = leaving()
    host = Host.objects.get()
    slot = make_slot(make_commitment(), host)
    enrolled("h1")
    cloud.others, cloud.services[0]["state"] = 2, "up"

    def waits_for() -> str:
        look(cloud)
        assert not cloud.told
        return HostLifecycle.objects.get().waits_for

    assert waits_for() == "reservations are left: 1"
    slot.delete()
    assert waits_for() == "VMs are left: 2"
    cloud.others = 0
    assert waits_for() == "its agent is not decommissioned"
    call_command("host_agent", "decommission", "h1", "--reason", "gone")
    assert "nova-compute still answers" in waits_for()
    cloud.services[0]["state"] = "down"
    cloud.allocations = {"ghost": {"p1", "p1-gpu"}, "alive": {"p1", "elsewhere"}}

    assert look(cloud) == {"trouble": 1}
    assert not cloud.where()
    assert not cloud.services
    assert set(cloud.allocations) == {"ghost", "alive"}
    row = HostLifecycle.objects.get()
    assert row.trouble == "consumer alive holds something of this and of other hosts"
    host.delete()  # the next list of Nova lacks it
    del cloud.allocations["alive"]
    assert look(cloud) == {"succeeded": 1}
    assert (cloud.providers, cloud.allocations) == ({}, {})
    assert HostLifecycle.objects.get().closed_at is not None
    assert look(cloud) == {}


@pytest.mark.django_db
def test_a_host_that_is_kept_after_all_keeps_what_is_left() -> None:
    cloud = leaving()
    cloud.refuses["DELETE os-services"] = Refusal(status=409, message="has VMs")
    assert look(cloud) == {"trouble": 1}
    Host.objects.update(maintenance="ha")
    assert look(cloud) == {"aborted": 1}
    assert cloud.services
    Host.objects.update(maintenance="termination")  # once more, later
    cloud.refuses.clear()
    assert look(cloud) == {"succeeded": 1}
    assert look(cloud) == {}  # though the list has it still


@pytest.mark.django_db
def test_a_host_that_is_not_to_go_any_more_may_be_brought_in() -> None:
    """Also before anybody looked at its way out again."""
    cloud = leaving()
    cloud.refuses["DELETE os-services"] = Refusal(status=409, message="has VMs")
    look(cloud)
    with pytest.raises(OnboardingRefused, match="termination"):
        order()
    Host.objects.update(maintenance="")
    assert (order().kind, order().phase) == ("in", "initial")
    left = HostLifecycle.objects.get(kind="out")
    assert (left.phase, left.trouble) == ("aborted", "")
    assert left.closed_at is not None
    told = AuditEntry.objects.filter(action="host_lifecycle_phase").latest("pk")
    assert (told.before, told.after) == (
        {"phase": "offboarding"}, {"kind": "out", "phase": "aborted"},
    )  # fmt: skip


@pytest.mark.django_db
def test_objects_and_other_maintenance_are_left_alone() -> None:
    new_host(maintenance="termination", is_self_described=True)
    make_host("h2", maintenance="manual")
    cloud = leaving_nothing = Cloud()
    assert look(cloud) == {}
    assert not HostLifecycle.objects.exists()
    assert not leaving_nothing.told


@pytest.mark.django_db
def test_each_way_is_off_unless_it_is_set() -> None:
    cloud = leaving()
    assert look(cloud, takes_out=False) == {}
    assert not HostLifecycle.objects.exists()
    Host.objects.update(maintenance="")
    order()
    assert look(cloud, brings_in=False) == {}
    assert not cloud.told


@pytest.mark.django_db
def test_a_way_in_that_was_switched_off_meanwhile_is_not_in_the_way_out() -> None:
    new_host()
    order()
    cloud = Cloud()
    look(cloud)
    assert cloud.servers
    Host.objects.update(maintenance=Maintenance.TERMINATION)
    later(minutes=3)
    look(cloud, brings_in=False)
    assert look(cloud, brings_in=False) == {"aborted": 1}
    assert not cloud.servers
    look(cloud, brings_in=False)
    way_out = HostLifecycle.objects.get(kind="out")
    assert way_out.waits_for


@pytest.mark.django_db
def test_why_the_cloud_cannot_be_asked_is_kept() -> None:
    new_host()
    order()
    cloud = Cloud()
    cloud.is_away = True
    assert look(cloud) == {"trouble": 1}
    assert HostLifecycle.objects.get().trouble == "compute: no answer"
    cloud.is_away = False
    look(cloud)
    assert HostLifecycle.objects.get().trouble == ""


def come(cloud: Cloud) -> None:
    new_host()
    order()


def go(cloud: Cloud) -> None:
    new_host(maintenance="termination", maintenance_reason="old")
    cloud.services[0]["state"] = "down"
    cloud.aggregates[0]["hosts"].append("h1")
    cloud.allocations = {"ghost": {"p1"}}


@pytest.mark.django_db
@pytest.mark.parametrize("begin", [come, go])
@pytest.mark.parametrize("dies_at", [half / 2 for half in range(2, 26)])
def test_who_dies_at_any_call_is_followed_by_another(
    begin: Callable[[Cloud], None], dies_at: float
) -> None:
    """At whole numbers the call is not made, at halves it is made and nobody knows."""
    cloud = Cloud()
    begin(cloud)
    cloud.dies_at = dies_at
    for _ in range(12):
        try:
            if look(cloud) == {"succeeded": 1}:
                break
        except Died:
            cloud.dies_at = 0
            HostLifecycle.objects.update(tried_at=None)  # a minute passes
    assert HostLifecycle.objects.get().phase == "succeeded"
    assert not cloud.servers
    if begin is come:
        assert cloud.where() == {"az-a", "fast"}
        assert cloud.traits == {"HW_X", "CUSTOM_A"}
        assert cloud.told.count("POST servers") == 1
        assert Host.objects.get().is_ready
    else:
        assert (cloud.services, cloud.providers, cloud.allocations) == ([], {}, {})


@pytest.mark.django_db
def test_of_two_that_look_at_once_one_boots() -> None:
    new_host()
    order()
    cloud = Cloud()
    cloud.refuses["POST servers"] = Refusal(status=403, message="quota")
    look(cloud)
    assert HostLifecycle.objects.get().trouble == "refused (403): quota"
    cloud.refuses.clear()
    later(minutes=1)
    usual = cloud.get

    def other_first(service: str, path: str) -> Json:
        if path.startswith("/servers/detail"):
            HostLifecycle.objects.update(tests=5)
        return usual(service, path)

    cloud.get = other_first  # type: ignore[method-assign]
    look(cloud)
    assert not cloud.servers


@pytest.mark.django_db
def test_what_is_over_is_forgotten_a_month_later() -> None:
    cloud = leaving()
    look(cloud)
    assert prune_lifecycles() == 0
    HostLifecycle.objects.update(closed_at=datetime.now(UTC) - KEPT - timedelta(hours=1))
    assert prune_lifecycles() == 1
