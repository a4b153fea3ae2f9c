"""Writing what operators decide about flavor groups (spec liquid, 6.4; spec commitments, 4.1).

Both are policy kept in rows: validated here, audited, and announced in the outbox. They join the
caller's transaction, because the admin's form view opens one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models, transaction

from capacity.groups.group_settings import CATCH_ALL
from capacity.hooks import hooks
from capacity.models import FlavorGroupRule, FlavorGroupSettings
from core.audited_rows import AuditedRows
from journal.actors import Actor
from journal.errors import InvalidInput
from scheduling.resources import GIB

SETTINGS_TOPIC = "flavor_group_settings"
RULES_TOPIC = "flavor_group_rule"
_FLAGS = ("handles_commitments", "handles_dry_run", "has_capacity", "has_quota")
SETTINGS_FIELDS = (
    "ram_unit_gib",
    *(f"{resource}_{flag}" for resource in ("ram", "cores", "instances") for flag in _FLAGS),
)
RULE_FIELDS = ("group_name", "flavor_pattern", "position")


def group_name_problem(name: str) -> str | None:
    """Return why settings cannot have this name, or None.

    ``*`` stands alone: settings match a group by its exact name or as the catch-all, never as a
    pattern (spec liquid, 6.4).
    """
    if name == CATCH_ALL:
        return None
    if not name or name != name.strip() or CATCH_ALL in name:
        return "must be a group's name, or a single * for groups without settings of their own"
    return None


def save_group_settings(
    *,
    group_name: str,
    settings: Mapping[str, int | bool],
    actor: Actor,
    request_id: str,
    reason: str = "",
) -> FlavorGroupSettings:
    """Create or change the settings of a flavor group; nothing is written when nothing differs.

    Args:
        group_name: Name of the group, or ``*`` for every group without settings of its own.
        settings: Columns to set, of :data:`SETTINGS_FIELDS`; others keep what they are.
        reason: Why, for the audit trail.

    Returns:
        The row as it is now.

    Raises:
        InvalidInput: a name is unknown, a setting is out of range, or stored commitments are no
            whole number of the new RAM unit: Limes could not save such a unit.

    Source: spec liquid, 6.4, 12.2.
    """
    unknown = sorted(set(settings) - set(SETTINGS_FIELDS))
    if unknown:
        raise InvalidInput(f"unknown flavor group settings: {', '.join(unknown)}")
    problem = group_name_problem(group_name)
    if problem is not None:
        raise InvalidInput(f"group_name {group_name!r}: {problem}")
    with transaction.atomic():
        row = (
            FlavorGroupSettings.objects.select_for_update(no_key=True)
            .filter(group_name=group_name)
            .first()
        )
        row = row or FlavorGroupSettings(group_name=group_name)
        for name, content in settings.items():
            setattr(row, name, content)
        problem = unit_problem(group_name, row.ram_unit_gib)
        if problem is not None:
            raise InvalidInput(f"flavor group {group_name}: {problem}")
        _check(row)
        SETTINGS.save(row, actor=actor, request_id=request_id, reason=reason)
    return row


def unit_problem(group_name: str, ram_unit_gib: int | None) -> str | None:
    """Return why a group cannot have this RAM unit from now on, or None.

    Limes rescales all it keeps when a unit changes, and refuses an info that leaves fractions.

    Args:
        group_name: Name of the group, or ``*`` for every group without settings of its own.
        ram_unit_gib: The wanted unit of its own settings, 0 for 1 GiB; None once they are removed.

    Source: spec liquid, 12.2.
    """
    units = dict(FlavorGroupSettings.objects.values_list("group_name", "ram_unit_gib"))
    fallback_gib = None if group_name == CATCH_ALL else units.get(CATCH_ALL)
    before_gib = units.get(group_name, fallback_gib) or 1
    unit_gib = (fallback_gib if ram_unit_gib is None else ram_unit_gib) or 1
    if unit_gib == before_gib or unit_gib < 1:
        return None
    broken = hooks.broken_amounts(group_name, list(units.keys() - {group_name}), unit_gib * GIB)
    if not broken:
        return None
    return (
        f"ram_unit_gib: {broken} commitments, ended ones included, are no multiple of "
        f"{unit_gib} GiB; Limes keeps them and would refuse the unit"
    )


def remove_group_settings(*, group_name: str, actor: Actor, request_id: str) -> None:
    """Remove a group's own settings: from then on ``*`` applies to it.

    Raises:
        InvalidInput: stored commitments are no whole number of the RAM unit that applies then.

    Source: spec liquid, 6.4, 12.2.
    """
    with transaction.atomic():
        row = FlavorGroupSettings.objects.select_for_update().filter(group_name=group_name).first()
        if row is None:
            return
        problem = unit_problem(group_name, None)
        if problem is not None:
            raise InvalidInput(f"settings of flavor group {group_name} must stay: {problem}")
        SETTINGS.remove(row.pk, actor=actor, request_id=request_id)


def save_group_rule(
    *,
    rule_id: int | None,
    group_name: str,
    flavor_pattern: str,
    position: int,
    actor: Actor,
    request_id: str,
) -> FlavorGroupRule:
    """Create or change a rule that groups flavors by name.

    It takes effect at the next refresh of flavor groups.

    Args:
        rule_id: Row to change; a new rule when None.
        group_name: Group that matching flavors go to.
        flavor_pattern: Shell glob on the flavor name, case-sensitive.
        position: Lower is tried first.

    Raises:
        InvalidInput: a field is empty, or the same rule exists.

    Source: spec commitments, 4.1; spec region-file, ``flavor_group_rules``.
    """
    with transaction.atomic():
        known = FlavorGroupRule.objects.select_for_update()
        row = None if rule_id is None else known.filter(pk=rule_id).first()
        row = row or FlavorGroupRule()
        row.group_name, row.flavor_pattern, row.position = group_name, flavor_pattern, position
        _check(row)
        RULES.save(row, actor=actor, request_id=request_id)
    return row


def remove_group_rule(*, rule_id: int, actor: Actor, request_id: str) -> None:
    """Remove a rule; flavors it grouped leave their group at the next refresh."""
    RULES.remove(rule_id, actor=actor, request_id=request_id)


def _check(row: models.Model) -> None:
    try:
        row.full_clean()
    except ValidationError as error:
        problems = "; ".join(
            f"{field}: {' '.join(texts)}" for field, texts in sorted(error.message_dict.items())
        )
        raise InvalidInput(problems) from error


def _fields(*names: str) -> Callable[[models.Model], Mapping[str, Any]]:
    return lambda row: {name: getattr(row, name) for name in names}


SETTINGS: Final = AuditedRows(
    model=FlavorGroupSettings,
    object_type=SETTINGS_TOPIC,
    fields=_fields(*SETTINGS_FIELDS),
    name=lambda row: row.group_name,
    topic=SETTINGS_TOPIC,
    tells_new=True,
)
RULES: Final = AuditedRows(
    model=FlavorGroupRule,
    object_type=RULES_TOPIC,
    fields=_fields(*RULE_FIELDS),
    topic=RULES_TOPIC,
    tells_new=True,
)
