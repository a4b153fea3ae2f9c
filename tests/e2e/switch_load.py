"""Writes that go on while a database switches over, and what each client knows of its own.

Every write has a new id. What was answered well must be there afterwards; what was answered 503
may be there or not.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from cloud.postgres import OwnPostgres
from commitments.e2e.bodies import CONFIRMED, Change, ProjectChanges, change_body
from tests.api.scheduler_client import NovaClient
from tests.e2e.processes import ADMIN, Answer, WebServer, manage

ROLES = ["admin", "cloud_resource_admin", "cloud_resource_scheduler"]
TOKENS = json.dumps([{"token": ADMIN, "name": "operator", "roles": ROLES}])
VERSION = {"OpenStack-API-Version": "placement 1.39"}
HOSTS = ("h1", "h2", "h3", "h4")
PROVIDERS = tuple(f"11111111-1111-4111-8111-{number:012}" for number in range(8))
CLAIMED = {"VCPU": 2}
#: Room for more than any load of a test writes.
SEED = f"""
from tests.factories import make_group, make_hosts
from tests.placement.rows import make_provider
from uuid import UUID
make_group("g", flavors=[("g-small", 16384, 4), ("g-large", 32768, 8)])
make_hosts({len(HOSTS)}, zone="az-a", memory_gib=1 << 20, vcpus=1 << 18)
for number, uuid in enumerate({PROVIDERS!r}):
    make_provider(f"p{{number}}", inventories={{"VCPU": 1 << 24}}, uuid=UUID(uuid))
