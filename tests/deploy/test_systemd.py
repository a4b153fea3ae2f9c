"""Units of systemd: understood, confined, and of the roles that there are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from config.environment import load_environment
from config.launcher.places import this_checkout
from config.launcher.production import ROLES

UNITS = this_checkout().root / "deploy" / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")
#: Of ten; below two it says OK.
MOST_EXPOSURE = 20


def lines(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(encoding="utf-8"), re.M)


def test_every_role_has_a_unit() -> None:
    started = {shlex.split(line)[2] for unit in SERVICES for line in lines(unit, "ExecStart")}
    assert started == {*ROLES, "migrate"}


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.stem)
def test_secrets_come_as_files_and_settings_are_known(unit: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x" * 40)
    given = dict(line.split("=", 1) for line in lines(unit, "Environment"))
    credentials = {line.partition(":")[0] for line in lines(unit, "LoadCredential")}
    files = {name: text for name, text in given.items() if name.endswith("_FILE")}
    assert {text.removeprefix("%d/") for text in files.values()} == credentials
    assert {"DATABASE_URL_FILE", "REDIS_URL_FILE", "HEADROOM_SECRET_KEY_FILE"} <= files.keys()
    ours = {**given, **dict.fromkeys(files, str(secret))}
    load_environment({name: text for name, text in ours.items() if name.startswith("HEADROOM_")})


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.stem)
def test_systemd_understands_and_confines_it(unit: Path, tmp_path: Path) -> None:
    if ANALYZE is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd): units are NOT verified")
    place = tmp_path / "etc/systemd/system"
    place.mkdir(parents=True)
    for path in UNITS.iterdir():
        shutil.copy(path, place)
    for program in ("opt/headroom/run", "bin/kill"):
        (tmp_path / program).parent.mkdir(parents=True)
        (tmp_path / program).touch(mode=0o755)
    name = unit.name.replace("@.", "@soon.")
    for line in (
        ["verify", "--recursive-errors=no", str(place / name)],
        ["security", "--offline=true", f"--threshold={MOST_EXPOSURE}", "--no-pager", name],
    ):
        done = subprocess.run(  # noqa: S603 - ours
            [ANALYZE, f"--root={tmp_path}", *line], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert ".service" not in done.stderr, done.stderr
