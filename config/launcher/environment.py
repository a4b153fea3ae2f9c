"""The virtual environment under ``.local/venv``, made once and kept in step with the pins."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from config.launcher.locks import entry, install_arguments, lock_of
from config.launcher.places import Checkout, locked
from config.launcher.terminal import LauncherError, last_lines, say, step

Requirements = Literal["runtime", "dev"]
_FILES: dict[Requirements, str] = {"runtime": "requirements.txt", "dev": "requirements-dev.txt"}
_INDEX_FAILED = re.compile(
    r"No matching distribution|Could not find a version|Could not fetch|Max retries exceeded"
    r"|ConnectionError|ConnectionPool|ReadTimeout|ProxyError|SSLError|CERTIFICATE_VERIFY_FAILED"
    r"|Temporary failure in name resolution|\b[45]\d\d (Client|Server) Error"
)
Installer = Callable[[Checkout, Path], None]


def ensure_environment(
    checkout: Checkout, kind: Requirements, install: Installer | None = None
) -> None:
    """Make the virtual environment and install the requirements, unless that is already done.

    Holds a file lock while it works, so that several starts at once do it once.

    Args:
        checkout: Where.
        kind: ``runtime``, or ``dev`` which contains it.
        install: What installs a requirements file; pip when left out.

    Raises:
        LauncherError: Python cannot make one, or the installation failed.
    """
    if _is_current(checkout, kind):
        return
    with locked(checkout.local / "venv.lock"):
        if _is_current(checkout, kind):
            return
        if not _works(checkout):
            with step("creating the virtual environment"):
                create_environment(checkout, checkout.venv)
        _stamp_path(checkout).unlink(missing_ok=True)
        say(f"installing {kind} requirements, this takes a minute or two the first time")
        with step(f"installing {kind} requirements"):
            (install or pip_install)(checkout, checkout.root / _FILES[kind])
        _write_stamp(checkout, kind)


def fingerprint(checkout: Checkout, kind: Requirements) -> str:
    """Return a hash over the lock file of ``kind`` and Python's minor version."""
    digest = hashlib.sha256(str(sys.version_info[:2]).encode())
    digest.update(lock_of(checkout.root / _FILES[kind]).read_bytes())
    return digest.hexdigest()


def require_environment(checkout: Checkout, kind: Requirements) -> None:
    """Make sure that the virtual environment is what the lock file says; install nothing.

    Raises:
        LauncherError: it is not.
    """
    if not _is_current(checkout, kind):
        raise LauncherError(
            f"{checkout.venv} is missing or not what {lock_of(Path(_FILES[kind]))} says: "
            "./run install"
        )


def _stamp_path(checkout: Checkout) -> Path:
    return checkout.venv / "headroom-requirements.json"


def _is_current(checkout: Checkout, kind: Requirements) -> bool:
    try:
        stamp = json.loads(_stamp_path(checkout).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(stamp, dict) or not os.access(checkout.python, os.X_OK):
        return False
    satisfying: tuple[Requirements, ...] = ("dev",) if kind == "dev" else ("runtime", "dev")
    return any(stamp.get(known) == fingerprint(checkout, known) for known in satisfying)


def _write_stamp(checkout: Checkout, kind: Requirements) -> None:
    stamp = {kind: fingerprint(checkout, kind)}
    fresh = _stamp_path(checkout).with_suffix(".new")
    fresh.write_text(json.dumps(stamp), encoding="utf-8")
    fresh.replace(_stamp_path(checkout))


def _works(checkout: Checkout) -> bool:
    if not checkout.python.exists():
        return False
    probe = [str(checkout.python), "-c", "import sys, pip; print(sys.version_info[:2])"]
    answer = subprocess.run(probe, capture_output=True, text=True, check=False)
    return answer.returncode == 0 and answer.stdout.strip() == str(tuple(sys.version_info[:2]))


def create_environment(checkout: Checkout, directory: Path) -> None:
    """Make an empty virtual environment in place of whatever is there.

    Raises:
        LauncherError: this Python cannot.
    """
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise LauncherError(
            "this Python cannot make virtual environments: install python3-venv "
            "(Debian, Ubuntu: apt-get install python3-venv) and start again"
        )
    shutil.rmtree(directory, ignore_errors=True)
    checkout.local.mkdir(exist_ok=True)
    logged(checkout, [sys.executable, "-m", "venv", str(directory)], "venv.log")


def ensure_own_environment(
    checkout: Checkout, directory: Path, requirements: Path, *, title: str, log_name: str
) -> None:
    """Make an environment of what a lock file names, unless it is there already.

    Raises:
        LauncherError: Python cannot make one, or the installation failed.
    """
    text = str(sys.version_info[:2]).encode() + lock_of(requirements).read_bytes()
    wanted = hashlib.sha256(text).hexdigest()
    stamp = directory / "requirements.sha256"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    with step(title):
        create_environment(checkout, directory)
        python = directory / "bin" / "python"
        run_pip(checkout, python, install_arguments(requirements), log_name)
    stamp.write_text(wanted, encoding="utf-8")


def pip_install(checkout: Checkout, requirements: Path) -> None:
    """Install what a requirements file's lock names into the virtual environment with pip."""
    run_pip(checkout, checkout.python, install_arguments(requirements), "pip.log")


def pip_unpack(checkout: Checkout, requirement: str, target: Path) -> None:
    """Unpack one locked wheel, without its dependencies, into ``target``."""
    lock = lock_of(checkout.root / "requirements-services.txt")
    only = target.with_name(f"{target.name}.lock")
    only.parent.mkdir(parents=True, exist_ok=True)
    only.write_text(entry(lock, requirement), encoding="utf-8")
    options = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--target", str(target)]
    run_pip(checkout, checkout.python, ["install", *options, "-r", str(only)], "pip.log")


def pip(python: Path) -> list[str]:
    """Return the command line of an environment's pip."""
    return [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]


def run_pip(checkout: Checkout, python: Path, arguments: list[str], log_name: str) -> None:
    """Run an environment's pip with its output in a log.

    Raises:
        LauncherError: it failed; with a hint when the package index seems to be the reason.
    """
    try:
        logged(checkout, [*pip(python), *arguments], log_name)
    except LauncherError as error:
        said = (checkout.logs / log_name).read_text(encoding="utf-8", errors="replace")
        raise LauncherError(f"{error}{index_hint(said)}") from None


def index_hint(said: str) -> str:
    """Return what to do when pip's words mean that its package index failed, else nothing."""
    if not _INDEX_FAILED.search(said):
        return ""
    return (
        "\nThe package index did not answer, or does not have what is pinned. Check the network "
        "and the proxy (HTTPS_PROXY),\nor name an index that this machine can reach with "
        "PIP_INDEX_URL, and start again: what is installed already is kept."
    )


def logged(checkout: Checkout, command: list[str], log_name: str) -> None:
    """Run a command with its output in a log.

    Raises:
        LauncherError: it failed; with the last lines of the log.
    """
    log = checkout.logs / log_name
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        code = subprocess.run(
            command, stdout=output, stderr=subprocess.STDOUT, check=False, cwd=checkout.root
        ).returncode
    if code != 0:
        raise LauncherError(f"{' '.join(command[1:4])} failed ({log}):\n{last_lines(log)}")
