"""``manage.py set_up_demo_agents``: enrol the agents of the demo (``./run demo``)."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from headroom_host_agent import VERSION
from headroom_host_agent.server.client import RefusedError, ServerError

from capacity.models import Reservation, ReservationKind
from hosts.agents.models import HostAgent
from hosts.agents.rollout_models import AgentRollout
from hosts.agents.rollouts import start_rollout
from hosts.demo.agents import enrolled_hosts
from hosts.models import Host
from journal.actors import Actor

COUNT: Final = 3


class Command(BaseCommand):
    """Print the root of each host whose agent is to run, one on a line."""

    help = "Enrol agents of a few hosts of the demo; ./run demo runs them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add where the demo is served, and where the hosts are kept."""
        parser.add_argument("--url", required=True)
        parser.add_argument("--places", type=Path, required=True)

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Enrol.

        Raises:
            CommandError: The demo does not take them.
        """
        try:
            for root in enrolled_hosts(options["places"], options["url"], hosts=chosen_hosts()):
                self.stdout.write(str(root))
        except (RefusedError, ServerError, OSError) as error:
            raise CommandError(str(error)) from error
        if not AgentRollout.objects.exists():
            start_rollout(VERSION, actor=Actor(name="demo"), request_id="", reason="first agents")


def chosen_hosts() -> list[Host]:
    """Return the hosts that have agents, those of before first; one of them holds slots."""
    usable = Host.objects.exclude(total_vcpus=0).order_by("zone", "name")
    known = HostAgent.objects.filter(decommissioned_at=None).values("host_name")
    slots = Reservation.objects.filter(kind=ReservationKind.COMMITTED, target_host__isnull=False)
    found = {host.pk: host for host in usable.filter(name__in=known)}
    if not found:
        found = {host.pk: host for host in usable.filter(pk__in=slots.values("target_host"))[:1]}
    for host in usable[:COUNT]:
        if len(found) < COUNT:
            found.setdefault(host.pk, host)
    return list(found.values())
