from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client

from config.launcher.demo import answers_healthz, choose_port, process_commands
from config.launcher.processes import Child, start_child, stop_children, wait_until
from config.launcher.terminal import last_lines
from failover.drill_models import EvacuationPlan
from failover.models import FailoverRun
from hosts.models import Host
from tests.docs.tour import ROOT, Step, differences, normalised, tour_steps

README = ROOT / "README.md"
START_SECONDS = 180
MARK = "@@@ step done"


def test_readme_shows_an_output_for_every_command_of_the_tour_that_prints() -> None:
    steps = tour_steps(README.read_text(encoding="utf-8"))
    assert len(steps) > 8
    assert "change-commitments" in "".join(step.commands for step in steps)
    assert [step.commands for step in steps if not step.output] == []


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("version 17", "version 1795249970"),
        ("reset at 2026-11-21T08:50:42Z", "reset at 2027-01-01T00:00:00Z"),
        ("one, ...", "one, two"),
        ("dryrun-14b67551-0: no", "dryrun-aaaaaaaa-0: no"),
    ],
)
def test_what_differs_from_run_to_run_is_not_compared(shown: str, printed: str) -> None:
    assert list(differences(shown, printed)) == []


@pytest.mark.parametrize(
    ("shown", "printed"), [("147", "148"), ("one", "one\ntwo"), ("{}", ""), ("one, ...", "two, x")]
)
def test_a_wrong_number_or_line_in_the_readme_is_noticed(shown: str, printed: str) -> None:
    assert list(differences(shown, printed))


@pytest.fixture
def demo_environment() -> dict[str, str]:
    """Return the environment of the demo, on the database of this test."""
    database = {name: str(given or "") for name, given in connection.settings_dict.items()}
    login = ":".join(quote(database[key], safe="") for key in ("USER", "PASSWORD") if database[key])
    where = {key.lower(): database[key] for key in ("HOST", "PORT") if database[key]}
    url = f"postgresql://{login}{'@' if login else ''}/{database['NAME']}?{urlencode(where)}"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("HEADROOM_", "GRANIAN_"))}
    return {
        **inherited,
        "DATABASE_URL": url,
        "REDIS_URL": os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"),
        "HEADROOM_DEBUG": "true",
        "HEADROOM_AUTH": "noauth",
        "HEADROOM_SECRET_KEY": settings.SECRET_KEY,  # the admin's session is signed with it
        "HEADROOM_LOG_LEVEL": "WARNING",
    }


@pytest.fixture
def demo(transactional_db: None, demo_environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Load the demo region, serve it with web, worker and beat, and return its address."""
    del transactional_db
    call_command("set_up_demo", password_file=tmp_path / "password", verbosity=0)
    demo_environment["TOUR_SESSION"] = session_of_admin()
    port = choose_port(0)
    children: list[Child] = []
    commands = process_commands(port)
    try:
        for name, arguments in commands.items():
            command = [sys.executable, "-m", *arguments]
            log = tmp_path / f"{name}.log"
            children.append(start_child(name, command, log=log, env=demo_environment, cwd=ROOT))
        wait_for(lambda: answers_healthz(port), children)
        wait_for(has_settled, children)
        yield f"127.0.0.1:{port}"
    finally:
        stop_children(children, ((signal.SIGTERM, 20.0),))


def session_of_admin() -> str:
    client = Client()
    client.force_login(User.objects.get(username="admin"))
    return client.cookies["sessionid"].value


def has_settled() -> bool:
    """Return whether the worker has done what it does to a region that has just been loaded.

    It plans the evacuation of hosts that are down, and looks at failover and capacity after that.
    """
    planned = EvacuationPlan.objects.order_by("started_at").first()
    if planned is None:
        return False
    later = FailoverRun.objects.filter(started_at__gt=planned.started_at, finished_at__isnull=False)
    zones = set(Host.objects.values_list("zone", flat=True))
    return zones <= set(later.values_list("zone", flat=True))


def wait_for(condition: Callable[[], bool], children: list[Child]) -> None:
    wait_until(
        lambda: condition() or any(child.process.poll() is not None for child in children),
        START_SECONDS,
    )
    logs = "\n".join(f"{child.name}:\n{last_lines(child.log)}" for child in children)
    assert condition(), logs


def run_steps(steps: tuple[Step, ...], address: str, environment: dict[str, str]) -> list[str]:
    """Run every step in one shell, as a reader does, and return what each printed."""
    script = "".join(f"{{\n{step.commands}}} 2>&1\necho '{MARK}'\n" for step in steps)
    shell = shutil.which("bash")
    assert shell is not None
    finished = subprocess.run(  # noqa: S603 - the README of this checkout
        [shell, "-c", script.replace("127.0.0.1:8000", address)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    printed = finished.stdout.split(f"{MARK}\n")
    assert len(printed) == len(steps) + 1, finished.stderr
    return printed[:-1]


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed (Debian: curl)")
def test_every_command_of_the_tour_prints_what_the_readme_says(
    demo: str, demo_environment: dict[str, str]
) -> None:
    steps = tour_steps(README.read_text(encoding="utf-8"))
    printed = run_steps(steps, demo, demo_environment)
    wrong = [
        f"$ {step.commands}\n" + "\n".join(found)
        for step, output in zip(steps, printed, strict=True)
        if (found := list(differences(step.output, output)))
    ]
    assert wrong == [], "\n\n".join(wrong)
    first, last = (normalised(printed[index])[line] for index, line in ((2, 0), (-2, 3)))
    assert first == last, "the tour does not leave the region as it was"
