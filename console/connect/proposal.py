"""What is written for a cloud that nobody decided anything about: rules, settings, policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from django.db import transaction

from capacity.groups.editing import save_group_rule, save_group_settings
from capacity.groups.flavor_groups import FlavorSpec, GroupRule
from capacity.groups.group_settings import GroupSettings
from capacity.groups.proposals import proposed_rules, proposed_settings
from capacity.groups.refreshing import load_rules
from capacity.models import FlavorGroupRule, FlavorGroupSettings
from core.text import plural
from failover.conf import SHIPPED_REQUIREMENTS
from failover.models import FailoverPolicy
from failover.services.policies import save_policy
from journal.actors import Actor


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What could be written.

    Attributes:
        rules: Which flavors share a group.
        settings: What groups offer, by name.
        policies: Flavor pattern -> reservations for failover.
    """

    rules: tuple[GroupRule, ...]
    settings: Mapping[str, GroupSettings]
    policies: Mapping[str, int]

    def lines(self) -> Iterator[str]:
        """Yield it for people."""
        for rule in self.rules:
            yield f"flavors {rule.flavor_pattern} are of group {rule.group}"
        for name, group in self.settings.items():
            yield f"memory of group {name} can be committed, in units of {group.ram_unit_gib} GiB"
        for pattern, count in self.policies.items():
            yield f"VMs of flavors {pattern} have {plural(count, 'reservation')} for failover"


def propose(flavors: Iterable[FlavorSpec]) -> Proposal:
    """Return what is not decided yet for the flavors of a cloud."""
    known = tuple(flavors)
    rules = proposed_rules(known, load_rules())
    configured = FlavorGroupSettings.objects.values_list("group_name", flat=True)
    return Proposal(
        rules=rules,
        settings=proposed_settings(known, (*load_rules(), *rules), configured),
        policies={} if FailoverPolicy.objects.exists() else SHIPPED_REQUIREMENTS,
    )


def write_proposal(proposal: Proposal, *, actor: Actor, request_id: str) -> None:
    """Write all of it, or nothing."""
    with transaction.atomic(durable=True):
        first = FlavorGroupRule.objects.count()
        for position, rule in enumerate(proposal.rules, start=first):
            save_group_rule(
                rule_id=None,
                group_name=rule.group,
                flavor_pattern=rule.flavor_pattern,
                position=position,
                actor=actor,
                request_id=request_id,
            )
        for name, group in proposal.settings.items():
            save_group_settings(
                group_name=name,
                settings=_columns(group),
                actor=actor,
                request_id=request_id,
                reason="proposed by connect",
            )
        for position, (pattern, count) in enumerate(proposal.policies.items()):
            save_policy(
                policy_id=None,
                pattern=pattern,
                required_count=count,
                position=position,
                actor=actor,
                request_id=request_id,
            )


def _columns(group: GroupSettings) -> dict[str, int | bool]:
    columns: dict[str, int | bool] = {"ram_unit_gib": group.ram_unit_gib}
    for resource in ("ram", "cores", "instances"):
        flags = asdict(getattr(group, resource))
        columns |= {f"{resource}_{name}": flag for name, flag in flags.items()}
    return columns
