"""Rules on what hosts may promise: edited with an audit entry, applied by a task (spec hosts, C.5).

Locks: one host's row a transaction, then its room. Two looks at once do the same.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import transaction

from core.audited_rows import AuditedRows
from hosts.domain.overcommit import (
    CPU,
    MEMORY,
    OvercommitRule,
    overcommit_of,
    stored_ratios,
)
from hosts.models import Host
from hosts.models import OvercommitRule as RuleRow
from hosts.region.registry import registry
from hosts.services.host_orders import OF_RATIOS, set_overcommit
from journal.actors import Actor
from journal.nudges import hint_worker
from journal.services import Change, record_changes

RECONCILE: Final = "hosts.reconcile_overcommit"
OBJECT_TYPE: Final = "overcommit_rule"


def save_rule(row: RuleRow, *, actor: Actor, request_id: str) -> RuleRow:
    """Store a rule that was checked (``full_clean``), new or edited; hosts follow at once.

    Raises:
        django.db.IntegrityError: The row breaks a rule of the table.
    """
    if RULES.save(row, actor=actor, request_id=request_id):
        _have_hosts_follow()
    return row


def remove_rule(*, pk: int, actor: Actor, request_id: str) -> None:
    """Forget a rule; one that is gone already is no error."""
    if RULES.remove(pk, actor=actor, request_id=request_id):
        _have_hosts_follow()


def reconcile_overcommit(*, actor: Actor, request_id: str) -> int:
    """Let hosts promise what rules say of their traits; return how many changed."""
    rules = stored_rules()
    hosts = Host.objects.filter(is_self_described=False).order_by("pk")
    rows = hosts.values_list("pk", "traits", "custom_traits", "ruled_overcommit")
    differing = [
        pk
        for pk, traits, own, ruled in rows.iterator(chunk_size=2000)
        if _wanted([*traits, *own], rules) != ruled
    ]
    changed = 0
    for pk in differing:
        with transaction.atomic(durable=True):
            changed += _follow(pk, rules, actor=actor, request_id=request_id)
    return changed


def _follow(pk: int, rules: tuple[OvercommitRule, ...], *, actor: Actor, request_id: str) -> bool:
    host = (
        Host.objects.select_for_update(no_key=True, of=("self",))
        .filter(pk=pk, is_self_described=False)
        .first()
    )
    if host is None:
        return False
    ratios = overcommit_of([*host.traits, *host.custom_traits], rules)
    if (stored_ratios(ratios) or None) == host.ruled_overcommit:
        return False
    before = _facts(host)
    set_overcommit(host, ruled=ratios)
    host.generation += 1
    host.save(update_fields=["ruled_overcommit", *OF_RATIOS, "generation"])
    registry.ledger.settle([host.pk])
    change = Change(
        action="host_changed",
        object_type="host",
        object_id=host.name,
        before=before,
        after=_facts(host),
        reason="overcommit rules",
    )
    record_changes([change], actor=actor, request_id=request_id)
    return True


def _wanted(traits: list[str], rules: tuple[OvercommitRule, ...]) -> dict[str, str] | None:
    return stored_ratios(overcommit_of(traits, rules)) or None


def stored_rules() -> tuple[OvercommitRule, ...]:
    """Return the rules that operators edited, in order of their positions."""
    return tuple(
        OvercommitRule(
            ratios={
                resource: ratio
                for resource, ratio in ((CPU, row.cpu_ratio), (MEMORY, row.memory_ratio))
                if ratio is not None
            },
            trait=row.has_trait or row.hasnt_trait,
            is_present=bool(row.has_trait),
        )
        for row in RuleRow.objects.order_by("position")
    )


def _facts(host: Host) -> dict[str, Any]:
    return {
        "overcommit": {CPU: float(host.vcpus_ratio), MEMORY: float(host.memory_ratio)},
        "ruled_overcommit": host.ruled_overcommit,
    }


def _record(row: RuleRow) -> dict[str, Any]:
    ratios = {CPU: row.cpu_ratio, MEMORY: row.memory_ratio}
    return {
        "position": row.position,
        "has_trait": row.has_trait,
        "hasnt_trait": row.hasnt_trait,
        **{name: None if ratio is None else float(ratio) for name, ratio in ratios.items()},
    }


def _have_hosts_follow() -> None:
    transaction.on_commit(lambda: hint_worker(RECONCILE), robust=True)


RULES: Final = AuditedRows(model=RuleRow, object_type=OBJECT_TYPE, fields=_record)
