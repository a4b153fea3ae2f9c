"""What-if questions about ten thousand new hosts flood the server: claims go on beside them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from config.launcher.processes import wait_until
from config.server.door import LATE_SECONDS
from journal.heavy import heavy_question, most_at_once
from tests.api.test_what_if import A, batch
from tests.attack.claims import (
    OPERATOR,
    claims,
    descendants_of,
    make_providers,
    placement,
    rates_of,
)
from tests.attack.load import Asked, load, request_of
from tests.e2e.processes import (
    ADMIN,
    PATIENCE_SECONDS,
    WebServer,
    wait_until_database_is_ours,
)
from tests.factories import make_group, make_group_capacity, make_host

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

PATH = "/api/v1/commitments/what-if"
QUESTIONS = 10
MANY = 24  # more than there are threads
HOSTS_ADDED = [{"like": "h1", "count": 1000}] * 10


@pytest.fixture
def web(transactional_db: None, tmp_path: Path) -> Iterator[WebServer]:
    """A web server with a group to commit, and a provider to claim from."""
    del transactional_db
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    for number in range(50):
        make_host(f"h{number}", zone="az-a", memory_gib=10, vcpus=40)
    make_group_capacity("hana_1", "az-a", total_vcpus=80)
    server = WebServer(directory=tmp_path, overrides={"HEADROOM_TOKENS": json.dumps(OPERATOR)})
    server.start()
    make_providers(server)
    yield server
    server.end()
    wait_until_database_is_ours()


def what_ifs(web: WebServer, *, is_patient: bool) -> Asked:
    body = {"batch": batch(A, 200), "edit": {"hosts_added": HOSTS_ADDED}}
    fields = {"X-Auth-Token": ADMIN, "Content-Type": "application/json"}
    return Asked(
        port=web.port,
        connections=QUESTIONS,
        request=request_of("POST", PATH, fields, json.dumps(body).encode()),
        is_patient=is_patient,
    )


def test_refusal_is_kept_for_a_while_and_holds_up_nobody(web: WebServer) -> None:
    begun = time.monotonic()
    with heavy_question(), ThreadPoolExecutor(MANY) as pool:
        refused = [pool.submit(web.send, "POST", PATH, {"batch": batch(A, 1)}) for _ in range(MANY)]
        assert placement(web, "GET", "resource_providers").status == 200
        for answer in [one.result(PATIENCE_SECONDS) for one in refused]:
            assert (answer.status, answer.json()["code"]) == (503, "too_many_computations")
            assert int(answer.headers["retry-after"]) >= 1
    assert time.monotonic() - begun >= LATE_SECONDS


@dataclass(kw_only=True)
class Flood:
    """Questions from many; the rest is of its last seconds."""

    web: WebServer
    is_patient: bool
    computing: int = 0
    asked: Counter[int] = field(default_factory=Counter)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with load(what_ifs(self.web, is_patient=self.is_patient)) as asking:
            assert wait_until(lambda: asking.answered(503) > 0, PATIENCE_SECONDS)
            yield
            self.computing = len(descendants_of(self.web))
            self.asked = asking.statuses()
        assert wait_until(lambda: not descendants_of(self.web), PATIENCE_SECONDS)


@pytest.mark.parametrize("is_patient", [True, False], ids=["patient", "impatient"])
def test_claims_go_on_beside_a_flood_of_questions(web: WebServer, is_patient: bool) -> None:
    flood = Flood(web=web, is_patient=is_patient)
    with load(claims(web)) as claiming:
        rates = rates_of(claiming, flood)
        assert claiming.statuses().keys() == {204}
    kind = "patient" if is_patient else "impatient"
    rates.tell(f"a flood of {kind} questions", answered=dict(flood.asked))
    assert flood.asked.keys() <= {200, 503}
    assert flood.computing <= most_at_once()

    def is_answered() -> bool:
        """Questions that the server had taken before their askers left may still have the place."""
        return web.send("POST", PATH, {"batch": batch(A, 1)}).status == 200

    assert wait_until(is_answered, PATIENCE_SECONDS)
