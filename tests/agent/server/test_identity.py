"""Who an agent is (spec hosts, D.4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from headroom_host_agent.server.identity import (
    FILE,
    IdentityError,
    load_identity,
    new_identity,
    save_identity,
)


def test_an_identity_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    assert load_identity(tmp_path) is None
    identity = replace(new_identity(), host_id="h", kid="k", fence_epoch=3)

    save_identity(tmp_path, identity)

    assert load_identity(tmp_path) == identity
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert len(identity.public_key) == 32


def test_each_identity_has_a_key_of_its_own() -> None:
    assert new_identity().public_key != new_identity().public_key


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"seed": "zz"}', '{"seed": "00"}', '{"seed": 1}', '{"other": 1}']
)
def test_a_file_that_is_no_identity_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / FILE
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)

    with pytest.raises(IdentityError) as error:
        load_identity(tmp_path)
    assert "zz" not in str(error.value)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    save_identity(tmp_path, new_identity())
    (tmp_path / FILE).chmod(0o640)

    with pytest.raises(IdentityError, match="by others"):
        load_identity(tmp_path)


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IdentityError):
        save_identity(tmp_path / "none", new_identity())
