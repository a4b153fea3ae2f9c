"""Removing rows that the files do not hold (spec region-file, ``--prune``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.db import models

from hosts.domain.shrinking import has_shrunk_too_much
from hosts.region.run import ImportRun
from hosts.region.staging import rows_of

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


def is_believed(run: ImportRun, *, section: str, before: int, now: int) -> bool:
    """Return whether what a section lacks may be removed; a refusal is told in the report.

    A list that lost too much at once is more likely cut short than true: then nothing is removed,
    while what the files do hold is written all the same.

    Args:
        run: The import run.
        section: Section of the list.
        before: Length of what is stored.
        now: Length of what the files hold.

    Source: spec commitments, 16.7; style, 9.
    """
    chosen = settings.HEADROOM.slots
    if run.options.accepts_shrink or not has_shrunk_too_much(
        before, now, max_ratio=chosen.max_drop_ratio, max_rows=chosen.max_drop_rows
    ):
        return True
    run.report.refusals[section] = (
        f"{section} shrank from {before} to {now}: nothing of it is removed until the list is "
        "back or an operator accepts it (--accept-shrink)"
    )
    return False


def is_list_believed(
    run: ImportRun, *, section: str, model: type[models.Model], staged: str
) -> bool:
    """Return whether rows that a section lacks may be removed, before or after it was merged."""
    stored = model._default_manager.count()  # noqa: SLF001 - Django's public name for it
    listed = int(rows_of(f"SELECT count(*) FROM {staged}")[0][0])  # noqa: S608 - names from code
    before = stored - run.report.of(section).created
    return is_believed(run, section=section, before=before, now=listed)


def prune_rows(
    run: ImportRun, *, section: str, model: type[models.Model], key: str, staged: str
) -> None:
    """Delete rows whose key was not staged; rows that others refer to stay and are listed.

    Nothing is deleted when the list shrank too much to be believed.

    Args:
        run: The import run.
        section: Section for the report.
        model: Model of the rows.
        key: Its identifying column.
        staged: Staging table with the keys of the files.
    """
    if not is_list_believed(run, section=section, model=model, staged=staged):
        return
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
