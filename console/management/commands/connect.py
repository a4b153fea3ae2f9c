"""``manage.py connect``: from an entry of ``clouds.yaml`` to a region that can be committed."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from rich.table import Table

from capacity.figures.zone_rooms import zone_sums
from capacity.groups.flavor_groups import FlavorSpec
from console.connect.proposal import propose, write_proposal
from core.doctor.findings import Severity, run_checks, worst
from core.management.commands.doctor import print_findings
from core.text import count_text, memory_text
from hosts.feed.lists import COMMITMENTS, LISTS
from hosts.feed.passes import FULL_KINDS
from hosts.management.showing import print_report, watched_passes
from hosts.region.dump import RegionFileWriter
from hosts.region.registry import Shape
from journal.actors import command_actor
from journal.errors import HeadroomError
from journal.progress import printing_to
from scheduling.resources import MIB

if TYPE_CHECKING:
    from hosts.clients.cloud import OpenStackCloud

CAPACITY = "capacity"
"""Service type by which ``openstack capacity`` finds us (clients/osc)."""
NEXT = """
What to do next:
- ./run manage doctor says any time what is wrong
- start ./run serve web, ./run serve worker and ./run serve beat, if they do not run yet
- docs/first-day.md goes on from here to the first commitment, docs/limes.md connects Limes"""

FOLLOW = "- set HEADROOM_FEED__CLOUD={}, then the workers go on reading it (docs/feed.md)"


@dataclass(frozen=True, slots=True)
class _Answers:
    """Who decides: options, or a person at the terminal."""

    is_yes: bool
    is_asked: bool

    def agrees(self, question: str) -> bool:
        """Return whether to go on; a script without ``--yes`` does not."""
        if self.is_yes or not self.is_asked:
            return self.is_yes
        return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


class Command(BaseCommand):
    """Check a cloud, make us known to it, propose what to decide, and read it."""

    help = (
        "Connect to a cloud: check its services and our rights, register in its Keystone "
        "(--register), propose groups of flavors and policies, read it. Without --yes a person is "
        "asked; where nobody is, nothing is written."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument(
            "cloud", nargs="?", help="entry of clouds.yaml (default: OS_CLOUD, or OS_* variables)"
        )
        parser.add_argument("--yes", action="store_true", help="write without asking")
        parser.add_argument("--no-pass", action="store_true", help="do not read the cloud")
        group = parser.add_argument_group("registering in Keystone (docs/limes.md)")
        group.add_argument("--register", action="store_true", help="say what Keystone lacks of us")
        group.add_argument("--liquid-url", metavar="URL", help="our address, .../commitments/")
        group.add_argument(
            "--capacity-url",
            metavar="URL",
            help="our address as `openstack capacity` finds it (default: that of LIQUID, without "
            "its /commitments/)",
        )
        group.add_argument("--service-type", default="liquid-headroom", metavar="TYPE")
        group.add_argument("--user", default="headroom", help="our user (default %(default)s)")
        group.add_argument("--password-file", metavar="FILE", help="password of a new user")
        group.add_argument("--project", default="service", help="its project")
        group.add_argument("--domain", default="Default", help="domain of both")
        group.add_argument("--limes-user", default="", help="Limes' user, who gets its role")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Go through it step by step.

        Raises:
            CommandError: The cloud cannot be read, or what was asked for cannot be done.
        """
        answers = _Answers(is_yes=options["yes"], is_asked=sys.stdin.isatty())
        name = options["cloud"] or environ.get("OS_CLOUD")
        if not name and not environ.get("OS_AUTH_URL"):
            if not answers.is_asked:
                raise CommandError("name an entry of clouds.yaml, or set OS_CLOUD or OS_AUTH_URL")
            name = input("Entry of clouds.yaml: ").strip()
        try:
            self._check(name)
            if options["register"]:
                self._register(name, options, answers)
            self._propose(name, answers)
            if not options["no_pass"] and self._agreed(answers, "Read the cloud now?"):
                self._read(name)
                self._show()
        except HeadroomError as error:
            raise CommandError(error.message) from error
        self.stdout.write(NEXT)
        if name and settings.HEADROOM.feed.cloud != name:
            self.stdout.write(FOLLOW.format(name))

    def _agreed(self, answers: _Answers, question: str) -> bool:
        if answers.agrees(question):
            return True
        self.stdout.write("nothing was done (--yes does it)")
        return False

    def _check(self, name: str | None) -> None:
        # openstacksdk takes a second to import: only for those who need it.
        from hosts.clients.cloud_probe import named_cloud  # noqa: PLC0415
        from hosts.cloud_checks import cloud_checks  # noqa: PLC0415

        self._title("Checks")
        found = list(run_checks(cloud_checks(partial(named_cloud, name))))
        print_findings([one for one in found if one.todo], self.stdout)
        counted = sum(one.severity is Severity.OK for one in found)
        self.stdout.write(f"{counted} of {len(found)} are well")
        if worst(found) is Severity.ERROR:
            raise CommandError("the cloud cannot be read as it is: see what to do above")

    def _register(self, name: str | None, options: dict[str, Any], answers: _Answers) -> None:
        from hosts.clients.cloud_probe import named_cloud  # noqa: PLC0415 - as above
        from hosts.clients.registration import Registration, register  # noqa: PLC0415

        if not options["liquid_url"]:
            raise CommandError("--register needs --liquid-url https://.../commitments/")
        liquid = str(options["liquid_url"])
        capacity = options["capacity_url"] or liquid.rstrip("/").removesuffix("/commitments")
        self._title("Keystone")
        connection = named_cloud(name).connection
        wanted = Registration(
            services={options["service_type"]: liquid, CAPACITY: capacity},
            region=connection.config.get_region_name() or "",
            user=options["user"],
            password=_password_of(options["password_file"]),
            project=options["project"],
            domain=options["domain"],
            limes_user=options["limes_user"],
        )
        missing = register(connection, wanted, is_dry=True)
        for line in missing:
            self.stdout.write(f"missing: {line}")
        if not missing:
            self.stdout.write("Keystone knows us")
        elif self._agreed(answers, "Register this in Keystone?"):
            self.stdout.write(f"made: {len(register(connection, wanted, is_dry=False))}")

    def _propose(self, name: str | None, answers: _Answers) -> None:
        self._title("Proposals")
        proposal = propose(_flavors(name))
        lines = list(proposal.lines())
        for line in lines:
            self.stdout.write(line)
        if not lines:
            self.stdout.write("all is decided already")
        elif self._agreed(answers, "Write this?"):
            request_id = f"req-{uuid4()}"
            write_proposal(proposal, actor=command_actor("connect"), request_id=request_id)
            self.stdout.write(f"written: {len(lines)}")

    def _read(self, name: str | None) -> None:
        from hosts.clients.cloud import OpenStackCloud  # noqa: PLC0415 - as above
        from hosts.clients.listing import LIMES  # noqa: PLC0415

        self._title("First pass")
        cloud = OpenStackCloud(name, timeout_seconds=settings.HEADROOM.feed.timeout_seconds)
        reports = watched_passes(FULL_KINDS, cloud, actor=command_actor("connect"))
        for kind, report in reports.items():
            print_report(report, self.stdout, title=kind.replace("_", " ").capitalize())
        if cloud.has(LIMES):
            self._take_commitments_over(cloud)

    def _take_commitments_over(self, cloud: OpenStackCloud) -> None:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "commitments.json"
            (commitments,) = (each for each in LISTS if each.section == COMMITMENTS)
            with file.open("wb") as stream:
                writer = RegionFileWriter(stream)
                writer.write(COMMITMENTS, Shape.LIST, commitments.read(cloud))
                writer.finish()
            call_command("import_region", str(file), stdout=self.stdout)

    def _show(self) -> None:
        self._title("This is your cloud")
        table = Table()
        for heading in ("zone", "hosts", "memory", "free memory", "free vCPUs"):
            table.add_column(heading, justify="left" if heading == "zone" else "right")
        for zone in zone_sums():
            table.add_row(
                zone["zone"] or "(none)",
                count_text(zone["hosts"]),
                memory_text(zone["installed"]),
                memory_text(zone["free"]),
                count_text(zone["free_vcpus"]),
            )
        printing_to(self.stdout).print(table)
        call_command("refresh_capacity", stdout=self.stdout)

    def _title(self, text: str) -> None:
        self.stdout.write(f"\n{text}\n{'=' * len(text)}")


def _password_of(file: str | None) -> Callable[[], str]:
    def read() -> str:
        if not file:
            raise CommandError("a new user needs a password: --password-file FILE")
        return Path(file).read_text(encoding="utf-8").strip()

    return read


def _flavors(name: str | None) -> list[FlavorSpec]:
    from hosts.clients.cloud import OpenStackCloud  # noqa: PLC0415 - as above
    from hosts.clients.listing import COMPUTE, pages  # noqa: PLC0415

    listed = pages(OpenStackCloud(name), COMPUTE, "/flavors/detail?is_public=None", "flavors")
    return [
        FlavorSpec(
            name=str(one["name"]),
            vcpus=int(one["vcpus"]),
            memory_bytes=int(one["ram"]) * MIB,
            extra_specs=one.get("extra_specs") or {},
        )
        for one in listed
    ]
