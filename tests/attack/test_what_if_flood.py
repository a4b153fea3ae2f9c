"""What-if questions about ten thousand new hosts flood the server: claims go on beside them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pytest

from tests.api.test_what_if import A, batch
from tests.e2e.processes import ADMIN, WebServer
from tests.factories import make_group, make_group_capacity, make_host

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

PLACEMENT = {"OpenStack-API-Version": "placement 1.39"}
PROVIDER = "11111111-1111-4111-8111-111111111111"
QUESTIONS, CLAIMS, CLAIMERS = 6, 150, 2
HOSTS_ADDED = [{"like": "h1", "count": 1000}] * 10


@pytest.fixture
def web(transactional_db: None, tmp_path: Path) -> Iterator[WebServer]:
    """A web server of one process with a group to commit, and a provider to claim from."""
    del transactional_db
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    for number in range(50):
        make_host(f"h{number}", zone="az-a", memory_gib=10, vcpus=40)
    make_group_capacity("hana_1", "az-a", total_vcpus=80)
    tokens = [{"token": ADMIN, "name": "operator", "roles": ["cloud_resource_admin", "admin"]}]
    overrides = {"GRANIAN_WORKERS": "1", "HEADROOM_TOKENS": json.dumps(tokens)}
    server = WebServer(directory=tmp_path, overrides=overrides)
    server.start()
    made = placement(server, "POST", "resource_providers", {"name": "p", "uuid": PROVIDER})
    assert made.status == 200
    inventory = {"inventories": {"VCPU": {"total": 10_000}}, "resource_provider_generation": 0}
    path = f"resource_providers/{PROVIDER}/inventories"
    assert placement(server, "PUT", path, inventory).status == 200
    yield server
    server.end()


def placement(web: WebServer, method: str, path: str, body: Any) -> Any:
    return web.send(method, f"/placement/{path}", body, headers=PLACEMENT)


def claim(web: WebServer) -> int:
    body = {
        "allocations": {PROVIDER: {"resources": {"VCPU": 1}}},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    return int(placement(web, "PUT", f"allocations/{uuid4()}", body).status)


def seconds_of_claims(web: WebServer) -> float:
    begun = time.monotonic()
    with ThreadPoolExecutor(CLAIMERS) as pool:
        statuses = Counter(pool.map(lambda _: claim(web), range(CLAIMS)))
    assert statuses == {204: CLAIMS}
    return time.monotonic() - begun


def questions(web: WebServer, ends: Event) -> Counter[int]:
    """Ask until told to end; return the statuses of the answers."""
    statuses: Counter[int] = Counter()
    body = {"batch": batch(A, 200), "edit": {"hosts_added": HOSTS_ADDED}}
    while not ends.is_set() or not statuses:
        answer = web.send("POST", "/api/v1/commitments/what-if", body)
        statuses[answer.status] += 1
        if answer.status == 503:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["code"] in {"too_many_computations", "computation_too_long"}
            ends.wait(0.2)  # sooner than it was told
    return statuses


def test_claims_go_on_beside_a_flood_of_questions(web: WebServer) -> None:
    seconds_of_claims(web)  # the first ones load what all need
    alone = seconds_of_claims(web)
    ends = Event()
    with ThreadPoolExecutor(QUESTIONS) as pool:
        asked = [pool.submit(questions, web, ends) for _ in range(QUESTIONS)]
        try:
            beside = [seconds_of_claims(web) for _ in range(3)]
        finally:
            ends.set()
        answered: Counter[int] = sum((one.result() for one in asked), Counter())
    rates = CLAIMS / alone, 3 * CLAIMS / sum(beside)
    print(f"claims/s alone {rates[0]:.0f}, beside {rates[1]:.0f}; {dict(answered)}")  # noqa: T201 - figures
    assert answered.keys() <= {200, 503}
    assert answered[200]
    assert answered[503]
    assert claim(web) == 204
