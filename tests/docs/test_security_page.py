"""Who uses Headroom finds its licence, whom to tell of a hole, and how to look for known ones."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_licence_is_apache_2() -> None:
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert licence.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "heading", ["Supported versions", "Reporting", "What is protected, and from whom"]
)
def test_security_page_has_what_it_must(heading: str) -> None:
    section = SECURITY.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert len(section.split()) > 20


def test_every_lock_that_is_audited_exists_and_has_hashes() -> None:
    commands = re.findall(r"pip-audit .*--require-hashes.*", SECURITY)
    locks = [name for command in commands for name in re.findall(r"-r (\S+)", command)]
    assert "requirements.lock" in locks
    assert all("--hash=sha256:" in (ROOT / name).read_text(encoding="utf-8") for name in locks)


def test_files_of_others_are_listed_with_their_licences() -> None:
    vendored = ROOT / "static" / "vendor"
    listed = (vendored / "README.md").read_text(encoding="utf-8")
    for folder in (path for path in vendored.iterdir() if path.is_dir()):
        assert f"`{folder.name}/`" in listed
        assert (folder / "LICENSE").is_file()


def test_files_of_others_are_what_the_list_says() -> None:
    listed = (ROOT / "static" / "vendor" / "README.md").read_text(encoding="utf-8")
    for script in (ROOT / "static" / "vendor").glob("*/*.js"):
        assert sha256(script.read_bytes()).hexdigest() in listed, script
