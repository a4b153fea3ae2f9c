from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from config.environment import Environment
from journal.auth import Credentials, TokenAuthenticator, Unauthenticated
from journal.conf import AccessToken
from journal.static_tokens import TokenFile, current_tokens

OLD, NEW = "old-token-0123456789", "new-token-0123456789"


def entry(token: str, name: str = "limes", **fields: object) -> dict[str, object]:
    return {"token_sha256": sha256(token.encode()).hexdigest(), "name": name, **fields}


def write(path: Path, *entries: dict[str, object]) -> Path:
    """Write a file as operators do: beside the old one, and then in its place."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(entries))
    fresh.replace(path)
    return path


def holder(tokens: Sequence[AccessToken], token: str) -> str | None:
    try:
        return TokenAuthenticator(tokens=tokens).authenticate(Credentials(token=token)).name
    except Unauthenticated:
        return None


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TestRotation:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return write(tmp_path / "tokens.json", entry(OLD))

    @pytest.fixture
    def file(self, path: Path, clock: Clock) -> TokenFile:
        return TokenFile(path, Environment.read_tokens, look_seconds=1, clock=clock)

    def test_old_and_new_are_valid_until_the_old_one_is_taken_out(
        self, file: TokenFile, path: Path, clock: Clock
    ) -> None:
        seen = []
        for entries in ([entry(OLD)], [entry(OLD), entry(NEW)], [entry(NEW)], []):
            write(path, *entries)
            clock.now += 1
            seen.append((holder(file.tokens(), OLD), holder(file.tokens(), NEW)))

        assert seen == [("limes", None), ("limes", "limes"), (None, "limes"), (None, None)]

    def test_the_file_is_looked_at_once_a_second(
        self, file: TokenFile, path: Path, clock: Clock
    ) -> None:
        write(path, entry(NEW))
        clock.now += 0.9
        assert holder(file.tokens(), OLD) == "limes"
        clock.now += 0.1
        assert holder(file.tokens(), OLD) is None

    def test_a_replaced_file_of_the_same_size_and_time_is_another(
        self, file: TokenFile, path: Path, clock: Clock
    ) -> None:
        before = path.stat()
        write(path, entry(NEW))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
        clock.now += 1

        assert holder(file.tokens(), NEW) == "limes"

    @pytest.mark.parametrize("content", [None, "", "{", "{}", '[{"name": "x"}]', "\udc80"])
    def test_a_file_that_cannot_be_used_changes_nothing(
        self, file: TokenFile, path: Path, clock: Clock, content: str | None
    ) -> None:
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content.encode("utf-8", "surrogateescape"))
        clock.now += 1
        assert holder(file.tokens(), OLD) == "limes"

        write(path, entry(NEW))
        clock.now += 1
        assert holder(file.tokens(), OLD) is None


def test_tokens_of_variable_and_file_are_both_valid(settings: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "tokens.json", entry(NEW, "nova", roles=["service"], project_id="p"))
    plain = AccessToken(token=SecretStr(OLD), name="limes")
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={"auth": "token", "tokens": (plain,), "tokens_file": path}
    )

    assert (holder(current_tokens(), OLD), holder(current_tokens(), NEW)) == ("limes", "nova")
    actor = TokenAuthenticator(tokens=current_tokens()).authenticate(Credentials(token=NEW))
    assert (actor.roles, actor.project_id) == (frozenset({"service"}), "p")


def test_the_hash_itself_is_no_token() -> None:
    known = AccessToken.model_validate(entry(OLD))

    assert holder([known], OLD) == "limes"
    assert holder([known], known.token_sha256) is None
    assert holder([known], "") is None
