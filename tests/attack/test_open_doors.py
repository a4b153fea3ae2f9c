"""Everybody may do everything: only where nobody else can come in."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from config.launcher.demo import ADDRESS, choose_port
from config.launcher.processes import wait_until
from tests.e2e.processes import OPEN, PATIENCE_SECONDS, Process

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
ANYWHERE = "0.0.0.0"  # noqa: S104 - what is refused
REFUSED = "noauth is for development"


def answers(port: int) -> bool:
    try:
        with socket.create_connection((ADDRESS, port), timeout=1) as link:
            link.sendall(b"GET /placement/ HTTP/1.0\r\n\r\n")
            return bool(link.recv(1))
    except OSError:
        return False


@pytest.mark.parametrize(
    ("variables", "arguments"),
    [
        pytest.param({"GRANIAN_HOST": ANYWHERE}, [], id="granian's variable"),
        pytest.param({}, ["--host", ANYWHERE], id="an option"),
    ],
)
@pytest.mark.usefixtures("transactional_db")
def test_noauth_does_not_answer_on_an_open_address(
    tmp_path: Path, variables: dict[str, str], arguments: list[str]
) -> None:
    port = choose_port(0)
    web = Process(
        role="web",
        directory=tmp_path,
        arguments=arguments,
        overrides={
            **OPEN, **variables, "GRANIAN_PORT": str(port), "GRANIAN_WORKERS": "1"
        },
    )  # fmt: skip
    web.start()
    try:
        assert wait_until(lambda: answers(port) or REFUSED in web.log(), PATIENCE_SECONDS)

        assert not answers(port), web.log()
    finally:
        web.kill()
