from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from django.core.management import call_command
from django.db import connection

from config.launcher.demo import answers_healthz
from config.launcher.processes import wait_until
from tests.docs.tour import ROOT, Step, differences, normalised, tour_steps

README = ROOT / "README.md"
START_SECONDS = 60
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
        "HEADROOM_SECRET_KEY": secrets.token_urlsafe(48),
        "HEADROOM_LOG_LEVEL": "WARNING",
    }


@pytest.fixture
def demo(transactional_db: None, demo_environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Load the demo region, serve it with real processes, and return its address."""
    del transactional_db
    call_command("demo_setup", password_file=tmp_path / "password", verbosity=0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "granian", "--interface", "wsgi", "--port", str(port)]
    command += ["--workers", "1", "--blocking-threads", "4", "--no-ws", "config.wsgi:application"]
    log = (tmp_path / "web.log").open("wb")
    web = subprocess.Popen(  # noqa: S603 - our own server
        command, env=demo_environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
    )
    try:
        _wait_until_it_answers(port, web, tmp_path / "web.log")
        yield f"127.0.0.1:{port}"
    finally:
        web.terminate()
        try:
            web.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(web.pid, signal.SIGKILL)
            web.wait()
        with suppress(ProcessLookupError):
            os.killpg(web.pid, signal.SIGKILL)
        log.close()


def _wait_until_it_answers(port: int, web: subprocess.Popen[bytes], log: Path) -> None:
    wait_until(lambda: answers_healthz(port) or web.poll() is not None, START_SECONDS)
    if not answers_healthz(port):
        pytest.fail(f"the web server does not answer:\n{log.read_text()}")


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
    first, last = (normalised(printed[index])[line] for index, line in ((2, 0), (-1, 3)))
    assert first == last, "the tour does not leave the region as it was"
