"""Writing how many reservations flavors need, and what a pattern would mean (spec failover, 6).

Joins the caller's transaction, because the admin's form view opens one of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from django.db import transaction
from django.db.models import Count

from core.audited_rows import AuditedRows
from failover.domain.patterns import matches, pattern_problem
from failover.models import FailoverPolicy
from hosts.models import Flavor, Instance
from journal.actors import Actor
from journal.errors import InvalidInput

TOPIC = "failover_policy"


class InvalidPattern(InvalidInput):
    """A flavor pattern that nothing can match."""

    code = "failover_invalid_pattern"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternPreview:
    """What a pattern would mean now.

    Attributes:
        flavors: Names of the flavors that match, sorted.
        vms: VMs of them.
    """

    flavors: tuple[str, ...]
    vms: int


def preview_pattern(pattern: str) -> PatternPreview:
    """Return which flavors match a pattern, and how many VMs they have."""
    counts = Counter(
        dict(
            Instance.objects.filter(host__isnull=False)
            .order_by("flavor_name")
            .values_list("flavor_name")
            .annotate(vms=Count("pk"))
        )
    )
    names = {*Flavor.objects.values_list("name", flat=True), *counts}
    matching = sorted(name for name in names if matches(pattern, name))
    return PatternPreview(flavors=tuple(matching), vms=sum(counts[name] for name in matching))


def save_policy(
    *,
    policy_id: int | None,
    pattern: str,
    required_count: int,
    position: int,
    actor: Actor,
    request_id: str,
) -> FailoverPolicy:
    """Create or change a policy; nothing is written when nothing differs.

    Args:
        policy_id: Key of the policy; None makes one.
        pattern: Flavor pattern.
        required_count: Reservations that VMs of matching flavors need.
        position: Place in the list.

    Raises:
        InvalidPattern: the pattern is malformed.
    """
    problem = pattern_problem(pattern)
    if problem or not pattern:
        raise InvalidPattern(problem or "a pattern is needed", pattern=pattern)
    with transaction.atomic():
        known = FailoverPolicy.objects.select_for_update(no_key=True)
        row = known.filter(pk=policy_id).first() if policy_id is not None else None
        row = row or FailoverPolicy()
        row.flavor_pattern, row.required_count = pattern, required_count
        row.position = position
        POLICIES.save(row, actor=actor, request_id=request_id)
    return row


def remove_policy(*, policy_id: int, actor: Actor, request_id: str) -> None:
    """Remove a policy; what VMs have beyond their need then goes with the next run."""
    POLICIES.remove(policy_id, actor=actor, request_id=request_id)


def _columns(row: FailoverPolicy) -> Mapping[str, object]:
    return {
        "flavor_pattern": row.flavor_pattern,
        "required_count": row.required_count,
        "position": row.position,
    }


POLICIES: Final = AuditedRows(
    model=FailoverPolicy,
    object_type=TOPIC,
    fields=_columns,
    name=lambda row: row.flavor_pattern,
    topic=TOPIC,
)
