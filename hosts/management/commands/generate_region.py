"""``manage.py generate_region --hosts N --seed S``: write a made-up region (issue 2, item 5)."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from hosts.region.generator.plan import GeneratorOptions
from hosts.region.generator.write import generate_region
from journal.progress import progress_bar

TAKEN_AT: Final = "2026-11-20T10:00:00Z"
MAX_HOSTS: Final = 100_000
EXIT_USAGE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A documented size."""

    hosts: int
    vms: int
    commitments: int


PROFILES: Final = {
    "demo": Profile(hosts=240, vms=4800, commitments=160),
    "sap": Profile(hosts=1800, vms=48_000, commitments=1800),
}


def _moment(text: str) -> int:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not an ISO 8601 time") from None
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp())


class Command(BaseCommand):
    """Write a made-up region; the same arguments give the same bytes."""

    help = "Write a plausible region file of any size; the same arguments give the same bytes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare size, seed and output."""
        parser.add_argument("--profile", choices=sorted(PROFILES), default="demo")
        parser.add_argument("--hosts", type=int, help="number of hosts (default: the profile's)")
        parser.add_argument("--seed", type=int, default=1, help="default: 1")
        parser.add_argument(
            "--vms-per-host", type=int, help="VMs, on average (default: the profile's)"
        )
        parser.add_argument("--commitments", type=int, help="default: as the profile, by host")
        parser.add_argument("--taken-at", type=_moment, default=_moment(TAKEN_AT), metavar="TIME")
        parser.add_argument("--output", metavar="FILE", help="write to a file, not to the terminal")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Write the region.

        Raises:
            CommandError: A number is out of range, or the file cannot be written.
        """
        chosen = _options(options)
        output: str | None = options["output"]
        if output is None:
            generate_region(sys.stdout.buffer, chosen)
            sys.stdout.buffer.flush()
            return
        try:
            with (
                Path(output).open("wb") as stream,
                progress_bar("generating VMs", chosen.vms) as advance,
            ):
                generate_region(stream, chosen, advance)
        except OSError as error:
            raise CommandError(
                f"{output}: cannot be written: {error.strerror}", returncode=EXIT_USAGE
            ) from None


def _options(options: dict[str, Any]) -> GeneratorOptions:
    profile = PROFILES[options["profile"]]
    hosts = profile.hosts if options["hosts"] is None else options["hosts"]
    vms_per_host, commitments = options["vms_per_host"], options["commitments"]
    if not 1 <= hosts <= MAX_HOSTS:
        raise CommandError(
            f"--hosts: {hosts} is not between 1 and {MAX_HOSTS}", returncode=EXIT_USAGE
        )
    if min(vms_per_host or 0, commitments or 0) < 0:
        raise CommandError("numbers must not be negative", returncode=EXIT_USAGE)
    return GeneratorOptions(
        hosts=hosts,
        vms=profile.vms * hosts // profile.hosts if vms_per_host is None else hosts * vms_per_host,
        commitments=(
            max(24, profile.commitments * hosts // profile.hosts)
            if commitments is None
            else commitments
        ),
        seed=options["seed"],
        taken_at=options["taken_at"],
    )
