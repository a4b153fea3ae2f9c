"""``manage.py onboard_host``: have a host brought into service through Nova (docs/hosts.md)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from uuid import uuid4

from django.core.management.base import BaseCommand, CommandError

from hosts.services.lifecycles import OnboardingOrder, abort_onboarding, order_onboarding
from journal.actors import command_actor
from journal.errors import HeadroomError


class Command(BaseCommand):
    """Order it; workers do what comes next every ten seconds."""

    help = "Have a host brought into service: enabled, tested with a VM, put into its aggregates."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare which host, and how it is to be."""
        parser.add_argument("host", help="name, as in the list of hosts")
        parser.add_argument(
            "--aggregate",
            action="append",
            default=[],
            metavar="NAME",
            help="where it is at the end, its zone's included; again for more",
        )
        parser.add_argument(
            "--trait",
            action="append",
            default=[],
            metavar="NAME",
            help="of its resource provider at the end; again for more",
        )
        parser.add_argument("--skip-tests", action="store_true", help="boot no VM on it")
        parser.add_argument(
            "--no-high-availability",
            action="store_true",
            help="its VMs need no places to start anew",
        )
        parser.add_argument("--abort", action="store_true", help="bring it in no further")
        parser.add_argument("--reason", required=True, help="for the audit trail")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Order it.

        Raises:
            CommandError: It is refused.
        """
        name, reason = options["host"], options["reason"]
        actor, request_id = command_actor("onboard_host"), str(uuid4())
        try:
            if options["abort"]:
                row = abort_onboarding(name, actor=actor, request_id=request_id, reason=reason)
            else:
                order = OnboardingOrder(
                    aggregates=tuple(options["aggregate"]),
                    traits=tuple(options["trait"]),
                    skips_tests=options["skip_tests"],
                    high_availability=not options["no_high_availability"],
                )
                row = order_onboarding(
                    name, order, actor=actor, request_id=request_id, reason=reason
                )
        except HeadroomError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"{name}: {row.phase}")
