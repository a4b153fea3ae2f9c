"""The web server is killed at any moment: every request is there as a whole, or not at all."""

from __future__ import annotations

import http.client
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import transaction

from capacity.models import HostCapacity, Reservation
from commitments.models import Commitment, CommitmentEvent
from config.launcher.processes import wait_until
from scheduling.resources import GIB
from tests.e2e.processes import WebServer, someone_waits_for_a_lock, wait_until_database_is_ours
from tests.factories import make_group, make_hosts
from tests.ledger import assert_ledger_holds, fingerprint

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

CHANGE = "/commitments/v1/change-commitments"
RAM = "hw_version_hana_1_ram"
ROUNDS = 6
CLIENTS = 4
SEED = 20261121
PATIENCE_SECONDS = 30.0
LIVE = "confirmed"
States = dict[str, tuple[str, int] | None]


def entry(uuid: str, old: str | None, new: str | None, amount: int) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "oldStatus": old,
        "newStatus": new,
        "amount": amount,
        "expiresAt": "2036-01-01T00:00:00Z",
    }


def body(version: int, project: str, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def total(key: str) -> int:
        return sum(item["amount"] for item in entries if item[key] == "confirmed")

    changeset = {
        "totalConfirmedBefore": total("oldStatus"),
        "totalConfirmedAfter": total("newStatus"),
        "totalGuaranteedBefore": 0,
        "totalGuaranteedAfter": 0,
        "commitments": list(entries),
    }
    return {
        "az": "az-a",
        "dryRun": False,
        "infoVersion": version,
        "byProject": {project: {"byResource": {RAM: changeset}}},
    }


@dataclass(slots=True)
class Limes:
    """A client with commitments of its own, so that its requests do not depend on others'.

    ``known`` is what it must believe from the answers; ``open_request`` is what the request that
    was not answered would have made of it.
    """

    number: int
    rng: random.Random
    known: States = field(default_factory=dict)
    open_request: States = field(default_factory=dict)
    accepted: int = 0
    made: int = 0

    def fire_until_the_server_dies(
        self, web: WebServer, version: int, answered: threading.Event
    ) -> None:
        while True:
            entries = self._next_entries()
            self.open_request = self._states(entries)
            try:
                answer = web.send("POST", CHANGE, body(version, f"p-{self.number}", entries))
            except (OSError, http.client.HTTPException):
                return
            answered.set()
            assert answer.status in {200, 503}, answer
            if answer.status == 200 and answer.json() == {}:
                self.accepted += 1
                self.known |= self.open_request
            else:
                self.known |= dict.fromkeys(self.open_request.keys() - self.known.keys())
            self.open_request = {}

    def _next_entries(self) -> list[dict[str, Any]]:
        held = {uuid: state for uuid, state in self.known.items() if state and state[0] == LIVE}
        ended = self.rng.sample(sorted(held), k=min(len(held), self.rng.randint(0, 3)))
        final = self.rng.choice(["superseded", None])
        changes = [entry(uuid, LIVE, final, held[uuid][1]) for uuid in ended]
        for _ in range(self.rng.randint(1, 3)):
            self.made += 1
            uuid = f"{self.number:08d}-0000-4000-8000-{self.made:012d}"
            changes.append(entry(uuid, None, LIVE, self.rng.randint(1, 6)))
        return changes

    @staticmethod
    def _states(entries: Sequence[dict[str, Any]]) -> States:
        return {
            item["uuid"]: (item["newStatus"], item["amount"]) if item["newStatus"] else None
            for item in entries
        }

    def check(self) -> bool:
        """Compare the rows with what was heard; return whether a request was not answered."""
        was_cut_off = bool(self.open_request)
        without = dict.fromkeys(self.open_request) | self.known
        found = stored(without)
        assert found in (without, without | self.open_request)
        self.known, self.open_request = found, {}
        return was_cut_off


def stored(uuids: States) -> States:
    rows = Commitment.objects.filter(commitment_uuid__in=list(uuids))
    found = {row.commitment_uuid: (row.state, row.requested_amount // GIB) for row in rows}
    return {uuid: found.get(uuid) for uuid in uuids}


def test_server_killed_while_clients_fire_leaves_whole_requests(web: WebServer) -> None:
    make_group("hana_1", flavors=[("small", 1024, 1), ("large", 4096, 4)])
    make_hosts(8, memory_gib=16, vcpus=16)
    rng = random.Random(SEED)  # noqa: S311 - reproducible, nothing secret
    clients = [Limes(number, random.Random(SEED + number)) for number in range(CLIENTS)]  # noqa: S311
    cut_off = 0
    for number in range(ROUNDS):
        if number:
            web.start()
        version = web.send("GET", "/commitments/v1/info").json()["version"]
        answered = threading.Event()
        with ThreadPoolExecutor(CLIENTS) as pool:
            runs = [
                pool.submit(client.fire_until_the_server_dies, web, version, answered)
                for client in clients
            ]
            assert answered.wait(PATIENCE_SECONDS)
            threading.Event().wait(rng.uniform(0.0, 0.7))
            web.kill()
        for run in runs:
            run.result()
        wait_until_database_is_ours()
        cut_off += sum(client.check() for client in clients)
        assert_ledger_holds()
    assert cut_off >= ROUNDS
    assert sum(client.accepted for client in clients) > ROUNDS
    assert Commitment.objects.filter(ready_reason="Accepted").exists()


def test_server_killed_inside_the_transaction_leaves_nothing(web: WebServer) -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(2, memory_gib=8, vcpus=8)
    version = web.send("GET", "/commitments/v1/info").json()["version"]
    before = fingerprint()
    request = body(version, "alpha", [entry("aaaaaaaa-0000", None, "confirmed", 5)])
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert len(HostCapacity.objects.select_for_update()) == 2
            run = pool.submit(web.send, "POST", CHANGE, request)
            assert wait_until(someone_waits_for_a_lock, PATIENCE_SECONDS)
            web.kill()
        with pytest.raises((OSError, http.client.HTTPException)):
            run.result(PATIENCE_SECONDS)
    wait_until_database_is_ours()
    assert fingerprint() == before
    assert not Reservation.objects.exists()
    assert not CommitmentEvent.objects.exists()
    web.start()
    answer = web.send("POST", CHANGE, request)
    assert (answer.status, answer.json()) == (200, {})
    assert Reservation.objects.count() == 5
    assert_ledger_holds()
