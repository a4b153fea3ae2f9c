"""What is attacked is up."""

from __future__ import annotations

import pytest

from tests.e2e.processes import WebServer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


def test_server_on_a_database_server_of_its_own_answers(web_on_postgres: WebServer) -> None:
    assert web_on_postgres.send("GET", "/placement").status == 200
