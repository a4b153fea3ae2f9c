"""Removing rows that the files do not hold (spec region-file, ``--prune``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from django.conf import settings
from django.db import models

from core.chunks import in_chunks
from hosts.domain.shrinking import has_shrunk_too_much, has_vanished
from hosts.models import Host
from hosts.region.inventory import HYPERVISORS
from hosts.region.run import ImportRun
from hosts.region.writing import ROWS_PER_PART, settle, write_part
from journal.statements import fetch_rows, fetch_value


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
    while what the files do hold is written all the same. A live cloud may prove the loss.

    Args:
        section: Section of the list.
        before: Length of what is stored.
        now: Length of what the files hold.

    Source: spec commitments, 16.7; style, 9.
    """
    chosen = settings.HEADROOM.slots
    has_shrunk = has_shrunk_too_much(
        before, now, max_ratio=chosen.max_drop_ratio, max_rows=chosen.max_drop_rows
    )
    if not has_shrunk or run.takes_loss_of(section):
        return True
    run.report.refusals[section] = (
        f"{section} shrank from {before} to {now}: nothing of it is removed until the list is "
        "back or an operator accepts it (--accept-shrink)"
    )
    return False


def is_list_believed(run: ImportRun, *, section: str, model: type[models.Model]) -> bool:
    """Return whether rows that a section lacks may be removed, before or after it was merged."""
    stored = model._default_manager.count()  # noqa: SLF001 - Django's public name for it
    listed = int(fetch_value(f"SELECT count(*) FROM {staged_of(model)}"))  # noqa: S608 - names from code
    listed += len(run.live.frozen.get(section, ())) if run.live else 0
    before = stored - run.report.of(section).created
    return is_believed(run, section=section, before=before, now=listed)


def staged_of(model: type[models.Model]) -> str:
    """Return the staging table of a model's rows."""
    return f"stage_{model._meta.db_table}"  # noqa: SLF001 - Django's public name for it


def zones_of_reported_hosts(run: ImportRun) -> set[str]:
    """Return the zones of the hosts that the files list, or of those stored when they list none."""
    if run.prunes(HYPERVISORS):
        listed = "SELECT DISTINCT zone FROM stage_hosts_host WHERE zone <> ''"
        return {row[0] for row in fetch_rows(listed)}
    return set(Host.objects.exclude(zone="").order_by().values_list("zone", flat=True).distinct())


def zones_left_out(
    run: ImportRun, *, section: str, counts: Mapping[str, tuple[int, int]], zones: Collection[str]
) -> tuple[str, ...]:
    """Return the zones whose rows must stay, since a section lacks all of them; told in the report.

    The part of a list that speaks of one zone is more likely left out than gone, while the hosts of
    the zone are still reported; the whole list hardly shrinks without it.

    Args:
        section: Section of the list.
        counts: Zone to how many of its stored rows there are, and how many of these are listed.
        zones: Zones whose hosts are still reported.

    Source: spec commitments, 16.7.
    """
    vanished = tuple(
        zone
        for zone, (before, now) in sorted(counts.items())
        if zone in zones and has_vanished(before, now)
    )
    if vanished and run.takes_loss_of(section):
        return ()
    if vanished:
        parts = [f"{zone} shrank from {counts[zone][0]} to 0" for zone in vanished]
        run.report.refusals[section] = (
            f"{section} of {', '.join(parts)}: nothing of these zones is removed until the list is "
            "back or an operator accepts it (--accept-shrink)"
        )
    return vanished


def prune_rows(
    run: ImportRun,
    *,
    section: str,
    model: type[models.Model],
    key: str,
    spared: models.Q | None = None,
    host_field: str = "",
    zone_field: str = "",
    removing: Callable[[models.QuerySet[Any]], None] | None = None,
) -> None:
    """Delete rows whose key was not staged; rows that others refer to stay and are listed.

    Nothing is deleted when the list shrank too much to be believed.

    Args:
        section: Section for the report.
        model: Model of the rows.
        key: Its identifying column.
        spared: Rows that stay whatever the files say; none when left out.
        host_field: Names the host whose room a row takes; empty for none.
        zone_field: Names the zone whose planners have to wait; empty for none.
        removing: Called with rows that are about to go, in the transaction in which they do.
    """
    if not is_list_believed(run, section=section, model=model):
        return
    manager = model._default_manager  # noqa: SLF001 - Django's public name for it
    table = model._meta.db_table  # noqa: SLF001 - Django's public name for it
    judged = manager.all() if spared is None else manager.exclude(spared)
    doomed = judged.extra(  # noqa: S610 - names from code
        where=[f"NOT EXISTS (SELECT 1 FROM {staged_of(model)} s WHERE s.{key} = {table}.{key})"]  # noqa: S608
    )
    absent = list(doomed.order_by("pk").values_list(key, flat=True))
    remove_rows(
        run,
        section=section,
        rows=manager.filter(**{f"{key}__in": run.gone(section, absent)}),
        key=key,
        host_field=host_field,
        zone_field=zone_field,
        removing=removing,
    )


def remove_rows(
    run: ImportRun,
    *,
    section: str,
    rows: models.QuerySet[Any],
    key: str,
    host_field: str = "",
    zone_field: str = "",
    removing: Callable[[models.QuerySet[Any]], None] | None = None,
) -> None:
    """Delete rows in parts; see :func:`prune_rows`."""
    fields = [name for name in ("pk", key, host_field, zone_field) if name]
    for part in in_chunks(list(rows.order_by("pk").values(*fields)), ROWS_PER_PART):
        removal = partial(
            _remove,
            run,
            rows.model,
            {row["pk"]: str(row[key]) for row in part},
            host_ids={row[host_field] for row in part if host_field} - {None},
            removing=removing,
        )
        zones = {row[zone_field] for row in part if zone_field} - {""}
        removed, kept = write_part(run, removal, zones=zones)
        run.report.of(section).removed += removed
        for name, reason in kept:
            run.report.skip(section, name, reason, "not in the files, but still referred to")


def _remove(
    run: ImportRun,
    model: type[models.Model],
    unlisted: Mapping[int, str],
    *,
    host_ids: Collection[int],
    removing: Callable[[models.QuerySet[Any]], None] | None,
) -> tuple[int, list[tuple[str, str]]]:
    """Delete rows by key; return how many, and those that others refer to with the reason."""
    doomed, kept = dict(unlisted), []
    for field in protecting_fields(model):
        users = field.model._default_manager.filter(**{f"{field.attname}__in": list(doomed)})  # noqa: SLF001 - Django's public name for it
        reason = f"has_{field.model._meta.verbose_name_plural}".replace(" ", "_").lower()  # noqa: SLF001
        used = users.order_by(field.attname).values_list(field.attname, flat=True).distinct()
        kept += [(doomed.pop(pk), reason) for pk in list(used)]
    going = model._default_manager.filter(pk__in=list(doomed))  # noqa: SLF001
    if removing is not None:
        removing(going)
    going.delete()
    settle(run, host_ids)
    return len(doomed), kept
