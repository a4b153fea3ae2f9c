"""System checks of who may come in."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning, register  # noqa: A004 - Django's name


@register("security")
def check_plain_tokens(**kwargs: Any) -> list[CheckMessage]:  # Any: Django's own signature
    """Warn of static tokens that stand readable in the environment of a production process."""
    environment = settings.HEADROOM
    plain = sorted(known.name for known in environment.plain_tokens)
    if environment.debug or environment.auth != "token" or not plain:
        return []
    message = (
        f"the tokens of {', '.join(plain)} are readable in the settings: keep their hashes in "
        "HEADROOM_TOKENS_FILE instead (./run manage make_token), which may change without a restart"
    )
    return [Warning(message, id="journal.W001")]
