"""The ServiceInfo and its version (spec liquid, 7).

The version belongs to the content: one row holds the hash of the last content served and its
version, others what it and the versions before said, as long as those are still accepted. Content
is composed again only when a flavor group or a setting changed, so that asking for
the version costs three small queries.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import orjson
import structlog
from django.conf import settings as django_settings
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.groups.group_settings import GroupSettings, settings_for_group
from capacity.groups.reading import load_group_definitions, load_group_settings
from capacity.groups.units import UnitError
from capacity.locks import LockSpace, take_lock
from capacity.models import FlavorGroupSnapshot
from commitments.domain.service_info import (
    MIB_PER_GIB,
    changed_term,
    compose_service_info,
    declaration_problem,
    ram_unit_warning,
    resource_terms,
)
from commitments.domain.statuses import UNFINISHED_STATUSES
from commitments.models import PublishedServiceInfo, ServiceInfoVersion
from journal.clock import database_now
from journal.errors import HeadroomError, NotReady
from journal.statements import fetch_row

log = structlog.get_logger(__name__)

LOCK_NAME = "version"
NO_CONTENT_CHANGE = -1
# Limes expires commitments by a job of its own; a retired group must outlive that job's delay.
EXPIRY_GRACE = timedelta(hours=1)
# Limes reads the ServiceInfo now and then; until then it plans with the version before.
ACCEPTED_FOR = timedelta(hours=24)
STORED_VERSION = """
SELECT stored.content_hash, stored.version,
       EXISTS (SELECT FROM commitments_publishedserviceinfo AS published
                WHERE published.version = stored.version AND published.replaced_at IS NULL),
       ARRAY(
       SELECT name FROM capacity_flavorgroup AS flavor_group
        WHERE is_retired AND EXISTS (
              SELECT 1 FROM commitments_commitment
               WHERE flavor_group_name = flavor_group.name AND state = ANY(%(unfinished)s)
                 AND (end_time IS NULL OR end_time > %(ended_before)s))
        ORDER BY name)
  FROM (SELECT 1) AS one LEFT JOIN commitments_serviceinfoversion AS stored ON true
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo:
    """What Limes is told about our resources.

    Attributes:
        version: Grows whenever anything else in it changes.
        payload: The whole JSON object, version included.
        groups: The flavor groups in it by name, retired ones with commitments included.
        retired: Names of those that are retired.
        settings: The operator's settings it was composed from.
    """

    version: int
    payload: Mapping[str, object]
    groups: Mapping[str, FlavorGroupDef]
    retired: frozenset[str]
    settings: Mapping[str, GroupSettings]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    active: Mapping[str, FlavorGroupDef]
    settings: Mapping[str, GroupSettings]
    retired: tuple[str, ...]
    groups: Mapping[str, FlavorGroupDef]
    tells_placeable_vms: bool
    fields: Mapping[str, object]
    content_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    content_hash: str | None
    version: int | None
    is_published: bool
    live_retired: tuple[str, ...]


_kept: _Content | None = None
_kept_lock = threading.Lock()


class StaleVersion(HeadroomError):  # noqa: N818 - names the state of the caller
    """The caller planned with another version of our ServiceInfo."""

    code = "stale_info_version"
    status = 409


def check_info_version(version: int, resource_names: Iterable[str]) -> None:
    """Check that a request was made with what the ServiceInfo says of the resources it names.

    That is so for the current version, and for one that was current in the last 24 hours as long as
    unit, topology and flags of those resources are the same.

    Args:
        version: The version that the caller used.
        resource_names: The resources of the request.

    Raises:
        StaleVersion: it was not.
        NotReady: flavor groups were not extracted, or a RAM unit is too large.

    Source: spec liquid, 2.4; decisions (stale info version).
    """
    content, current = _current()
    if version == current:
        return
    published = PublishedServiceInfo.objects.filter(
        Q(replaced_at__isnull=True) | Q(replaced_at__gt=Now() - ACCEPTED_FOR), version=version
    ).first()
    message = f"info version {version} is not the current version {current}"
    if published is not None:
        changed = changed_term(published.resources, resource_terms(content.fields), resource_names)
        if changed is None:
            return
        message = f"{message} and {changed}"
    raise StaleVersion(
        f"{message}: refresh the service info and retry", asked=version, current=current
    )


def current_service_info() -> ServiceInfo:
    """Return the ServiceInfo as of now.

    A changed content gets its version here, in a transaction under the lock of the version; inside
    a caller's transaction it is that one.

    Raises:
        NotReady: flavor groups were not extracted, or a RAM unit is too large.

    Source: spec liquid, 7.
    """
    content, version = _current()
    return ServiceInfo(
        version=version,
        payload={"version": version, **content.fields},
        groups=content.groups,
        retired=frozenset(content.retired),
        settings=content.settings,
    )


