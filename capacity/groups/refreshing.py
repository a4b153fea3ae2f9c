"""Refreshing flavor groups from flavors and rules (spec commitments, 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

import orjson
import structlog
from django.db import transaction

from capacity.groups.flavor_groups import (
    GROUP_EXTRA_SPEC,
    FlavorGroupBuild,
    FlavorGroupDef,
    GroupRule,
    build_flavor_groups,
)
from capacity.groups.reading import flavor_spec
from capacity.hooks import hooks
from capacity.locks import LockSpace, take_lock, zone_lock
from capacity.models import (
    FlavorGroup,
    FlavorGroupMember,
    FlavorGroupRule,
    FlavorGroupSnapshot,
    Reservation,
)
from hosts.models import Flavor, Host
from journal.actors import Actor
from journal.clock import database_now
from journal.services import Change, record_changes

TOPIC = "flavor_groups"
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorGroupRefresh:
    """What a refresh changed, all by name of the group.

    Attributes:
        created: New groups.
        updated: Groups whose flavors or ratios differ, or that came back.
        unchanged: Groups that stayed as they were.
        retired: Groups that are gone but still referred to.
        removed: Groups that are gone.
        resized: Groups whose flavors changed memory or vCPUs, came or went.
        skipped_flavors: Pairs of flavor name and reason.
        has_changed: The content differs from the last refresh.
    """

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    skipped_flavors: tuple[tuple[str, str], ...] = ()
    has_changed: bool = False


@dataclass(slots=True)
class _Rows:
    """Stored groups by name, their flavor ids by position, and the flavor rows by name."""

    groups: dict[str, FlavorGroup]
    members: dict[int, tuple[int, ...]]
    flavors: dict[str, Flavor]
    changes: list[Change] = field(default_factory=list)


def load_rules() -> tuple[GroupRule, ...]:
    """Return the operator's grouping rules in the order they are tried."""
    return tuple(
        GroupRule(group=rule.group_name, flavor_pattern=rule.flavor_pattern)
        for rule in FlavorGroupRule.objects.order_by("position", "id")
    )


def unused_groups(without_flavor_ids: Collection[int] = ()) -> set[str]:
    """Return the groups that a refresh would remove: they have no flavors, and nobody needs them.

    A commitment that is being admitted is not seen: whoever removes them holds the locks of zones.
    """
    rows = _flavor_rows(without_flavor_ids)
    wanted = {group.name for group in _build(rows).groups}
    names = FlavorGroup.objects.exclude(name__in=wanted).values_list("name", flat=True)
    return _unused(list(names))


def zones_of_groups() -> set[str]:
    """Return the zones in which flavor groups may be promised: those with hosts."""
    return set(Host.objects.exclude(zone="").order_by().values_list("zone", flat=True).distinct())


def refresh_flavor_groups(
    *,
    actor: Actor,
    request_id: str,
    without_flavor_ids: Collection[int] = (),
    may_go: Collection[str] | None = None,
) -> FlavorGroupRefresh:
    """Make the stored flavor groups agree with flavors and rules.

    Rows that do not differ are not written. A group that disappears while commitments or
    reservations refer to it is retired and keeps its last definition. Joins the caller's
    transaction, else opens its own; takes the flavor-group lock, and before it those of all zones
    if a group is to go: its first commitment may be just about to be admitted.

    Args:
        actor: Who refreshes.
        without_flavor_ids: Flavor rows to treat as gone, because the caller removes them next.
        may_go: Groups that may be removed; the caller holds the locks of all zones for them, and
            others are retired. None looks and locks here.

    Source: spec commitments, 4.1, 4.6.
    """
    with transaction.atomic():
        if may_go is None:
            may_go = unused_groups(without_flavor_ids)
            zone_lock(zones_of_groups() if may_go else ())
        take_lock(LockSpace.FLAVOR_GROUPS, ["*"])
        rows = _load_rows(without_flavor_ids)
        build = _build(rows.flavors)
        result = _apply(rows, build, may_go)
        now = database_now()
        resized = _note_sizes(rows, build, now)
        has_changed = _write_snapshot(build)
        record_changes(rows.changes, actor=actor, request_id=request_id)
        if resized:
            hooks.groups_resized(resized, now)
    for name in result.retired:
        log.error("flavor_group_retired", group=name, hint="commitments still refer to it")
    return FlavorGroupRefresh(
        created=result.created,
        updated=result.updated,
        unchanged=result.unchanged,
        retired=result.retired,
        removed=result.removed,
        resized=resized,
        skipped_flavors=build.skipped,
        has_changed=has_changed,
    )


