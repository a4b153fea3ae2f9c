"""Removing rows that the files do not hold (spec region-file, ``--prune``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import models

from hosts.region.run import ImportRun

IN_USE = "in_use"


def protecting_fields(
    model: type[models.Model],
) -> Iterator[models.ForeignKey[Any, Any]]:
    """Yield the foreign keys, of whatever app, that forbid deleting a row of ``model``."""
    for relation in model._meta.get_fields(include_hidden=True):  # noqa: SLF001 - Django's public name for it
        if (
            isinstance(relation, models.ManyToOneRel)
            and getattr(relation, "on_delete", None) is models.PROTECT
        ):
            yield relation.field


def prune_rows(
    run: ImportRun, *, section: str, model: type[models.Model], key: str, staged: str
) -> None:
    """Delete rows whose key was not staged; rows that others refer to stay and are listed.

    Args:
        run: The import run.
        section: Section for the report.
        model: Model of the rows.
        key: Its identifying column.
        staged: Staging table with the keys of the files.
    """
    manager = model._default_manager  # noqa: SLF001 - Django's public name for it
    table = model._meta.db_table  # noqa: SLF001 - Django's public name for it
    doomed = manager.extra(  # noqa: S610 - names from code
        where=[f"NOT EXISTS (SELECT 1 FROM {staged} s WHERE s.{key} = {table}.{key})"]  # noqa: S608
    )
    doomed_ids = dict(doomed.order_by("pk").values_list("pk", key))
    if not doomed_ids:
        return
    for field in protecting_fields(model):
        users = dict.fromkeys(
            field.model._default_manager.filter(**{f"{field.attname}__in": list(doomed_ids)})  # noqa: SLF001
            .order_by(field.attname)
            .values_list(field.attname, flat=True)
            .distinct()
        )
        reason = f"has_{field.model._meta.verbose_name_plural}".replace(" ", "_")  # noqa: SLF001
        for pk in users:
            if pk in doomed_ids:
                run.report.skip(
                    section,
                    str(doomed_ids.pop(pk)),
                    reason.lower(),
                    "not in the files, but still referred to",
                )
    removed = list(doomed_ids)
    for start in range(0, len(removed), 5000):
        manager.filter(pk__in=removed[start : start + 5000]).delete()
    run.report.of(section).removed += len(removed)