def _current() -> tuple[_Content, int]:
    stored = _read_stored()
    content = _read_content(stored)
    version = _version_of(content, stored)
    if version is not None and stored.is_published:
        return content, version
    return _store_new_version()


def _version_of(content: _Content, stored: _Stored) -> int | None:
    return stored.version if stored.content_hash == content.content_hash else None


def _store_new_version() -> tuple[_Content, int]:
    with transaction.atomic():
        take_lock(LockSpace.SERVICE_INFO, [LOCK_NAME])
        stored = _read_stored()
        content = _read_content(stored)
        version = _version_of(content, stored)
        if version is not None and stored.is_published:
            return content, version
        if version is None:
            version = _next_version(stored.version)
        _publish(version, content)
        ServiceInfoVersion.objects.update_or_create(
            singleton=True, defaults={"content_hash": content.content_hash, "version": version}
        )
    log.info("service_info_changed", version=version, before=stored.version)
    return content, version


def _publish(version: int, content: _Content) -> None:
    """Keep what a version says, and forget versions that are not accepted any more."""
    published = PublishedServiceInfo.objects
    published.filter(replaced_at__isnull=True).update(replaced_at=Now())
    published.filter(replaced_at__lte=Now() - ACCEPTED_FOR).delete()
    published.update_or_create(
        version=version,
        defaults={"resources": resource_terms(content.fields), "replaced_at": None},
    )


def _next_version(stored_version: int | None) -> int:
    if stored_version is not None:
        return max(stored_version + 1, int(database_now().timestamp()))
    changed_at: datetime | None = FlavorGroupSnapshot.objects.values_list(
        "last_content_change_at", flat=True
    ).first()
    return NO_CONTENT_CHANGE if changed_at is None else int(changed_at.timestamp())


def _read_stored() -> _Stored:
    row = fetch_row(
        STORED_VERSION,
        {
            "unfinished": [status.value for status in UNFINISHED_STATUSES],
            "ended_before": database_now() - EXPIRY_GRACE,
        },
    )
    return _Stored(
        content_hash=row[0], version=row[1], is_published=row[2], live_retired=tuple(row[3])
    )


def _read_content(stored: _Stored) -> _Content:
    global _kept  # noqa: PLW0603 - one value per process, replaced as a whole
    active = load_group_definitions()
    settings = load_group_settings()
    with _kept_lock:
        kept = _kept
    if (
        kept is not None
        and kept.active is active
        and kept.settings is settings
        and kept.retired == stored.live_retired
        and kept.tells_placeable_vms == django_settings.HEADROOM.liquid.report_placeable_vms
    ):
        return kept
    content = _compose(active, settings, stored.live_retired)
    with _kept_lock:
        _kept = content
    return content


def _log_ram_units(
    groups: Mapping[str, FlavorGroupDef], settings: Mapping[str, GroupSettings]
) -> None:
    """Log the RAM units in force: at the first use of a process, and when something changed.

    Source: spec liquid, 6.4, 19.
    """
    units_gib = {
        name: settings_for_group(settings, name).ram_unit_mib // MIB_PER_GIB for name in groups
    }
    log.info("ram_units_in_force", gib=units_gib)
    for name, group in groups.items():
        problem = ram_unit_warning(group, settings)
        if problem is not None:
            log.warning("ram_unit_questionable", group=name, problem=problem)


def _compose(
    active: Mapping[str, FlavorGroupDef],
    settings: Mapping[str, GroupSettings],
    live_retired: tuple[str, ...],
) -> _Content:
    candidates = dict(active)
    if live_retired:
        every = load_group_definitions(include_retired=True)
        candidates.update({name: every[name] for name in live_retired if name in every})
    groups: dict[str, FlavorGroupDef] = {}
    for name, group in sorted(candidates.items()):
        problem = declaration_problem(group)
        if problem is None:
            groups[name] = group
        else:
            log.error("flavor_group_not_declared", group=name, problem=problem)
    tells_placeable_vms = django_settings.HEADROOM.liquid.report_placeable_vms
    try:
        fields = compose_service_info(
            groups.values(),
            settings,
            tells_placeable_vms=tells_placeable_vms,
        )
    except UnitError as error:
        raise NotReady(
            f"a RAM unit cannot be built: {error}", code="ram_unit_out_of_range"
        ) from error
    _log_ram_units(groups, settings)
    canonical = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    return _Content(
        active=active,
        settings=settings,
        retired=live_retired,
        groups=groups,
        tells_placeable_vms=tells_placeable_vms,
        fields=fields,
        content_hash=hashlib.sha256(canonical).hexdigest(),
    )
