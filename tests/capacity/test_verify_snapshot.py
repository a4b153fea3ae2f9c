from __future__ import annotations

from io import StringIO

import orjson
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from capacity.host_table import current_host_table
from hosts.models import Host
from tests.factories import make_host, make_reservation

pytestmark = pytest.mark.django_db(transaction=True)


def test_command_says_that_the_tables_are_equal() -> None:
    make_reservation(make_host("h1"))
    output = StringIO()
    call_command("verify_snapshot", stdout=output)
    assert output.getvalue() == "1 hosts, 1 reservations, 0 refreshes: equal\n"


def test_command_fails_with_the_columns_that_differ() -> None:
    make_host("h1")
    current_host_table()
    with connection.cursor() as cursor:  # a change that leaves no trace, which no service can make
        cursor.execute("ALTER TABLE hosts_host DISABLE TRIGGER USER")
        Host.objects.update(zone="az-z")
        cursor.execute("ALTER TABLE hosts_host ENABLE TRIGGER USER")
    output = StringIO()
    with pytest.raises(CommandError, match="differences: zone 1") as caught:
        call_command("verify_snapshot", "--json", "--seconds=0.01", "--interval=0", stdout=output)
    assert caught.value.returncode == 1
    answer = orjson.loads(output.getvalue())
    assert answer["differences"] == {"zone": 1}
    assert answer["refreshes"] > 0
