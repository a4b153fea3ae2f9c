"""Flavor-group rules and settings in region files, rooms after an import (spec region-file)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Final

from capacity.groups.editing import (
    SETTINGS_FIELDS,
    group_name_problem,
    remove_group_rule,
    remove_group_settings,
    save_group_rule,
    save_group_settings,
)
from capacity.groups.group_settings import CATCH_ALL
from capacity.groups.refreshing import (
    overruled_rules,
    refresh_flavor_groups,
    unused_groups,
    zones_of_groups,
)
from capacity.ledger.moving import forget_moved_vms, hold_moving_vms, hold_moving_vms_of
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.locks import zone_lock
from capacity.models import MAX_RAM_UNIT_GIB, FlavorGroupRule, FlavorGroupSettings
from capacity.nova.in_flight import after_vm_changes
from core.chunks import in_chunks
from hosts.feed.lists import PassKind
from hosts.feed.state import listed_at
from hosts.models import Host
from hosts.region.flavors import FLAVORS, doomed_flavor_ids
from hosts.region.moving import MIGRATIONS
from hosts.region.node import Json, Node
from hosts.region.registry import DumpOptions, Ledger, Phase, RegionSection, Shape, Step, registry
from hosts.region.run import ImportRun, Unique
from hosts.region.servers import SERVERS
from hosts.region.writing import ROWS_PER_PART, write_part

RULES: Final = "headroom.flavor_group_rules"
GROUPS: Final = "headroom.flavor_groups"
FLAVOR_GROUPS: Final = "flavor groups"
GONE_FLAVORS: Final = "flavors that are gone"
RESOURCES: Final = ("ram", "cores", "instances")
FLAGS: Final = ("handles_commitments", "handles_dry_run", "has_capacity", "has_quota")


def register() -> None:
    """Register the sections and steps of this module."""
    registry.add(
        RegionSection(path=RULES, reader=_read_rules, dumper=_dump_rules),
        RegionSection(path=GROUPS, shape=Shape.MAP, reader=_read_groups, dumper=_dump_groups),
        Step(Phase.WRITE, 59, GONE_FLAVORS, _find_gone_flavors, is_divided=True),
        Step(
            Phase.WRITE,
            60,
            "policy of flavor groups",
            _write_policy,
            after=frozenset({RULES, GROUPS}),
        ),
        Step(Phase.WRITE, 61, "flavor groups", _write, is_divided=True),
        Step(Phase.FINISH, 10, "rooms of hosts", _rebuild_rooms, is_divided=True),
        Step(Phase.FINISH, 20, "in-flight reservations", _end_in_flight, is_divided=True),
        Step(
            Phase.FINISH,
            25,
            "VMs that move",
            _hold_moving,
            after=frozenset({MIGRATIONS, SERVERS}),
            is_divided=True,
        ),
    )
    registry.ledger = Ledger(lock_zones=zone_lock, settle=_settle)


def _settle(host_ids: Collection[int]) -> None:
    hold_moving_vms_of(host_ids)
    rebuild_host_capacity(sorted(host_ids))


def _read_rules(run: ImportRun) -> Callable[[Node], None]:
    rules: list[tuple[str, str]] = []
    run.stash[RULES] = rules
    unique = Unique("flavor group rule")

    def read(node: Node) -> None:
        rule = node.text("group"), node.text("flavor")
        unique.check(node, rule)
        rules.append(rule)

    return read


def _read_groups(run: ImportRun) -> Callable[[Node], None]:
    groups: dict[str, dict[str, int | bool]] = {}
    run.stash[GROUPS] = groups
    unique = Unique("flavor group")
    unset = FlavorGroupSettings()

    def read(node: Node) -> None:
        name = node.label.removeprefix(".")
        problem = group_name_problem(name)
        if problem is not None or len(name) > 255:  # noqa: PLR2004 - length of the column
            raise node.error("", problem or "name is longer than 255 characters")
        unique.check(node, name)
        columns: dict[str, int | bool] = {
            "ram_unit_gib": node.integer("ram_unit_gib", high=MAX_RAM_UNIT_GIB, default=0)
        }
        for resource in RESOURCES:
            flags = node.child(resource, required=False)
            for flag in FLAGS:
                column = f"{resource}_{flag}"
                columns[column] = flags.boolean(flag, default=bool(getattr(unset, column)))
        groups[name] = columns

    return read


def _find_gone_flavors(run: ImportRun) -> None:
    """Ask a live cloud about flavors that its list lacks, before any transaction begins."""
    run.stash[GONE_FLAVORS] = doomed_flavor_ids(run)


def _write(run: ImportRun) -> None:
    if run.live is not None and FLAVORS not in run.sections_seen:
        return
    gone = run.stash[GONE_FLAVORS]
    may_go = unused_groups(gone)
    refreshed = partial(
        refresh_flavor_groups,
        actor=run.actor,
        request_id=run.request_id,
        without_flavor_ids=gone,
        may_go=may_go,
    )
    refresh = write_part(run, refreshed, zones=zones_of_groups() if may_go else ())
    counts = run.report.of(FLAVOR_GROUPS)
    counts.created += len(refresh.created)
    counts.updated += len(refresh.updated) + len(refresh.retired)
    counts.unchanged += len(refresh.unchanged)
    counts.removed += len(refresh.removed)
    for name in refresh.retired:
        run.report.keep(FLAVOR_GROUPS, name, "retired", "commitments refer to it")
    if {FLAVORS, RULES} & run.sections_seen:
        for flavor, reason in refresh.skipped_flavors:
            run.report.keep(FLAVORS, flavor, reason, "belongs to no flavor group")
    for rule, elsewhere in overruled_rules():
        listed = ", ".join(f"{flavor} in {group}" for flavor, group in elsewhere)
        run.report.notes.append(
            f"rule {rule.flavor_pattern} -> {rule.group} does not apply to flavors that name their "
            f"group themselves (quota:hw_version): {listed}"
        )


def _write_policy(run: ImportRun) -> None:
    if RULES in run.sections_seen:
        _write_rules(run)
    if GROUPS in run.sections_seen:
        _write_settings(run)


def _write_rules(run: ImportRun) -> None:
    counts = run.report.of(RULES)
    rules: list[tuple[str, str]] = run.stash[RULES]
    known = {(row.group_name, row.flavor_pattern): row for row in FlavorGroupRule.objects.all()}
    for position, rule in enumerate(rules):
        row = known.pop(rule, None)
        if row is not None and row.position == position:
            counts.unchanged += 1
            continue
        save_group_rule(
            rule_id=None if row is None else row.pk,
            group_name=rule[0],
            flavor_pattern=rule[1],
            position=position,
            actor=run.actor,
            request_id=run.request_id,
        )
        counts.created += row is None
        counts.updated += row is not None
    if run.prunes(RULES):
        for row in known.values():
            remove_group_rule(rule_id=row.pk, actor=run.actor, request_id=run.request_id)
            counts.removed += 1


def _write_settings(run: ImportRun) -> None:
    counts = run.report.of(GROUPS)
    groups: dict[str, dict[str, int | bool]] = run.stash[GROUPS]
    known = {row.group_name: row for row in FlavorGroupSettings.objects.all()}
    # RAM units are checked against stored amounts one by one. In this order each check sees the
    # unit that applies in the end: `*` is saved after those it does not speak for, removed first.
    for name in sorted(groups, key=lambda one: (one == CATCH_ALL, one)):
        row = known.pop(name, None)
        if row is not None and _columns_of(row) == groups[name]:
            counts.unchanged += 1
            continue
        save_group_settings(
            group_name=name,
            settings=groups[name],
            actor=run.actor,
            request_id=run.request_id,
            reason="region file",
        )
        counts.created += row is None
        counts.updated += row is not None
    if run.prunes(GROUPS):
        for name in sorted(known, key=lambda one: (one != CATCH_ALL, one)):
            remove_group_settings(group_name=name, actor=run.actor, request_id=run.request_id)
            counts.removed += 1


def _columns_of(row: FlavorGroupSettings) -> dict[str, Any]:
    return {name: getattr(row, name) for name in SETTINGS_FIELDS}


def _rebuild_rooms(run: ImportRun) -> None:
    """Look at every room, also those that the import did not change."""
    if run.live is not None and not run.prunes(SERVERS):
        return
    host_ids = list(Host.objects.order_by("pk").values_list("pk", flat=True))
    for part in in_chunks(host_ids, ROWS_PER_PART):
        write_part(run, partial(_settle, part))


def _end_in_flight(run: ImportRun) -> None:
    if SERVERS in run.sections_seen:
        after_vm_changes()


def _hold_moving(run: ImportRun) -> None:
    """Hold room on both hosts of VMs that a live cloud moves; files do not tell of these."""
    if run.live is None:
        return
    listed_until = run.live.began if SERVERS in run.sections_seen else listed_at(PassKind.CHANGES)
    if listed_until is not None:
        forget_moved_vms(listed_until)
    hold_moving_vms()


def _dump_rules(_: DumpOptions) -> Iterator[Json]:
    for rule in FlavorGroupRule.objects.order_by("position", "id"):
        yield {"group": rule.group_name, "flavor": rule.flavor_pattern}


def _dump_groups(_: DumpOptions) -> Iterator[Json]:
    for row in FlavorGroupSettings.objects.order_by("group_name"):
        yield (
            row.group_name,
            {
                "ram_unit_gib": row.ram_unit_gib,
                **{
                    resource: {flag: getattr(row, f"{resource}_{flag}") for flag in FLAGS}
                    for resource in RESOURCES
                },
            },
        )
