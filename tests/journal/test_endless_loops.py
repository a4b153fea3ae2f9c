"""No function in the database can loop without an end that its text shows."""

from __future__ import annotations

import re

import pytest
from django.db import connection

OURS = """
SELECT p.proname, p.prosrc
  FROM pg_proc p
  JOIN pg_namespace n ON n.oid = p.pronamespace
  JOIN pg_language l ON l.oid = p.prolang
 WHERE n.nspname = current_schema() AND l.lanname = 'plpgsql'
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
"""
COMMENT = re.compile(r"--[^\n]*")
#: ``FOR ... IN ... LOOP`` and ``FOREACH ... LOOP`` end with their range or their rows.
LOOP = re.compile(r"\b(FOR|FOREACH|WHILE|END)\b[^;]*?\bLOOP\b|\bLOOP\b", re.IGNORECASE)


def endless(text: str) -> list[str]:
    """Return the loops of a function that no range, array or query ends."""
    found = LOOP.finditer(COMMENT.sub("", text))
    return [loop[0] for loop in found if (loop[1] or "").upper() not in {"FOR", "FOREACH", "END"}]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("BEGIN LOOP EXIT WHEN x; END LOOP; END", 1),
        ("BEGIN WHILE x LOOP y := 1; END LOOP; END", 1),
        ("BEGIN FOR i IN 1..10 LOOP y := 1; END LOOP; END", 0),
        ("BEGIN FOREACH i IN ARRAY a LOOP y := 1; END LOOP; LOOP x; END LOOP; END", 1),
        ("-- LOOP\nBEGIN END", 0),
    ],
)
def test_what_counts_as_endless(text: str, count: int) -> None:
    assert len(endless(text)) == count


@pytest.mark.django_db
def test_every_loop_of_a_function_has_a_bound() -> None:
    with connection.cursor() as cursor:
        cursor.execute(OURS)
        functions = dict(cursor.fetchall())
    assert any("LOOP" in text for text in functions.values())
    assert {name: endless(text) for name, text in functions.items() if endless(text)} == {}
