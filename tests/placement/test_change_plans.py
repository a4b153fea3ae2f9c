"""How the server plans the question what changed."""

from __future__ import annotations

import pytest
from django.db import connection

from core.prepared import _numbered
from placement.models import Change
from placement.selectors.snapshot.changes import CHANGES, CHANGES_OF_RUNNING

pytestmark = pytest.mark.django_db

ROWS = 50_000
#: The server tries so many plans for single requests before it trusts the one for all.
TRIED = 5
ASKED = 40


@pytest.mark.parametrize(("sql", "places"), [(CHANGES, "1"), (CHANGES_OF_RUNNING, "1, '{2}'")])
def test_a_log_that_grows_does_not_have_each_request_planned(sql: str, places: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE placement_change")
        cursor.execute(f"PREPARE asked AS {_numbered(sql)[0].decode()}")
        for _ in range(2 * TRIED):
            cursor.execute(f"EXECUTE asked ({places})")
        cursor.execute(
            "INSERT INTO placement_change (xid, root_id, kind)"
            " SELECT number, number, %s FROM generate_series(1, %s) AS number",
            [Change.Kind.TREE, ROWS],
        )
        cursor.execute("ANALYZE placement_change")
        for _ in range(ASKED):
            cursor.execute(f"EXECUTE asked ({ROWS}{places[1:]})")
        cursor.execute("SELECT custom_plans FROM pg_prepared_statements WHERE name = 'asked'")
        ((planned,),) = cursor.fetchall()
        cursor.execute("DEALLOCATE asked")
    assert planned < TRIED + ASKED / 2
