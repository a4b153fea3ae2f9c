"""``manage.py simulate_region``: the demo's region lives, for as long as this runs."""

from __future__ import annotations

import http.client
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from capacity.models import HostHistory
from commitments.tasks import COMPACT_SLOTS, RECONCILE_USAGE
from console.demo_operator import close_hosts, decide, plan_failover_from_scratch
from failover.services.drills import DRILL_TASK
from hosts.demo.calls import Calls
from hosts.demo.cloud import DemoCloud, stored_region, world_of
from hosts.demo.driver import Driver
from journal.errors import HeadroomError
from journal.nudges import hint_worker
from placement.services.nudges import RECONCILE_HOSTS
from placement.tasks import CHECK_SERVED_API

log = structlog.get_logger(__name__)

SECONDS_OF_STEP: Final = 4.0
LEAST_SPEED, MOST_SPEED = 0.0, 20.0
LOOKS_SECONDS: Final = 0.5
PROVIDERS_SECONDS: Final = 180.0


class Command(BaseCommand):
    """Live through a made-up region; refuses every other."""

    help = "Let the demo's made-up region live. Refuses to touch any other region."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--port", type=int, required=True, help="where the demo is served")
        parser.add_argument("--seed", type=int, default=7, help="what chance draws from")
        parser.add_argument(
            "--steps", type=int, default=None, help="end after so many (default: no end)"
        )
        parser.add_argument(
            "--speed-file",
            type=Path,
            default=Path(settings.BASE_DIR) / ".local" / "demo-speed",
            help="holds how fast it goes: 1 is a step in 4 s, 0 pauses, at most 20",
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Live until the end, or until the process is stopped.

        Raises:
            CommandError: This is no demo.
        """
        refuse_all_but_a_demo()
        calls = Calls(options["port"])
        cloud = DemoCloud(stored_region())
        closed = close_hosts(cloud)
        world = world_of(cloud, calls.resources())
        driver = Driver(world=world, cloud=cloud, calls=calls, seed=options["seed"])
        wait_for_providers(driver)
        driver.begin()
        decide()
        for task in (RECONCILE_USAGE, COMPACT_SLOTS, CHECK_SERVED_API, DRILL_TASK):
            hint_worker(task)
        plan_failover_from_scratch(self.stdout)
        self.stdout.write(
            f"{len(world.vms):,} VMs on {len(world.hosts):,} hosts live; "
            f"taken out of service: {', '.join(closed) or 'none'}"
        )
        for outcome in driver.open():
            self.stdout.write(outcome)
        hint_worker(RECONCILE_USAGE)  # again: hours are what was so from one look to the next
        left = options["steps"]
        while left is None or left > 0:
            wait_for_turn(options["speed_file"])
            try:
                self.stdout.write(driver.step())
            except (HeadroomError, OSError, http.client.HTTPException) as error:
                log.warning("demo_region_step_failed", error=str(error))
            left = None if left is None else left - 1


def refuse_all_but_a_demo() -> None:
    """Make sure that nothing real is touched.

    Raises:
        CommandError: The settings are not those of a demo, or the region was not made up by one.
    """
    chosen = settings.HEADROOM
    if not (chosen.debug and chosen.auth == "noauth"):
        raise CommandError("only ./run demo may do this: HEADROOM_DEBUG and HEADROOM_AUTH=noauth")
    if chosen.feed.cloud or chosen.keystone.is_complete:
        raise CommandError("a cloud is configured: its region is no demo's")
    if not HostHistory.objects.filter(is_made_up=True).exists():
        raise CommandError("this region was not made up by ./run demo: it is left alone")


def wait_for_providers(driver: Driver) -> None:
    """Wait until a worker has made the providers of the hosts, each of which is then told of.

    Raises:
        CommandError: they do not come.
    """
    hint_worker(RECONCILE_HOSTS)
    waited_seconds = 0.0
    while left := driver.report_hosts():
        if waited_seconds >= PROVIDERS_SECONDS:
            raise CommandError(f"{left} hosts have no provider: does a worker run?")
        time.sleep(LOOKS_SECONDS)
        waited_seconds += LOOKS_SECONDS


def wait_for_turn(speed_file: Path) -> None:
    """Wait until the next step is due; a speed of 0 waits until it is raised."""
    waited_seconds = 0.0
    while True:
        speed = speed_of(speed_file)
        if speed > 0 and waited_seconds >= SECONDS_OF_STEP / speed:
            return
        pause = LOOKS_SECONDS if speed <= 0 else min(LOOKS_SECONDS, SECONDS_OF_STEP / speed)
        time.sleep(pause)
        waited_seconds += pause


def speed_of(speed_file: Path) -> float:
    """Return the speed that a file holds, within its limits; 1 without a file or a number."""
    try:
        speed = float(speed_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 1.0
    return min(max(speed, LEAST_SPEED), MOST_SPEED) if speed == speed else 1.0  # noqa: PLR0124 - NaN
