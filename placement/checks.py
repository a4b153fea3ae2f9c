"""System checks of the Placement API's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004 - Django's name

from journal.policy import UnusablePolicyError
from placement.policy import RULES, Policy

TAG: Final = "placement"
RULE_PREFIX: Final = "placement:"


@register(TAG)
def check_policy_file(**kwargs: Any) -> list[CheckMessage]:  # Any: Django's own signature
    """Report a policy file that cannot be used, and rules in it that nothing asks for."""
    name = settings.HEADROOM.placement.policy_file
    if not name:
        return []
    try:
        Policy(policy_file=name, enforces_new_defaults=True)
    except UnusablePolicyError as error:
        message = f"HEADROOM_PLACEMENT__POLICY_FILE: {name} cannot be used: {error}"
        return [Error(message, id="placement.E001")]
    rules = yaml.safe_load(Path(name).read_text(encoding="utf-8")) or {}
    ours = {str(rule) for rule in rules if str(rule).startswith(RULE_PREFIX)}
    unknown = sorted(ours - set(RULES))
    if unknown:
        message = f"{name} has rules that nothing asks for: {', '.join(unknown)}"
        return [Warning(message, id="placement.W002")]
    return []
