"""``discover``, alone and in Headroom; what the agent may import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from headroom_host_agent.cli import main

from config.launcher.places import this_checkout
from tests.agent.resources.test_gpu import mdev_host
from tests.agent.trees import host_tree

AGENT = this_checkout().root / "clients/agent"


@pytest.fixture(autouse=True)
def _no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headroom_host_agent.cli.DEFAULT_FILE", tmp_path / "none.toml")


def test_a_host_is_described_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host_tree(tmp_path)
    monkeypatch.setenv("HEADROOM_AGENT__CAPACITY__DISK", "1TiB")

    assert main(["discover", "--json", "--sysroot", str(tmp_path)]) == 0

    report = json.loads(capsys.readouterr().out)
    capacities = [report[kind]["capacity"] for kind in ("cpu", "memory", "disk", "network")]
    assert capacities == [32, 256 * 1024**3, 1024**4, 1_250_000_000]
    assert "gpu" not in report


def test_a_host_is_described_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host_tree(tmp_path)
    config = tmp_path / "agent.toml"
    config.write_text('[capacity]\ndisk = "1TiB"\n[oversubscription]\ncpu = 4\n')

    assert main(["discover", "--sysroot", str(tmp_path), "--config", str(config)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["cpu", "32", "128", "0", "128", "detected"]
    assert "256.0 GiB" in lines[2]
    assert lines[3].split()[:3] == ["disk", "1.0", "TiB"]


def test_files_in_folders_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host_tree(tmp_path)
    for folder in ("base", "volumes"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_bytes(b"x" * 65536)
    monkeypatch.setenv("HEADROOM_AGENT__DIRECTORIES__IMAGES", "/base")
    monkeypatch.setenv("HEADROOM_AGENT__DIRECTORIES__VOLUMES", "/volumes")
    monkeypatch.setenv("HEADROOM_AGENT__DIRECTORIES__OCI_CACHE", "/nowhere")

    assert main(["discover", "--json", "--sysroot", str(tmp_path)]) == 0

    told = json.loads(capsys.readouterr().out)
    breakdown = told["disk_breakdown"]
    assert breakdown["images_bytes"] >= 65536
    assert breakdown["volumes_bytes"] >= 65536
    assert breakdown["oci_cache_bytes"] == 0
    assert told["image_storage"] == {
        "current_bytes": breakdown["images_bytes"],
        "max_bytes": told["disk"]["capacity"] // 5,
    }


def test_gpus_whose_health_is_unreadable_are_not_given_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mdev_host(host_tree(tmp_path), functions=2, used=0)
    (tmp_path / "var/lib/headroom/gpu-health.json").write_text("[]", encoding="utf-8")

    assert main(["discover", "--json", "--sysroot", str(tmp_path)]) == 0

    assert json.loads(capsys.readouterr().out)["gpu"]["allocatable_slots"] == 0


@pytest.mark.parametrize(
    ("assignment", "code"),
    [
        ("HEADROOM_AGENT__CAPACITY__DISK=much", 2),
        ("HEADROOM_AGENT__TYPO=1", 2),
        ("HEADROOM_AGENT__DATA_DIR=/not/there", 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    assignment: str,
    code: int,
) -> None:
    host_tree(tmp_path)
    monkeypatch.setenv(*assignment.split("=", 1))

    assert main(["discover", "--sysroot", str(tmp_path)]) == code

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("headroom-host-agent: ")
    assert said.err.count("\n") == 1


def test_headroom_has_the_agents_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host_tree(tmp_path)

    call_command("host_agent", "discover", "--json", "--sysroot", str(tmp_path))
    assert json.loads(capsys.readouterr().out)["cpu"]["capacity"] == 32

    monkeypatch.setenv("HEADROOM_AGENT__TYPO", "1")
    with pytest.raises(SystemExit) as ended:
        call_command("host_agent", "discover", "--sysroot", str(tmp_path))
    assert ended.value.code == 2
    assert "manage.py host_agent: " in capsys.readouterr().err


def test_the_agent_imports_nothing_of_ours_and_little_else() -> None:
    program = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import headroom_host_agent
before = set(sys.modules)
for module in pkgutil.walk_packages(headroom_host_agent.__path__, "headroom_host_agent."):
    importlib.import_module(module.name)
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
    said = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-I", "-c", program, str(AGENT)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    foreign = {name for name in said.stdout.split() if name not in sys.stdlib_module_names}
    assert foreign - {"_cffi_backend", "_openssl"} == {"headroom_host_agent", "cryptography"}
