"""``manage.py placement_check``: is the Placement API fit to serve? (spec placement, 10.3)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from typing import Any

import os_resource_classes
import os_traits
from django.core.checks import Error, run_checks
from django.core.management.base import BaseCommand, CommandError

from capacity.figures.group_capacity import largest_group
from placement.checks import TAG
from placement.models import ResourceClass, Trait
from placement.services.audit import BREAKS_ANSWERS, find_problems


class Command(BaseCommand):
    """Check configuration, standard names and the invariants of the tables; exit 1 on errors."""

    help = (
        "Check the configuration of the Placement API, its standard names and the invariants of "
        "its tables. Exit status 1 on errors; placement_audit tells more and repairs."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument(
            "--fail-on-warning", action="store_true", help="treat warnings as errors"
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Check all of it, then print.

        Raises:
            CommandError: something is wrong.
        """
        warnings, errors = _configuration()
        errors += _standard_names()
        counted = Counter(finding.kind for finding in find_problems())
        for kind, count in sorted(counted.items()):
            told = f"{count} findings of kind {kind}: see placement_audit"
            (errors if kind in BREAKS_ANSWERS else warnings).append(told)
        for told in _notes():
            self.stdout.write(f"note: {told}")
        for told in warnings:
            self.stdout.write(f"warning: {told}")
        for told in errors:
            self.stdout.write(f"error: {told}")
        if errors or (warnings and options["fail_on_warning"]):
            raise CommandError(f"{len(errors)} errors, {len(warnings)} warnings")
        self.stdout.write(f"ok, {len(warnings)} warnings")


def _notes() -> list[str]:
    """Return what Nova should be set to, once capacity was computed."""
    largest = largest_group()
    if largest is None:
        return []
    name, hosts = largest
    told = (
        f"flavor group {name} may use {hosts} hosts, more than any other: "
        f"max_placement_results of Nova should be {hosts} or more"
    )
    return [told]


def _configuration() -> tuple[list[str], list[str]]:
    """Return warnings and errors of the system checks."""
    found = run_checks(tags=[TAG])
    errors = [message.msg for message in found if message.level >= Error("").level]
    return [message.msg for message in found if message.msg not in errors], errors


def _standard_names() -> list[str]:
    """Return what standard names are missing, in words."""
    classes = set(os_resource_classes.STANDARDS) - set(
        ResourceClass.objects.values_list("name", flat=True)
    )
    traits = set(os_traits.get_traits()) - set(Trait.objects.values_list("name", flat=True))
    missing = len(classes) + len(traits)
    return [f"{missing} standard names are missing: placement_sync_standards"] if missing else []
