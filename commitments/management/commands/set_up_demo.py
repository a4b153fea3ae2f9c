"""``manage.py set_up_demo``: an admin user and a region to look at, for a first start."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractUser
from django.core.management import call_command, get_commands
from django.core.management.base import BaseCommand, CommandError

from capacity.figures.made_up import make_up_history
from commitments.models import Commitment
from hosts.models import Host, Instance
from journal.clock import database_now

ADMIN_NAME = "admin"
DEFAULT_HOSTS = 300
DEMO_SEED = 7
OWNER_ONLY = 0o600
PROGRESS_MARK = "[demo] "
"""How lines begin that tell what is being done; ``./run demo`` shows these, and logs the rest."""


class Command(BaseCommand):
    """Make the admin user and load a region; a second run keeps both."""

    help = "Create the demo admin and load a demo region, unless both exist."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument(
            "--hosts",
            type=int,
            default=DEFAULT_HOSTS,
            help=f"hosts of the generated region (default {DEFAULT_HOSTS})",
        )
        parser.add_argument(
            "--import",
            dest="imports",
            action="append",
            default=[],
            metavar="FILE",
            help="region file to load instead of a generated one; may be repeated",
        )
        parser.add_argument(
            "--webhook-url", default="", help="receiver of webhooks, told of changes from then on"
        )
        parser.add_argument(
            "--fresh-admin", action="store_true", help="give the admin a new password"
        )
        parser.add_argument(
            "--password-file",
            type=Path,
            default=Path(settings.BASE_DIR) / ".local" / "demo-admin-password",
            help="where the password is kept, readable by its owner only",
        )

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Load, refresh, and print the login last.

        Raises:
            CommandError: An option is out of range, or a file is malformed.
        """
        if options["hosts"] < 1:
            raise CommandError("--hosts: needs at least 1")
        is_loaded = self._load(options["imports"], options["hosts"])
        if is_loaded:
            self._say(loaded_text())
        if is_loaded and "refresh_capacity" in get_commands():
            self._say("computing flavor groups and capacity")
            call_command("refresh_capacity", stdout=self.stdout)
        if is_loaded and "reconcile_failover" in get_commands():
            self._say("covering VMs for the loss of their host")
            call_command("reconcile_failover", stdout=self.stdout)
        if is_loaded and not options["imports"]:
            made_up = make_up_history(now=database_now())
            self._say(f"making up a past of {made_up:,} rows, marked as made up")
        if options["webhook_url"]:
            call_command("set_up_demo_webhooks", url=options["webhook_url"], stdout=self.stdout)
        password = admin_password(options["password_file"], make_new=options["fresh_admin"])
        self.stdout.write(f"admin login: {ADMIN_NAME} / {password}")

    def _load(self, imports: list[str], host_count: int) -> bool:
        """Load the given files, or a generated region into an empty database.

        Returns:
            Whether anything was loaded.
        """
        if imports:
            self._say(f"loading {', '.join(imports)}")
            call_command("import_region", *imports, "--with-ended", stdout=self.stdout)
            return True
        known = Host.objects.count()
        if known:
            self._say(f"keeping the region of {known:,} hosts that is loaded")
            return False
        self._say(f"generating a region of {host_count:,} hosts")
        with tempfile.TemporaryDirectory(prefix="headroom-demo-") as folder:
            region = Path(folder) / "region.json"
            call_command(
                "generate_region",
                profile="demo",
                hosts=host_count,
                seed=DEMO_SEED,
                output=str(region),
                stdout=self.stdout,
            )
            self._say("loading it")
            call_command("import_region", str(region), "--with-ended", stdout=self.stdout)
        return True

    def _say(self, text: str) -> None:
        """Say what is being done; where bars are shown, in front of these, by the same writer."""
        if sys.stderr.isatty() and not sys.stdout.isatty():
            self.stdout.write(text)
            sys.stderr.write(f"  {text}\n")
        else:
            self.stdout.write(f"{PROGRESS_MARK}{text}")
        self.stdout.flush()


def loaded_text() -> str:
    """Return what the database holds, in a line."""
    return (
        f"loaded {Host.objects.count():,} hosts, {Instance.objects.count():,} VMs and "
        f"{Commitment.objects.count():,} commitments; the log says what was skipped, and why"
    )


def admin_password(password_file: Path, *, make_new: bool = False) -> str:
    """Make sure that the demo admin exists, and return its password.

    A password that a person has set since is neither changed nor known.

    Args:
        password_file: Where the generated password is kept; written with mode 0600.
        make_new: Whether to replace the password in any case.

    Returns:
        The password, or words that say why it is not known.
    """
    users = get_user_model().objects
    user: AbstractUser | None = users.filter(username=ADMIN_NAME).first()
    kept = password_file.read_text(encoding="utf-8").strip() if password_file.is_file() else ""
    if user is not None and not make_new:
        if kept and user.check_password(kept):
            return kept
        return "(a password set earlier; --fresh-admin makes a new one)"
    password = kept if kept and not make_new else secrets.token_urlsafe(12)
    _write_private(password_file, password)
    if user is None:
        user = users.create_superuser(ADMIN_NAME, password=password)
    else:
        user.set_password(password)
    user.is_staff = user.is_superuser = user.is_active = True
    user.save()
    return password


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")
