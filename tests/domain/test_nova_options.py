"""Whether Nova waits long enough for a Placement (docs/gateway.md, times of clients)."""

from __future__ import annotations

import pytest

from placement.domain.nova_options import UnreadableError, client_problems

RETRIES = "connect_retries = 2\nstatus_code_retries = 1\n"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (f"[placement]\n{RETRIES}", []),
        (f"[placement]\ntimeout = 61\n{RETRIES}", []),
        (f"[placement]\ntimeout = 61\ntimeout = 60.9\n{RETRIES}", ["timeout = 60.9"]),
        (f"[placement]\ntimeout = 5\n{RETRIES}", ["timeout = 5"]),
        (f"[placement]\ntimeout = soon\n{RETRIES}", ["timeout = soon"]),
        (f"[DEFAULT]\ntimeout = 5\n[placement]\n{RETRIES}", []),
        ("[placement]\nconnect-retries = 3\n", ["status_code_retries = not set"]),
        ("[placement]\nconnect_retries = 0\nstatus_code_retries = 1\n", ["connect_retries = 0"]),
        ("[DEFAULT]\nflag\n%(x)s = 1\n", ["connect_retries = not", "status_code_retries = not"]),
        ("", ["connect_retries = not set", "status_code_retries = not set"]),
    ],
)
def test_what_does_not_fit(text: str, problems: list[str]) -> None:
    found = client_problems(text, longest_seconds=60.9)
    assert len(found) == len(problems), found
    for line, begin in zip(found, problems, strict=True):
        assert line.startswith(begin)


def test_what_is_no_configuration() -> None:
    with pytest.raises(UnreadableError, match=r"\A[^\n]+\Z"):
        client_problems("timeout = 5\n", longest_seconds=60.0)
