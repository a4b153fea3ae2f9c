from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command

from config.environment import ConfigurationError, Environment, load_environment
from journal.auth import Credentials, TokenAuthenticator

BASE = {"HEADROOM_SECRET_KEY": "s" * 40}
SECRET = "a-very-secret-token-0123"  # noqa: S105 - of nothing
PLAIN = {"HEADROOM_TOKENS": json.dumps([{"token": SECRET, "name": "limes"}])}


def made(*arguments: str) -> dict[str, str]:
    out = io.StringIO()
    call_command("make_token", *arguments, stdout=out)
    return dict(line.split(": ", 1) for line in out.getvalue().splitlines())


def test_a_made_token_is_known_by_its_entry(tmp_path: Path) -> None:
    said = made("limes", "--role", "a", "--role", "b", "--project-id", "p")
    path = tmp_path / "tokens.json"
    path.write_text(f"[{said['entry']}]")

    tokens = load_environment({**BASE, "HEADROOM_TOKENS_FILE": str(path)}).read_tokens(path)

    assert said["token"] not in said["entry"]
    actor = TokenAuthenticator(tokens=tokens).authenticate(Credentials(token=said["token"]))
    assert (actor.name, actor.roles, actor.project_id) == ("limes", frozenset("ab"), "p")
    assert made("limes")["token"] != made("limes")["token"]


def test_a_token_in_use_gets_its_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{SECRET}\n"))
    said = made("limes", "--existing")
    path = tmp_path / "tokens.json"
    path.write_text(f"[{said['entry']}]")

    assert "token" not in said
    tokens = Environment.read_tokens(path)
    assert TokenAuthenticator(tokens=tokens).authenticate(Credentials(token=SECRET)).name == "limes"


def test_a_short_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("short\n"))
    with pytest.raises(CommandError, match="16 characters"):
        made("limes", "--existing")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="no file"),
        pytest.param("{", id="no JSON"),
        pytest.param("{}", id="no list"),
        pytest.param(json.dumps([{"name": "x"}]), id="no token"),
        pytest.param(json.dumps([{"token": "short", "name": "x"}]), id="short token"),
        pytest.param(
            json.dumps([{"token": SECRET, "token_sha256": "0" * 64, "name": "x"}]), id="both"
        ),
        pytest.param(json.dumps([{"token_sha256": SECRET, "name": "x"}]), id="no hash"),
        pytest.param(json.dumps([{"token": SECRET, "name": "x", "role": "y"}]), id="unknown key"),
    ],
)
def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokens.json"
    if content is not None:
        path.write_text(content)

    with pytest.raises(ConfigurationError) as stopped:
        load_environment({**BASE, "HEADROOM_TOKENS_FILE": str(path)})

    message = str(stopped.value)
    assert message.startswith("HEADROOM_TOKENS_FILE: ")
    assert SECRET not in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param(PLAIN, ["journal.W001"], id="readable in production"),
        pytest.param({**PLAIN, "HEADROOM_DEBUG": "true"}, [], id="readable in development"),
        pytest.param({}, [], id="none"),
        pytest.param(
            {"HEADROOM_TOKENS": json.dumps([{"token_sha256": "0" * 64, "name": "x"}])},
            [],
            id="hashed",
        ),
    ],
)
def test_readable_tokens_of_production_are_warned_of(
    settings: Any, variables: dict[str, str], expected: list[str]
) -> None:
    settings.HEADROOM = load_environment(BASE | variables)

    found = [message for message in run_checks() if message.id == "journal.W001"]

    assert [message.id for message in found] == expected
    assert all(SECRET not in message.msg and "limes" in message.msg for message in found)
