from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from config.launcher.places import Checkout, this_checkout


@pytest.fixture
def place(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Return an empty directory with a short path that every user may enter, also for mkdtemp."""
    tmp_path_factory.getbasetemp()  # made where it belongs, before mkdtemp is led elsewhere
    directory = Path(tempfile.mkdtemp(prefix="hl-"))
    directory.chmod(0o755)
    (directory / "tmp").mkdir(mode=0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(directory / "tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def checkout(place: Path) -> Iterator[Checkout]:
    """Return an empty checkout; fails the test that leaves a process of it behind."""
    root = place / "co"
    root.mkdir(mode=0o755)
    made = Checkout(root=root)
    made.local.mkdir(mode=0o755)
    for name in ("requirements-services.txt", "requirements-services.lock"):
        shutil.copy(this_checkout().root / name, root)
    made.python.parent.mkdir(parents=True)
    made.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    made.python.chmod(0o755)
    yield made
    left = processes_of(made)
    for process in left:
        process.kill()
    assert not left, left


def processes_of(checkout: Checkout) -> list[psutil.Process]:
    """Return the live processes that work in a checkout or have it in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue  # dead; whether its new parent has noticed is not our business
            mentions = any(str(checkout.root) in word for word in process.cmdline())
            if process.pid != os.getpid() and (
                mentions or process.cwd().startswith(str(checkout.root))
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
