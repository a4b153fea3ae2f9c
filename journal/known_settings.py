"""Settings, found fast.

Django's lazy settings look for a mask on every value they hand out, which takes a settings tree ten
microseconds; a small answer asks for ten of them.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.signals import setting_changed

NAME = "HEADROOM"

_known: dict[str, Any] = {}  # Any: such as the tree of config.environment, a floor above


def headroom() -> Any:  # Any: as above
    """Return the deployment's settings tree; a test that changes it is noticed."""
    try:
        return _known[NAME]
    except KeyError:
        return _known.setdefault(NAME, settings.HEADROOM)


def known_setting(name: str) -> Any:  # Any: as above
    """Return one of Django's settings; a test that changes it is noticed."""
    try:
        return _known[name]
    except KeyError:
        return _known.setdefault(name, getattr(settings, name))


def _forget(*, setting: str, **_: object) -> None:
    _known.pop(setting, None)


setting_changed.connect(_forget, dispatch_uid="journal.known_settings")
