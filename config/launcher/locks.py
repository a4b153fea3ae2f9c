"""Lock files: every package of an environment, with the hashes of the files it may come as.

``requirements*.txt`` say what we want and why; beside each lies a ``.lock`` of the same name, made
from it by ``./run lock``, which is what is installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from config.launcher.places import Checkout
from config.launcher.processes import run_in_foreground
from config.launcher.terminal import LauncherError, step

#: Requirements that are installed into one environment: a lock agrees with those before it.
TOGETHER = (
    "requirements.txt",
    "requirements-tracing.txt",
    "requirements-listener.txt",
    "requirements-dev.txt",
)
#: Requirements by place in the checkout.
REQUIREMENTS = (
    *TOGETHER,
    "requirements-services.txt",
    "requirements-placement-peer.txt",
    "requirements-cloud.txt",
    "tests/peers/requirements-keystone.txt",
    "tests/peers/requirements-focus.txt",
)
OLDEST_PYTHON = "3.11"


def lock_of(requirements: Path) -> Path:
    """Return the lock file of a requirements file."""
    return requirements.with_suffix(".lock")


def install_arguments(requirements: Path) -> list[str]:
    """Return pip's arguments that install just what the lock of a requirements file names."""
    return ["install", "--require-hashes", "--no-deps", "-r", str(lock_of(requirements))]


def entry(lock: Path, requirement: str) -> str:
    """Return the lines of one package, with its hashes.

    Args:
        lock: Lock file.
        requirement: ``name==version``.

    Raises:
        LauncherError: it is not in there.
    """
    text = lock.read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(requirement)}\s(?:.*\n)(?:    .*\n)*", text, re.MULTILINE)
    if found is None:
        raise LauncherError(f"{lock.name} does not lock {requirement}: ./run lock")
    return found[0]


def run_lock(checkout: Checkout, env: Mapping[str, str]) -> int:
    """Make all lock files anew; what is locked already stays while the requirements allow it."""
    for name in REQUIREMENTS:
        command = [str(checkout.python), "-m", "uv", "pip", "compile", "--quiet", "--universal"]
        command += ["--python-version", OLDEST_PYTHON, "--generate-hashes", "--no-header"]
        command += ["--output-file", str(lock_of(Path(name))), name]
        if name in TOGETHER:
            for earlier in TOGETHER[: TOGETHER.index(name)]:
                command += ["--constraint", str(lock_of(Path(earlier)))]
        with step(f"locking {name}"):
            code = run_in_foreground(command, env=env, cwd=checkout.root)
        if code != 0:
            return code
    return 0
