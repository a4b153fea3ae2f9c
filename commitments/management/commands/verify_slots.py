"""``manage.py verify_slots``: see which VMs are in slots, now, and accept a VM list that shrank."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError

from commitments.models import SlotCheck
from commitments.services.verification import VerificationReport, verify_slots
from journal.actors import command_actor
from journal.tracing import with_new_global_request_id

EXIT_REFUSED = 1


class Command(BaseCommand):
    """Look at every slot of some zones, as the task does now and then."""

    help = (
        "See which VMs are in slots and move slots off lost hosts. With --accept-vm-list the VM "
        "list is believed however much it shrank: VMs it lacks leave their slots. With "
        "--accept-host-list hosts that are down or gone count as lost however many they are."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("--zone", action="append", help="only this zone; may be repeated")
        parser.add_argument(
            "--accept-vm-list", action="store_true", help="believe the VM list as it is now"
        )
        parser.add_argument(
            "--accept-host-list", action="store_true", help="believe the host list as it is now"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Verify, then print.

        Raises:
            CommandError: A zone's VM or host list is not believed.
        """
        with with_new_global_request_id() as request_id:
            report = verify_slots(
                actor=command_actor("verify_slots"),
                request_id=request_id,
                zones=options["zone"],
                is_full=True,
                believes_list=options["accept_vm_list"],
                believes_hosts=options["accept_host_list"],
            )
        if options["json"]:
            self.stdout.write(orjson.dumps(_record(report), option=orjson.OPT_INDENT_2).decode())
        else:
            self._print(report)
        if report.refused:
            reasons = "; ".join(f"{zone}: {why}" for zone, why in sorted(report.refused.items()))
            raise CommandError(reasons, returncode=EXIT_REFUSED)

    def _print(self, report: VerificationReport) -> None:
        for name, count in report.events.items():
            self.stdout.write(f"{name.replace('_', ' ')}: {count}")
        self.stdout.write(f"commitments to repair: {report.nudged}")
        for zone in report.skipped:
            self.stdout.write(f"{zone}: in use by another run, look again later")
        for check in SlotCheck.objects.all():
            listed = "unknown" if check.listed_vms is None else f"{check.listed_vms:,}"
            self.stdout.write(f"{check.zone}: VMs listed when last believed: {listed}")


def _record(report: VerificationReport) -> dict[str, object]:
    return {
        "events": report.events,
        "nudged": report.nudged,
        "skipped": list(report.skipped),
        "refused": report.refused,
    }
