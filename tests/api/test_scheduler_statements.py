"""How many statements one call of Nova takes, which is most of its time (spec scheduling, 14)."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.api.scheduler_client import NovaClient, in_flight
from tests.factories import make_hosts

pytestmark = pytest.mark.django_db(transaction=True)

MOST_STATEMENTS = 5


def test_call_that_holds_hosts_asks_nothing_twice_and_locks_nothing_in_vain(
    nova: NovaClient,
) -> None:
    make_hosts(3)
    nova.hosts(instance_uuid="00000000-0000-4000-8000-000000000001")
    with CaptureQueriesContext(connection) as captured:
        nova.hosts(instance_uuid="00000000-0000-4000-8000-000000000002")
    assert len(in_flight()) == 6
    statements = [" ".join(query["sql"].split()) for query in captured.captured_queries]
    assert not {"BEGIN", "COMMIT"} & set(statements), "each is a transaction of its own"
    assert len(statements) == len(set(statements)), statements
    assert not [one for one in statements if "ANY('{}'::bigint[])" in one and "FOR " in one]
    assert len(statements) <= MOST_STATEMENTS, statements
