from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import pytest

from config.environment import ConfigurationError, Environment, load_environment
from config.listening import guarded, open_addresses

ANYWHERE = "0.0.0.0"  # noqa: S104 - what is refused
CLOSED = {"HEADROOM_SECRET_KEY": "s" * 40, "HEADROOM_AUTH": "noauth", "HEADROOM_DEBUG": "true"}


def bound_to(address: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    link = socket.socket(family, kind)
    link.bind((address, 0))
    return link


def application(environ: Any, start_response: Any) -> list[bytes]:
    del environ
    start_response("200 OK", [])
    return [b"open"]


def status_of(served: Any) -> str:
    seen: list[str] = []
    served({}, lambda status, _headers: seen.append(status))
    return seen[0]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({"HEADROOM_DEBUG": "false"}, "needs HEADROOM_DEBUG", id="in production"),
        pytest.param({"HEADROOM_LISTEN_ADDRESS": ANYWHERE}, "loopback", id="open address"),
        pytest.param({"HEADROOM_LISTEN_ADDRESS": "10.0.0.1"}, "loopback", id="other address"),
    ],
)
def test_noauth_needs_both_debug_and_a_loopback_address(
    variables: dict[str, str], expected: str
) -> None:
    assert load_environment(CLOSED).auth == "noauth"

    with pytest.raises(ConfigurationError, match=expected):
        load_environment(CLOSED | variables)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", []),
        ("127.0.0.53", []),
        (ANYWHERE, [ANYWHERE]),
        ("::1", []),
        ("::", ["::"]),
        ("::ffff:127.0.0.1", []),
    ],
)
def test_the_sockets_of_the_process_are_looked_at(address: str, expected: list[str]) -> None:
    before = open_addresses()
    with closing(bound_to(address)):
        assert open_addresses() == sorted({*before, *expected})
    assert open_addresses() == before


def test_sockets_for_other_purposes_do_not_count() -> None:
    listening = bound_to("127.0.0.1")
    listening.listen()
    with (
        closing(listening),
        closing(socket.create_connection(listening.getsockname())),
        closing(bound_to(ANYWHERE, socket.SOCK_DGRAM)),
        closing(socket.socket()),
    ):
        assert open_addresses() == []


def test_an_open_process_does_not_start_without_authentication() -> None:
    open_server = load_environment(CLOSED)
    token_server = load_environment(CLOSED | {"HEADROOM_AUTH": "token"})
    with closing(bound_to(ANYWHERE)):
        assert status_of(guarded(application, token_server)) == "200 OK"
        with pytest.raises(SystemExit, match="served on loopback addresses only, not on 0"):
            guarded(application, open_server)


def test_a_server_that_binds_later_answers_nothing() -> None:
    environment: Environment = load_environment(CLOSED)
    served = guarded(application, environment)
    with closing(bound_to(ANYWHERE)):
        assert status_of(served) == "403 Forbidden"

    assert status_of(served) == "200 OK"