"""
LEDGER = "from tests.ledger import assert_ledger_holds; assert_ledger_holds(); print('holds')"
RESOURCE = "hw_version_g_ram"
KINDS = {
    "claim": "SELECT uuid::text FROM placement_consumer",
    "change": "SELECT commitment_uuid FROM commitments_commitment WHERE state = 'confirmed'",
    "boot": "SELECT vm_uuid FROM capacity_reservation WHERE kind = 'in_flight'",
}
#: Before it asks again after a 503, a client of ours waits so long: it is to find the moment when
#: the database is back.
PAUSE_SECONDS = 0.05
PATIENCE_SECONDS = 120.0
GOOD = {200, 204}
STALE = 409


def seed(directory: Path, server: OwnPostgres) -> None:
    """Fill a migrated database with hosts, a flavor group and providers."""
    manage(directory, "shell", "-c", SEED, DATABASE_URL=server.url)


def assert_ledger_holds_on(directory: Path, server: OwnPostgres) -> None:
    """Check all sums of a server's database."""
    assert "holds" in manage(directory, "shell", "-c", LEDGER, DATABASE_URL=server.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A write and its answer.

    Attributes:
        began_at: Monotonic seconds.
        retry_after: Of a 503; empty if it did not say.
    """

    kind: str
    name: str
    status: int
    began_at: float
    ended_at: float
    retry_after: str = ""


@dataclass(slots=True)
class SwitchLoad:
    """Clients that claim, commit and ask where to boot, one write after another, until stopped."""

    web: WebServer
    clients: dict[str, int] = field(default_factory=lambda: {"claim": 4, "change": 1, "boot": 2})
    sent: list[Sent] = field(default_factory=list, init=False)
    failures: list[BaseException] = field(default_factory=list, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _went_on: threading.Condition = field(default_factory=threading.Condition, init=False)

    def __enter__(self) -> SwitchLoad:
        writers: dict[str, Callable[[], Iterator[tuple[str, Answer]]]] = {
            "claim": self._claims,
            "change": self._changes,
            "boot": self._boots,
        }
        for kind, count in self.clients.items():
            for _ in range(count):
                self._threads.append(
                    threading.Thread(target=self._run, args=(kind, writers[kind]()))
                )
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Begin no more writes, and wait for those under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def go_on(self, writes: int = 10) -> None:
        """Wait until this many more writes of each kind were answered well."""
        begun = {kind: len(self.acknowledged(kind)) for kind in self.clients}

        def is_enough() -> bool:
            return bool(self.failures) or all(
                len(self.acknowledged(kind)) >= count + writes for kind, count in begun.items()
            )

        with self._went_on:
            assert self._went_on.wait_for(is_enough, PATIENCE_SECONDS), self.statuses
        assert not self.failures, self.failures

    def meet_outage(self) -> None:
        """Wait until a write was answered 503; others may wait for a database meanwhile."""

        def is_met() -> bool:
            return bool(self.failures) or any(one.status == 503 for one in list(self.sent))

        with self._went_on:
            assert self._went_on.wait_for(is_met, PATIENCE_SECONDS), self.statuses

    @property
    def statuses(self) -> Counter[tuple[str, int]]:
        """How often each kind got which status."""
        return Counter((one.kind, one.status) for one in list(self.sent))

    def acknowledged(self, kind: str) -> set[str]:
        """Return the ids of writes that were answered well."""
        return {one.name for one in list(self.sent) if one.kind == kind and one.status in GOOD}

    def refused(self, kind: str) -> set[str]:
        """Return the ids of writes that were not: they may have been done."""
        return {one.name for one in list(self.sent) if one.kind == kind and one.status not in GOOD}

    def outage_seconds(self) -> float:
        """Return how long it took from the first write answered 503 to the last one's answer."""
        away = [one for one in self.sent if one.status == 503]
        if not away:
            return 0.0
        return max(one.ended_at for one in away) - min(one.began_at for one in away)

    def slowest_seconds(self) -> float:
        """Return how long the slowest answer took."""
        return max(one.ended_at - one.began_at for one in self.sent)

    def assert_only_told_to_come_back(self) -> None:
        """Check that each write was done, or told to come back later."""
        odd = {
            key: count
            for key, count in self.statuses.items()
            if key[1] not in {*GOOD, 503} and key != ("change", STALE)
        }
        assert not odd, odd
        told = {one.retry_after for one in self.sent if one.status == 503}
        assert all(text.isdigit() and int(text) >= 1 for text in told), told

    def assert_all_kept_by(self, server: OwnPostgres) -> None:
        """Compare what a server has with what clients know: all that was answered, no other."""
        with server.connect() as link:
            for kind in self.clients:
                found = {str(name) for (name,) in link.execute(KINDS[kind].encode()).fetchall()}
                lost = self.acknowledged(kind) - found
                assert not lost, (kind, len(lost), sorted(lost)[:3])
                others = found - self.acknowledged(kind) - self.refused(kind)
                assert not others, (kind, sorted(others)[:3])

    def _run(self, kind: str, writes: Iterator[tuple[str, Answer]]) -> None:
        try:
            while not self._stop.is_set():
                began_at = time.monotonic()
                name, answer = next(writes)
                self._note(kind, name, answer, began_at)
                if answer.status not in GOOD:
                    self._stop.wait(PAUSE_SECONDS)
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.failures.append(error)
            with self._went_on:
                self._went_on.notify_all()

    def _note(self, kind: str, name: str, answer: Answer, began_at: float) -> None:
        with self._went_on:
            self.sent.append(
                Sent(
                    kind=kind,
                    name=name,
                    status=answer.status,
                    began_at=began_at,
                    ended_at=time.monotonic(),
                    retry_after=answer.headers.get("retry-after", ""),
                )
            )
            self._went_on.notify_all()

    def _claims(self) -> Iterator[tuple[str, Answer]]:
        number = 0
        while True:
            number, name = number + 1, str(uuid4())
            body = {
                "allocations": {PROVIDERS[number % len(PROVIDERS)]: {"resources": CLAIMED}},
                "project_id": "project",
                "user_id": "user",
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            }
            path = f"/placement/allocations/{name}"
            yield name, self.web.send("PUT", path, body, headers=VERSION)

    def _boots(self) -> Iterator[tuple[str, Answer]]:
        nova = NovaClient(HOSTS)
        while True:
            name = str(uuid4())
            body = nova.body(instance_uuid=name)
            yield name, self.web.send("POST", "/scheduler/nova/external", body)

    def _changes(self) -> Iterator[tuple[str, Answer]]:
        version = 0
        while True:
            name = str(uuid4())
            answer = self.web.send(
                "POST", "/commitments/v1/change-commitments", commitment(name, version)
            )
            if answer.status == STALE:
                info = self.web.send("GET", "/commitments/v1/info")
                version = int(info.json()["version"]) if info.status in GOOD else version
            if answer.status in GOOD and answer.json():
                raise AssertionError(answer.body)
            yield name, answer


def commitment(name: str, version: int) -> object:
    """Return the body of a request that asks for one new commitment."""
    change = Change(uuid=name, old_status=None, new_status=CONFIRMED, amount_units=16)
    project = ProjectChanges(
        project_id=str(uuid4()),
        changes=(change,),
        confirmed_before_units=0,
        confirmed_after_units=16,
    )
    return change_body(
        [project],
        zone="az-a",
        resource=RESOURCE,
        info_version=version,
        expires_at=datetime.now(UTC) + timedelta(days=365),
    )


def used(server: OwnPostgres) -> dict[str, int]:
    """Return what is used of each provider, as a server's rows of allocations say."""
    with server.connect() as link:
        rows = link.execute(
            """
            SELECT provider.uuid::text, sum(held.used) FROM placement_allocation AS held
              JOIN placement_provider AS provider ON provider.id = held.provider_id
             GROUP BY 1
            """
        ).fetchall()
    return {str(uuid): int(str(total)) for uuid, total in rows}


def shown_used(web: WebServer) -> dict[str, int]:
    """Return what candidates say is used of each provider; empty while they do not answer."""
    path = "/placement/allocation_candidates?resources=VCPU:1"
    try:
        answer = web.send("GET", path, headers=VERSION)
    except (OSError, http.client.HTTPException):
        return {}
    if answer.status not in GOOD:
        return {}
    summaries = answer.json()["provider_summaries"]
    return {
        uuid: found["resources"]["VCPU"]["used"]
        for uuid, found in summaries.items()
        if found["resources"]["VCPU"]["used"]
    }
