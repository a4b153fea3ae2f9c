"""Standard resource classes and traits: what is missing is inserted, nothing is deleted.

Source: spec placement, section 5.1.
"""

from __future__ import annotations

from typing import Any

import os_resource_classes
import os_traits
from django.db import connection, transaction

from placement.models import Change
from placement.models.changes import ALL_ROOTS

INSERT_CLASSES = """
INSERT INTO placement_resource_class (id, name)
SELECT item.id, item.name
  FROM unnest(%s::int[], %s::text[]) AS item (id, name)
    ON CONFLICT DO NOTHING
"""
INSERT_TRAITS = """
INSERT INTO placement_trait (name)
SELECT item.name
  FROM unnest(%s::text[]) AS item (name)
 WHERE NOT EXISTS (SELECT FROM placement_trait t WHERE t.name = item.name)
    ON CONFLICT DO NOTHING
"""


def sync_standards() -> int:
    """Insert standard classes and traits that are missing; safe to run at any time, in parallel.

    Returns:
        How many names were new.
    """
    classes = list(os_resource_classes.STANDARDS)
    traits = sorted(os_traits.get_traits())
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(INSERT_CLASSES, [list(range(len(classes))), classes])
        inserted = int(cursor.rowcount)
        cursor.execute(INSERT_TRAITS, [traits])
        inserted += int(cursor.rowcount)
        if inserted:
            Change.objects.create(root_id=ALL_ROOTS, kind=Change.Kind.NAMES)
    return int(inserted)


def sync_standards_after_migrate(**kwargs: Any) -> None:  # Any: the signal's arguments
    """Run :func:`sync_standards` at the end of ``migrate``, once the tables are there."""
    if Change._meta.db_table in connection.introspection.table_names():  # noqa: SLF001 - documented API
        sync_standards()
