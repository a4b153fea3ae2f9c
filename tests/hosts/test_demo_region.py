"""The demo's region lives by the APIs of a served Headroom, and touches no other region."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from capacity.models import SchedulingDecision
from commitments.models import Commitment, RefusedChange
from console.management.commands.simulate_region import refuse_all_but_a_demo, speed_of
from hosts.demo.calls import Calls
from hosts.demo.cloud import DemoCloud, stored_region, world_of
from hosts.demo.driver import Driver
from hosts.domain.demo_world import Act, Wish, World, next_wish
from hosts.models import Host, HostState, HostStatus, Instance
from placement.models import Allocation, Inventory
from placement.services.hosts import reconcile_host_providers
from tests.factories import make_host_history

pytestmark = pytest.mark.django_db(transaction=True)

HOSTS = 24


@pytest.fixture
def is_demo(settings: Any) -> None:
    changes = {"auth": "noauth", "debug": True}
    settings.HEADROOM = django_settings.HEADROOM.model_copy(update=changes)


@pytest.fixture
def driver(is_demo: None, live_server: Any, tmp_path: Path) -> Driver:
    call_command("set_up_demo", hosts=HOSTS, password_file=tmp_path / "password", verbosity=0)
    calls = Calls(live_server.thread.port, live_server.thread.host)
    cloud = DemoCloud(stored_region())
    made = Driver(world=world_of(cloud, calls.resources()), cloud=cloud, calls=calls, seed=7)
    assert made.report_hosts() >= HOSTS
    reconcile_host_providers()
    assert made.report_hosts() == 0
    made.begin()
    return made


def drawn(world: World, act: Act) -> Callable[..., Wish | None]:
    """Draw until a wish is one of a kind."""
    rng = random.Random(7)  # noqa: S311 - reproducible, nothing secret

    def draw(*_: object) -> Wish | None:
        return next(
            wish
            for _ in range(5000)
            if (wish := next_wish(world, rng, lambda: str(uuid4()))) and wish.act is act
        )

    return draw


def live(driver: Driver, act: Act, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("hosts.demo.driver.next_wish", drawn(driver.world, act))
    outcome = ""
    for _ in range(8):
        outcome = driver.step()
        if outcome.endswith("done") or act is Act.OVERASK:
            break
    return outcome


def stored_places() -> dict[str, str]:
    rows = Instance.objects.filter(host__isnull=False).select_related("host")
    return {row.openstack_id: row.host.name for row in rows if row.host is not None}


def test_the_region_lives_by_the_apis_of_the_real_world(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = driver.world
    assert Inventory.objects.count() >= HOSTS
    told = {act: live(driver, act, monkeypatch) for act in (
        Act.ARRIVE, Act.MIGRATE, Act.DEPART, Act.FAIL_HOST, Act.EVACUATE, Act.REPAIR_HOST,
        Act.COMMIT, Act.GROW, Act.UNCOMMIT, Act.OVERASK,
    )}  # fmt: skip
    assert told.pop(Act.OVERASK) == "overask: refused"
    assert told == {act: f"{act}: done" for act in told}
    assert world.problems() == []
    places = {uuid: vm.host for uuid, vm in world.vms.items()}
    stored = stored_places()
    assert {uuid: stored.get(uuid) for uuid in places} == places
    assert SchedulingDecision.objects.count() >= 3
    assert RefusedChange.objects.count() >= 1
    assert Allocation.objects.exists()
    assert not world.failed
    assert not set(world.commitments) - set(
        Commitment.objects.values_list("commitment_uuid", flat=True)
    )


def test_it_begins_with_a_refusal_a_decision_a_commitment_and_a_dead_host(driver: Driver) -> None:
    had = set(driver.world.failed)
    told = ["overask: refused", "arrive: done", "commit: done"]
    assert driver.open() == (told if had else [*told, "fail_host: done"])
    assert driver.world.failed
    assert RefusedChange.objects.count() == 1
    assert SchedulingDecision.objects.count() == 1


def test_a_host_that_fails_is_down_until_it_is_repaired(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = Host.objects.filter(state=HostState.DOWN).count()
    live(driver, Act.FAIL_HOST, monkeypatch)
    (failed,) = driver.world.failed
    assert Host.objects.get(name=failed).state == HostState.DOWN
    live(driver, Act.REPAIR_HOST, monkeypatch)
    assert Host.objects.filter(state=HostState.DOWN).count() == down


def test_a_host_that_failed_in_an_earlier_life_is_evacuated_and_repaired_in_the_next(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(driver, Act.FAIL_HOST, monkeypatch)
    failed = driver.world.failed
    cloud = DemoCloud(stored_region())
    again = Driver(
        world=world_of(cloud, driver.calls.resources()), cloud=cloud, calls=driver.calls, seed=8
    )
    assert again.world.failed == failed
    assert live(again, Act.EVACUATE, monkeypatch) == "evacuate: done"
    assert live(again, Act.REPAIR_HOST, monkeypatch) == "repair_host: done"
    assert set(Host.objects.filter(name__in=failed).values_list("state", flat=True)) == {
        HostState.UP
    }


def test_a_host_that_was_turned_off_is_left_so(driver: Driver) -> None:
    name = sorted(driver.world.hosts)[0]
    off = {"state": HostState.DOWN, "status": HostStatus.DISABLED}
    Host.objects.filter(name=name).update(**off)
    world = world_of(DemoCloud(stored_region()), {})
    assert name not in world.failed
    assert not world.hosts[name].is_up


class TestGuard:
    def test_a_region_that_no_demo_made_up_is_left_alone(self, is_demo: None) -> None:
        with pytest.raises(CommandError, match="not made up"):
            refuse_all_but_a_demo()

    @pytest.mark.parametrize("changes", [{"debug": False}, {"auth": "token"}])
    def test_so_is_whatever_asks_for_tokens_or_is_in_production(
        self, is_demo: None, settings: Any, changes: dict[str, Any]
    ) -> None:
        settings.HEADROOM = django_settings.HEADROOM.model_copy(update=changes)
        with pytest.raises(CommandError, match=r"only ./run demo"):
            call_command("simulate_region", port=1)

    def test_so_is_whatever_has_a_cloud(self, is_demo: None, settings: Any) -> None:
        feed = django_settings.HEADROOM.feed.model_copy(update={"cloud": "real"})
        settings.HEADROOM = django_settings.HEADROOM.model_copy(update={"feed": feed})
        with pytest.raises(CommandError, match="a cloud"):
            refuse_all_but_a_demo()

    def test_a_demo_is_taken(self, is_demo: None) -> None:
        make_host_history("h1", day=timezone.now().date(), is_made_up=True)
        refuse_all_but_a_demo()


@pytest.mark.parametrize(
    ("text", "speed"), [("0\n", 0), ("2.5", 2.5), ("-3", 0), ("99", 20), ("nan", 1), ("fast", 1)]
)
def test_speed_is_what_the_file_says_within_limits(tmp_path: Path, text: str, speed: float) -> None:
    file = tmp_path / "speed"
    assert speed_of(file) == 1
    file.write_text(text)
    assert speed_of(file) == speed