def overruled_rules() -> tuple[tuple[GroupRule, tuple[tuple[str, str], ...]], ...]:
    """Return rules whose flavors the extra spec puts elsewhere: rule, then (flavor, group) pairs.

    For people: a commitment for the rule's group is refused as unknown although the rule is there.
    """
    declared = {
        flavor.name: flavor.extra_specs.get(GROUP_EXTRA_SPEC, "")
        for flavor in Flavor.objects.order_by("name")
    }
    found = []
    for rule in load_rules():
        elsewhere = tuple(
            (name, group)
            for name, group in declared.items()
            if group and group != rule.group and fnmatchcase(name, rule.flavor_pattern)
        )
        if elsewhere:
            found.append((rule, elsewhere))
    return tuple(found)


def _flavor_rows(without_flavor_ids: Collection[int]) -> dict[str, Flavor]:
    gone = set(without_flavor_ids)
    rows = Flavor.objects.order_by("name")
    return {flavor.name: flavor for flavor in rows if flavor.pk not in gone}


def _build(flavors: Mapping[str, Flavor]) -> FlavorGroupBuild:
    return build_flavor_groups(map(flavor_spec, flavors.values()), load_rules())


def _unused(names: Collection[str]) -> set[str]:
    """Return those of some groups that neither commitments nor reservations refer to."""
    held = Reservation.objects.filter(flavor_group_name__in=names)
    of_slots = held.order_by().values_list("flavor_group_name", flat=True).distinct()
    return set(names) - hooks.referenced_groups(names) - set(of_slots)


def _load_rows(without_flavor_ids: Collection[int]) -> _Rows:
    groups = {
        group.name: group
        for group in FlavorGroup.objects.order_by("pk").select_for_update(of=("self",), no_key=True)
    }
    members: dict[int, list[int]] = {}
    for group_id, flavor_id in FlavorGroupMember.objects.order_by(
        "group_id", "position"
    ).values_list("group_id", "flavor_id"):
        members.setdefault(group_id, []).append(flavor_id)
    return _Rows(
        groups=groups,
        members={group_id: tuple(ids) for group_id, ids in members.items()},
        flavors=_flavor_rows(without_flavor_ids),
    )


def _apply(rows: _Rows, build: FlavorGroupBuild, may_go: Collection[str]) -> FlavorGroupRefresh:
    wanted = {group.name: group for group in build.groups}
    created = tuple(name for name in wanted if name not in rows.groups)
    updated = tuple(
        name
        for name, group in wanted.items()
        if name in rows.groups and _differs(rows, rows.groups[name], group)
    )
    vanished = sorted(set(rows.groups) - set(wanted))
    unused = _unused(vanished) & set(may_go)
    retired = tuple(name for name in vanished if name not in unused)
    removed = tuple(name for name in vanished if name in unused)
    _free_members(rows, wanted, changed=(*created, *updated), removed=removed)
    newly_retired = _retire(rows, retired)
    for name in (*created, *updated):
        _write_group(rows, wanted[name])
    return FlavorGroupRefresh(
        created=created,
        updated=updated,
        unchanged=tuple(name for name in wanted if name not in {*created, *updated}),
        retired=newly_retired,
        removed=removed,
    )


def _differs(rows: _Rows, stored: FlavorGroup, wanted: FlavorGroupDef) -> bool:
    return (
        stored.is_retired
        or rows.members.get(stored.pk, ()) != _flavor_ids(rows, wanted)
        or any(getattr(stored, name) != entry for name, entry in _columns(rows, wanted).items())
    )


def _flavor_ids(rows: _Rows, group: FlavorGroupDef) -> tuple[int, ...]:
    return tuple(rows.flavors[flavor.name].pk for flavor in group.flavors)


def _columns(rows: _Rows, group: FlavorGroupDef) -> dict[str, Any]:
    return {
        "smallest_flavor_id": rows.flavors[group.smallest.name].pk,
        "largest_flavor_id": rows.flavors[group.largest.name].pk,
        "ram_core_ratio_mib": group.ram_core_ratio_mib,
        "ram_core_ratio_min_mib": group.ram_core_ratio_min_mib,
        "ram_core_ratio_max_mib": group.ram_core_ratio_max_mib,
    }


def _free_members(
    rows: _Rows,
    wanted: Mapping[str, FlavorGroupDef],
    *,
    changed: Sequence[str],
    removed: Sequence[str],
) -> None:
    """Delete memberships that change, so that a flavor can move; then the groups that are gone."""
    moving = [pk for name in changed for pk in _flavor_ids(rows, wanted[name])]
    rewritten = [rows.groups[name].pk for name in changed if name in rows.groups]
    FlavorGroupMember.objects.filter(flavor_id__in=moving).delete()
    FlavorGroupMember.objects.filter(group_id__in=rewritten).delete()
    for name in removed:
        rows.changes.append(
            Change(
                action="flavor_group_removed",
                object_type="FlavorGroup",
                object_id=name,
                before=_record_of(rows, rows.groups[name]),
                topic=TOPIC,
            )
        )
    FlavorGroup.objects.filter(name__in=removed).delete()


