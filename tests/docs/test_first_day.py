"""Every command of ``docs/first-day.md``, against what a real small cloud answered."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.launcher.demo import answers_healthz, choose_port, process_commands
from config.launcher.processes import Child, start_child, stop_children
from tests.docs.test_tour import demo_environment as demo_environment  # noqa: PLC0414 - a fixture
from tests.docs.test_tour import run_steps, wait_for
from tests.docs.tour import ROOT, Step, differences, page_steps
from tests.hosts.mini_cloud import MiniCloud
from tests.hosts.served_cloud import served_cloud

PAGE = ROOT / "docs" / "first-day.md"


def steps() -> tuple[Step, ...]:
    return page_steps(PAGE.read_text(encoding="utf-8"))


def test_each_step_but_the_preparing_shows_what_it_prints() -> None:
    silent = [step.commands.split("=")[0] for step in steps() if not step.output]
    assert silent == ["export DATABASE_URL", "./run manage migrate --verbosity 0\n"]


@pytest.fixture
def served(
    transactional_db: None,
    demo_environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """Serve the cloud and an empty Headroom; return the latter's address."""
    del transactional_db
    port = choose_port(0)
    command = [sys.executable, "-m", *process_commands(port)["web"]]
    children: list[Child] = []
    with served_cloud(MiniCloud(), tmp_path, monkeypatch):
        demo_environment["OS_CLIENT_CONFIG_FILE"] = str(tmp_path / "clouds.yaml")
        log = tmp_path / "web.log"
        children.append(start_child("web", command, log=log, env=demo_environment, cwd=ROOT))
        try:
            wait_for(lambda: answers_healthz(port), children)
            yield f"127.0.0.1:{port}"
        finally:
            stop_children(children, ((signal.SIGTERM, 20.0),))


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed (Debian: curl)")
def test_every_command_prints_what_the_page_says(
    served: str, demo_environment: dict[str, str], tmp_path: Path
) -> None:
    chosen = [step for step in steps() if not step.commands.startswith("export")]
    moved = [
        Step(step.commands.replace("first-pass.txt", str(tmp_path / "first-pass.txt")), step.output)
        for step in chosen
    ]
    printed = run_steps(tuple(moved), served, demo_environment)
    wrong = [
        f"$ {step.commands}\n{output}\n" + "\n".join(found)
        for step, output in zip(moved, printed, strict=True)
        if (found := list(differences(step.output, output)))
    ]
    assert wrong == [], "\n\n".join(wrong)
