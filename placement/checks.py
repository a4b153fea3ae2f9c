"""System checks of the Placement API's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004 - Django's name

from placement.policy import BASE_RULES, RULES

TAG: Final = "placement"


@register(TAG)
def check_policy_file(**kwargs: Any) -> list[CheckMessage]:  # Any: Django's own signature
    """Report a policy file that cannot be used, and rules in it that nothing asks for."""
    del kwargs
    name = settings.HEADROOM.placement.policy_file
    if not name:
        return []
    try:
        rules = yaml.safe_load(Path(name).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        message = f"HEADROOM_PLACEMENT__POLICY_FILE: {name} cannot be read: {error}"
        return [Error(message, id="placement.E001")]
    if not isinstance(rules, dict):
        message = (
            f"HEADROOM_PLACEMENT__POLICY_FILE: {name} holds no rules but {type(rules).__name__}"
        )
        return [Error(message, id="placement.E001")]
    unknown = sorted(set(map(str, rules)) - set(RULES) - set(BASE_RULES))
    if unknown:
        message = f"{name} has rules that nothing asks for: {', '.join(unknown)}"
        return [Warning(message, id="placement.W002")]
    return []


@register(TAG)
def check_open_server(**kwargs: Any) -> list[CheckMessage]:  # Any: Django's own signature
    """Warn of an open Placement API outside development."""
    del kwargs
    if settings.HEADROOM.auth != "noauth" or settings.DEBUG:
        return []
    message = "HEADROOM_AUTH=noauth: whoever can reach the Placement API may change all of it"
    return [Warning(message, id="placement.W001")]
