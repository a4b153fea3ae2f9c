"""One consumer under two spellings: refused at once, and nothing goes on in the database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import connection

from config.launcher.processes import wait_until
from tests.e2e.processes import ADMIN, ALONE, PATIENCE_SECONDS, Answer, WebServer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
VERSION = {"OpenStack-API-Version": "placement 1.30"}


@pytest.fixture
def web(transactional_db: None, tmp_path: Path) -> Iterator[WebServer]:
    """A web server with a caller who may write to Placement, the reshaper too."""
    del transactional_db
    tokens = [{"token": ADMIN, "name": "nova", "roles": ["admin", "service"]}]
    overrides = {"HEADROOM_TOKENS": json.dumps(tokens), **ALONE}
    with WebServer(directory=tmp_path, overrides=overrides) as server:
        yield server


def ask(web: WebServer, method: str, path: str, body: object = None) -> Answer:
    return web.send(method, f"/placement{path}", body, headers=VERSION)


def busy_sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'"
        )
        return int((cursor.fetchone() or (0,))[0])


def test_consumer_in_lower_and_upper_case_is_refused_and_nothing_spins(web: WebServer) -> None:
    provider, consumer = str(uuid4()), str(uuid4())
    made = ask(web, "POST", "/resource_providers", {"name": "h1", "uuid": provider})
    assert made.status == 200, made.body
    allocation = {
        "allocations": {provider: {"resources": {"VCPU": 1}}},
        "project_id": str(uuid4()),
        "user_id": str(uuid4()),
        "consumer_generation": None,
    }
    both = {consumer: allocation, consumer.upper(): allocation}
    inventories = {
        provider: {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}}
    }
    for path, body in (
        ("/allocations", both),
        ("/reshaper", {"inventories": inventories, "allocations": both}),
    ):
        answer = ask(web, "POST", path, body)
        assert answer.status == 400, answer.body
        assert b"more than once" in answer.body
    assert wait_until(lambda: busy_sessions() == 0, PATIENCE_SECONDS)
    assert ask(web, "GET", f"/allocations/{consumer}").json()["allocations"] == {}
