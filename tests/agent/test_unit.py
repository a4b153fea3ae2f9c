"""The agent's unit of systemd: understood, and confined (spec hosts, D.10)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from config.launcher.places import this_checkout

UNIT = this_checkout().root / "clients/agent/headroom-host-agent.service"
ANALYZE = shutil.which("systemd-analyze")
MOST_EXPOSURE = 20  # tenths


def test_the_unit_is_understood_and_confined(tmp_path: Path) -> None:
    if ANALYZE is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd): the unit is NOT verified")
    place = tmp_path / "etc/systemd/system"
    place.mkdir(parents=True)
    shutil.copy(UNIT, place)
    program = tmp_path / "opt/headroom-host-agent/bin/headroom-host-agent"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    for line in (
        ["verify", "--recursive-errors=no", str(place / UNIT.name)],
        ["security", "--offline=true", f"--threshold={MOST_EXPOSURE}", "--no-pager", UNIT.name],
    ):
        done = subprocess.run(  # noqa: S603 - ours
            [ANALYZE, f"--root={tmp_path}", *line], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "headroom-host-agent.service:" not in done.stderr.replace(
            "headroom-host-agent.service: Failed to create", ""
        )


def test_the_unit_has_no_port_writes_in_its_folder_and_weighs_little() -> None:
    given = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), re.M))
    assert given["SocketBindDeny"] == "any"
    assert (given["ProtectSystem"], given["StateDirectory"]) == ("strict", "headroom")
    assert "ReadWritePaths" not in given
    assert int(given["CPUWeight"]) < 100
    assert (given["Type"], int(given["WatchdogSec"]) > 60) == ("notify", True)
    assert given["RestartPreventExitStatus"] == "2 3 4"
