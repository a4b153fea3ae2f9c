"""Values that outlive the store (spec hosts, D.8)."""

from __future__ import annotations

from pathlib import Path

import pytest
from headroom_host_agent.provision.kept import FILE, Kept
from headroom_host_agent.provision.stored import StoreError


def test_values_outlive_the_process_and_only_the_owner_may_read_them(tmp_path: Path) -> None:
    Kept(tmp_path).put("a", "1")
    kept = Kept(tmp_path)
    kept.put("b", "2")
    kept.put("a", "3")

    again = Kept(tmp_path)

    assert (again.get("a"), again.get("b"), again.get("c")) == ("3", "2", None)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_a_value_that_is_kept_already_writes_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.put("a", "1")
    before = (tmp_path / FILE).stat().st_ino
    kept.put("a", "1")
    assert (tmp_path / FILE).stat().st_ino == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}'])
def test_what_is_no_file_of_ours_is_looked_at_by_somebody(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(StoreError):
        Kept(tmp_path)


def test_what_cannot_be_written_is_as_before(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    kept = Kept(folder)
    folder.rmdir()
    with pytest.raises(StoreError):
        kept.put("a", "1")
    assert kept.get("a") is None
