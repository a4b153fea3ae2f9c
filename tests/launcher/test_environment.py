from __future__ import annotations

import importlib.util
import json
import os
import threading
from pathlib import Path

import pytest

from config.launcher import environment
from config.launcher.environment import Requirements, ensure_environment
from config.launcher.places import Checkout
from config.launcher.terminal import LauncherError


class Recorder:
    def __init__(self) -> None:
        self.installed: list[str] = []

    def __call__(self, checkout: Checkout, requirements: Path) -> None:
        self.installed.append(requirements.name)


@pytest.fixture
def pins(checkout: Checkout) -> Checkout:
    (checkout.root / "requirements.lock").write_text("a==1\n")
    (checkout.root / "requirements-dev.lock").write_text("a==1\nb==1\n")
    return checkout


@pytest.fixture(autouse=True)
def _venv_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_works", lambda _: True)


def test_second_start_installs_nothing(pins: Checkout) -> None:
    recorder = Recorder()
    ensure_environment(pins, "runtime", recorder)
    ensure_environment(pins, "runtime", recorder)
    assert recorder.installed == ["requirements.txt"]


def test_development_requirements_satisfy_the_runtime(pins: Checkout) -> None:
    recorder = Recorder()
    for kind in ("dev", "runtime", "dev"):
        ensure_environment(pins, kind, recorder)
    assert recorder.installed == ["requirements-dev.txt"]


def test_runtime_requirements_do_not_satisfy_development(pins: Checkout) -> None:
    recorder = Recorder()
    ensure_environment(pins, "runtime", recorder)
    ensure_environment(pins, "dev", recorder)
    assert recorder.installed == ["requirements.txt", "requirements-dev.txt"]


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        pytest.param("requirements.lock", "runtime", id="the demo's"),
        pytest.param("requirements-dev.lock", "dev", id="the tests'"),
    ],
)
def test_changed_locks_are_installed(pins: Checkout, changed: str, kind: Requirements) -> None:
    ensure_environment(pins, kind, Recorder())
    with (pins.root / changed).open("a") as requirements:
        requirements.write("c==2\n")
    recorder = Recorder()
    ensure_environment(pins, kind, recorder)
    ensure_environment(pins, kind, recorder)
    assert len(recorder.installed) == 1


def test_interrupted_installation_is_repeated(pins: Checkout) -> None:
    def fail(_checkout: Checkout, _requirements: Path) -> None:
        raise LauncherError("pip failed")

    with pytest.raises(LauncherError):
        ensure_environment(pins, "runtime", fail)
    recorder = Recorder()
    ensure_environment(pins, "runtime", recorder)
    assert recorder.installed == ["requirements.txt"]


@pytest.mark.parametrize("stamp", ["", "[]", "{", json.dumps({"runtime": "other"})])
def test_unreadable_or_foreign_stamp_means_install(pins: Checkout, stamp: str) -> None:
    ensure_environment(pins, "runtime", Recorder())
    (pins.venv / "headroom-requirements.json").write_text(stamp)
    recorder = Recorder()
    ensure_environment(pins, "runtime", recorder)
    assert recorder.installed == ["requirements.txt"]


def test_starts_at_once_install_once(pins: Checkout) -> None:
    recorder = Recorder()
    everybody = threading.Barrier(4)

    def start() -> None:
        everybody.wait()
        ensure_environment(pins, "dev", recorder)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.installed == ["requirements-dev.txt"]


def test_a_package_index_that_fails_gets_a_hint(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements = checkout.root / "requirements.txt"
    wanted = f"headroom-has-no-such-requirement==1 --hash=sha256:{'0' * 64}\n"
    requirements.with_suffix(".lock").write_text(wanted)
    for name, setting in {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "",
        "PIP_FIND_LINKS": "",
        "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
        "PIP_RETRIES": "0",
    }.items():
        monkeypatch.setenv(name, setting)
    with pytest.raises(LauncherError, match="PIP_INDEX_URL"):
        environment.pip_install(checkout, requirements)


@pytest.mark.parametrize(
    ("said", "is_hinted"),
    [
        ("ERROR: Could not find a version that satisfies the requirement x==1", True),
        ("ERROR: HTTP error 404\n404 Client Error: Not Found for url: https://x", True),
        ("OSError: HTTPSConnectionPool(host='x', port=443): Max retries exceeded", True),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", True),
        ("ERROR: Could not install packages due to an OSError: No space left on device", False),
        ("error: command 'gcc' failed: No such file or directory", False),
    ],
)
def test_only_what_the_index_did_is_blamed_on_the_index(said: str, is_hinted: bool) -> None:
    assert bool(environment.index_hint(said)) is is_hinted


def test_python_without_venv_is_told_what_to_install(
    pins: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_works", lambda _: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LauncherError, match="apt-get install python3-venv") as caught:
        ensure_environment(pins, "runtime", Recorder())
    assert "\n" not in str(caught.value)
