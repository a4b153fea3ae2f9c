"""How many examples a hypothesis test takes, in step with the profile (``HYPOTHESIS_PROFILE``)."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

DEFAULT_EXAMPLES = 100
THOROUGH_EXAMPLES = 500


def is_thorough() -> bool:
    return settings().max_examples > DEFAULT_EXAMPLES


def scaled(examples: int) -> int:
    """Return how many examples of a test stand for ``examples`` of the default profile."""
    return max(1, examples * settings().max_examples // DEFAULT_EXAMPLES)


def few(examples: int = 20, **others: Any) -> settings:
    """Return settings for a test whose examples are dear: database, HTTP, files.

    With ``HYPOTHESIS_PROFILE=thorough`` there are five times as many. ``others`` are settings of
    hypothesis, such as ``phases``.
    """
    return settings(max_examples=scaled(examples), **others)
