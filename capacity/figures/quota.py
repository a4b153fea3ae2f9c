"""Storing project quota: one row per project and zone, replaced as a whole (spec liquid, 10.1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, transaction

from capacity.locks import LockSpace, take_lock
from capacity.models import ProjectQuota
from hosts.models import Host
from journal.actors import Actor
from journal.errors import Busy, HeadroomError
from journal.outages import LOCK_NOT_AVAILABLE, as_unavailable, sqlstate_of
from journal.services import Change, record_changes

OUTBOX_TOPIC = "project_quota"
NAME_FIELDS = ("project_name", "domain_id", "domain_name")


class QuotaNotStored(HeadroomError):  # noqa: N818 - says what did not happen
    """The database refused the rows; nothing was changed."""

    code = "quota_not_stored"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedQuota:
    """The quota a project shall have, in stored units: GiB of memory, counts of the rest.

    Attributes:
        project_name: Its name; empty keeps what is stored.
        domain_id: Its domain; empty keeps what is stored.
        domain_name: The domain's name; empty keeps what is stored.
        by_zone: Mapping zone -> resource name -> quota.
        zero_everywhere: Resources that are 0 in every zone that has a row or is served.
    """

    project_id: str
    project_name: str = ""
    domain_id: str = ""
    domain_name: str = ""
    by_zone: Mapping[str, Mapping[str, int]]
    zero_everywhere: frozenset[str] = frozenset()


def replace_project_quota(
    wanted: WantedQuota,
    *,
    served_zones: Collection[str],
    actor: Actor,
    request_id: str,
) -> None:
    """Make a project's quota rows what is wanted, and remove its other rows.

    Takes the quota lock of the project, then its rows in order of primary key, as who counts what
    is used of quotas does. Rows that are right already
    are not written.

    Args:
        wanted: The quota, for all its zones together.
        served_zones: Zones whose quota is kept, others are dropped; empty means every zone.

    Raises:
        Busy: the project's quota is being changed by another.
        QuotaNotStored: the database failed; the message names the zones.

    Source: spec liquid, 10.1.
    """
    try:
        with transaction.atomic(durable=True):
            take_lock(LockSpace.QUOTA, [wanted.project_id])
            changes = _replace(wanted, served_zones)
            record_changes(changes, actor=actor, request_id=request_id)
    except DatabaseError as error:
        if sqlstate_of(error) == LOCK_NOT_AVAILABLE:
            raise Busy(
                f"quota of project {wanted.project_id} is being changed by another"
            ) from error
        if as_unavailable(error) is not None:
            raise
        zones = ", ".join(sorted(wanted.by_zone)) or "no zone"
        raise QuotaNotStored(
            f"quota of project {wanted.project_id} could not be stored in {zones}",
            zones=sorted(wanted.by_zone),
        ) from error


def _replace(wanted: WantedQuota, served_zones: Collection[str]) -> list[Change]:
    rows = {
        row.zone: row
        for row in ProjectQuota.objects.filter(project_id=wanted.project_id)
        .order_by("pk")
        .select_for_update(of=("self",), no_key=True)
    }
    by_zone = _complete(wanted, rows.keys(), served_zones)
    changes = [
        change
        for zone in sorted(by_zone)
        if (change := _upsert(wanted, zone, by_zone[zone], rows.get(zone))) is not None
    ]
    gone = [rows[zone] for zone in sorted(rows.keys() - by_zone.keys())]
    if gone:
        changes += [_change("quota_removed", row, before=_fields(row), after=None) for row in gone]
        ProjectQuota.objects.filter(pk__in=[row.pk for row in gone]).delete()
    return changes


def _complete(
    wanted: WantedQuota, stored_zones: Collection[str], served_zones: Collection[str]
) -> dict[str, dict[str, int]]:
    by_zone = {zone: dict(quotas) for zone, quotas in wanted.by_zone.items()}
    if wanted.zero_everywhere:
        every = set(stored_zones) | set(served_zones or _zones_with_hosts())
        for zone in every | by_zone.keys():
            quotas = by_zone.setdefault(zone, {})
            for resource_name in wanted.zero_everywhere:
                quotas.setdefault(resource_name, 0)
    if not served_zones:
        return by_zone
    return {zone: quotas for zone, quotas in by_zone.items() if zone in served_zones}


def _zones_with_hosts() -> set[str]:
    zones = Host.objects.exclude(zone="").order_by().values_list("zone", flat=True)
    return set(zones.distinct())


def _upsert(
    wanted: WantedQuota, zone: str, quotas: Mapping[str, int], row: ProjectQuota | None
) -> Change | None:
    before = None if row is None else _fields(row)
    row = row or ProjectQuota(project_id=wanted.project_id, zone=zone, generation=0)
    row.quota_by_resource = {name: quotas[name] for name in sorted(quotas)}
    for name in NAME_FIELDS:
        setattr(row, name, getattr(wanted, name) or getattr(row, name))
    after = _fields(row)
    if before == after:
        return None
    row.generation += 1
    row.save()
    return _change("quota_set", row, before=before, after=after)


def _fields(row: ProjectQuota) -> dict[str, Any]:
    return {
        "quota_by_resource": dict(row.quota_by_resource),
        **{name: getattr(row, name) for name in NAME_FIELDS},
    }


def _change(
    action: str,
    row: ProjectQuota,
    *,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> Change:
    return Change(
        action=action,
        object_type="project_quota",
        object_id=f"{row.project_id}/{row.zone}",
        before=before,
        after=after,
        topic=OUTBOX_TOPIC,
    )