def _retire(rows: _Rows, names: Sequence[str]) -> tuple[str, ...]:
    newly_retired = tuple(name for name in names if not rows.groups[name].is_retired)
    FlavorGroup.objects.filter(name__in=newly_retired).update(is_retired=True)
    for name in newly_retired:
        rows.changes.append(
            Change(
                action="flavor_group_retired",
                object_type="FlavorGroup",
                object_id=name,
                before=_record_of(rows, rows.groups[name]),
                after={"is_retired": True},
                reason="no flavor belongs to it any more, but commitments refer to it",
                topic=TOPIC,
            )
        )
    return newly_retired


def _write_group(rows: _Rows, group: FlavorGroupDef) -> None:
    stored = rows.groups.get(group.name)
    before = None if stored is None else _record_of(rows, stored)
    row = stored or FlavorGroup(name=group.name)
    for name, entry in _columns(rows, group).items():
        setattr(row, name, entry)
    row.is_retired = False
    if stored is None:
        row.flavor_sizes = sizes_hash(group)
    row.save()
    flavor_ids = _flavor_ids(rows, group)
    FlavorGroupMember.objects.bulk_create(
        FlavorGroupMember(group=row, flavor_id=flavor_id, position=position)
        for position, flavor_id in enumerate(flavor_ids)
    )
    rows.members[row.pk] = flavor_ids
    rows.changes.append(
        Change(
            action="flavor_group_created" if before is None else "flavor_group_changed",
            object_type="FlavorGroup",
            object_id=group.name,
            before=before,
            after=_record_of(rows, row),
            topic=TOPIC,
        )
    )


def _note_sizes(rows: _Rows, build: FlavorGroupBuild, now: datetime) -> tuple[str, ...]:
    """Keep what sizes the flavors of each group have; return the groups where they changed.

    A group of which they were not known is none of those.
    """
    resized = []
    for group in build.groups:
        stored, sizes = rows.groups.get(group.name), sizes_hash(group)
        if stored is None or stored.flavor_sizes == sizes:
            continue
        written: dict[str, Any] = {"flavor_sizes": sizes}  # Any: columns of several types
        if stored.flavor_sizes:
            written["resized_at"] = now
            resized.append(group.name)
            rows.changes.append(
                Change(
                    action="flavor_group_resized",
                    object_type="FlavorGroup",
                    object_id=group.name,
                    after={"sizes": [list(size) for size in _sizes_of(group)]},
                    reason="flavors changed memory or vCPUs, came or went",
                    topic=TOPIC,
                )
            )
        FlavorGroup.objects.filter(pk=stored.pk).update(**written)
    return tuple(resized)


def _record_of(rows: _Rows, group: FlavorGroup) -> dict[str, Any]:
    names = {flavor.pk: flavor.name for flavor in rows.flavors.values()}
    return {
        "flavors": [names.get(pk, f"#{pk}") for pk in rows.members.get(group.pk, ())],
        "ram_core_ratio_mib": group.ram_core_ratio_mib,
        "ram_core_ratio_min_mib": group.ram_core_ratio_min_mib,
        "ram_core_ratio_max_mib": group.ram_core_ratio_max_mib,
        "is_retired": group.is_retired,
    }


def _write_snapshot(build: FlavorGroupBuild) -> bool:
    digest = content_hash(build.groups)
    now = database_now()
    snapshot = FlavorGroupSnapshot.objects.select_for_update().first() or FlavorGroupSnapshot()
    has_changed = snapshot.content_hash != digest
    if has_changed:
        snapshot.last_content_change_at = now
    snapshot.content_hash, snapshot.last_extracted_at, snapshot.is_ready = digest, now, True
    snapshot.save()
    return has_changed


def content_hash(groups: Sequence[FlavorGroupDef]) -> str:
    """Return a digest of everything that flavor groups say."""
    content = [
        {
            "name": group.name,
            "ratios": [
                group.ram_core_ratio_mib,
                group.ram_core_ratio_min_mib,
                group.ram_core_ratio_max_mib,
            ],
            "flavors": [
                [flavor.name, flavor.vcpus, flavor.memory_bytes, dict(flavor.extra_specs)]
                for flavor in group.flavors
            ],
        }
        for group in groups
    ]
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def sizes_hash(group: FlavorGroupDef) -> str:
    """Return a digest of the names, memory and vCPUs of a group's flavors, and of nothing else."""
    return hashlib.sha256(orjson.dumps(_sizes_of(group))).hexdigest()


def _sizes_of(group: FlavorGroupDef) -> list[tuple[str, int, int]]:
    return sorted((flavor.name, flavor.memory_mib, flavor.vcpus) for flavor in group.flavors)
