"""Nova and Limes at once, each over its own API, on a nearly full zone."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.conf import settings as django_settings
from django.db import connection, transaction
from django.test import override_settings
from pydantic import SecretStr

from capacity.host_table import current_host_table
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import Reservation, ReservationKind
from capacity.nova.pipelines import active_pipelines, ensure_shipped_pipelines
from hosts.models import Host, HostStatus
from journal.conf import AccessToken
from scheduling.columns import CAPACITY_COLUMNS
from tests.api.scheduler_client import SCHEDULER, NovaClient
from tests.commitments.change_requests import change_some
from tests.concurrency.at_once import Sessions
from tests.concurrency.test_change_races import on_own_connection
from tests.concurrency.test_placement_races import assert_every_row_ends
from tests.factories import make_group, make_hosts, make_vm
from tests.ledger import assert_ledger_holds
from tests.process_tables import load_host_table

pytestmark = pytest.mark.django_db(transaction=True)

VM_CLIENTS, SLOT_CLIENTS = 16, 4
PLACEMENTS, CHANGES = 120, 40
HOSTS = 10


@pytest.fixture
def _nova_may_ask() -> Iterator[None]:
    token = AccessToken(
        token=SecretStr(SCHEDULER), name="nova", roles=("cloud_resource_scheduler",)
    )
    environment = django_settings.HEADROOM.model_copy(update={"auth": "token", "tokens": (token,)})
    with override_settings(HEADROOM=environment):
        yield


@pytest.mark.usefixtures("_nova_may_ask")
def test_16_clients_of_the_endpoint_and_4_of_limes_never_book_twice() -> None:
    ensure_shipped_pipelines(request_id="test")
    make_group("hana_1", flavors=[("small", 1024, 1), ("large", 4096, 4)])
    hosts = make_hosts(HOSTS, memory_gib=8, vcpus=8)
    names = tuple(host.name for host in hosts)
    for host in hosts:
        make_vm(host=host, memory_gib=2, vcpus=2)
    nova = NovaClient(names)

    def fire_vm(number: int) -> str:
        rng = random.Random(number)  # noqa: S311 - a reproducible load, nothing secret
        gib = rng.randint(1, 3)
        body = nova.body(
            instance_uuid=f"11111111-0000-4000-8000-{number % 60:012d}", availability_zone="az-a"
        )
        body["spec"]["nova_object.data"]["flavor"]["nova_object.data"].update(
            memory_mb=gib * 1024, vcpus=gib
        )
        answer = nova.post(body)
        if answer.status_code == 503:
            return "busy"
        assert answer.status_code == 200, answer.content
        return "placed" if answer.json()["hosts"] else "no host"

    with Sessions(VM_CLIENTS) as vms, Sessions(SLOT_CLIENTS) as slots:
        placed = vms.map(fire_vm, range(PLACEMENTS))
        changed = slots.map(change_some, range(CHANGES))
        answers = Counter([*placed, *changed])

    assert answers["placed"] > 0
    assert answers["accepted"] > 0
    assert answers["no host"] + answers["rejected"] > 0, answers
    flying = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT)
    assert set(flying.values_list("target_host__name", flat=True)) <= set(names)
    assert_ledger_holds()
    assert rebuild_host_capacity() == 0
    incremental, rebuilt = current_host_table(), load_host_table()
    for column in CAPACITY_COLUMNS:
        for name in rebuilt.names:
            left = getattr(incremental, column)[incremental.row_of[name]]
            assert left == getattr(rebuilt, column)[rebuilt.row_of[name]], (column, name)
    assert_every_row_ends()
    assert active_pipelines()


PLACERS, WITHDRAWN = 6, 24


@pytest.mark.usefixtures("_nova_may_ask")
def test_no_vm_is_sent_to_a_host_that_was_withdrawn_before_its_placement() -> None:
    ensure_shipped_pipelines(request_id="test")
    hosts = make_hosts(WITHDRAWN + 4)
    names = tuple(host.name for host in hosts)
    nova = NovaClient(names)
    withdrawn: dict[str, int] = {}
    answered = threading.Semaphore(0)

    def place_until_done(number: int) -> int:
        placed = 0
        while len(withdrawn) < WITHDRAWN:
            uuid = f"22222222-0000-4000-8000-{number:06d}{placed:06d}"
            answer = nova.post(nova.body(instance_uuid=uuid, availability_zone="az-a"))
            assert answer.status_code in {200, 503}, answer.content
            placed += bool(answer.status_code == 200 and answer.json()["hosts"])
            answered.release()
        return placed

    def withdraw() -> None:
        """Take hosts out of service or give them another name; note the next transaction's id."""
        for number, host in enumerate(hosts[:WITHDRAWN]):
            assert answered.acquire(timeout=60)
            with transaction.atomic():
                row = Host.objects.filter(pk=host.pk)
                if number % 2:
                    row.update(status=HostStatus.DISABLED)
                else:
                    row.update(name=f"{host.name}-renamed", zone="az-z")
            with connection.cursor() as cursor:  # an xmax may be that of one still under way
                cursor.execute("SELECT pg_current_xact_id()::text::bigint")
                withdrawn[host.name] = (cursor.fetchone() or [0])[0]

    with ThreadPoolExecutor(PLACERS + 1) as pool:
        placers = [
            pool.submit(on_own_connection, lambda number=number: place_until_done(number))
            for number in range(PLACERS)
        ]
        pool.submit(on_own_connection, withdraw).result()
        placed = sum(placer.result() for placer in placers)

    assert placed > PLACERS
    flying = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT)
    for host in hosts[:WITHDRAWN]:
        later = flying.filter(target_host=host, changed_xid__gte=withdrawn[host.name])
        assert not later.exists(), host.name
    assert_ledger_holds()
