"""What every section of the deployment settings has: no unknown names, durations in words."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationInfo, field_validator

from config.durations import parse_seconds


class Section(BaseModel, extra="forbid"):
    """A group of settings; those in seconds may be written as durations (``5m``, ``500ms``)."""

    @field_validator("*", mode="before")
    @classmethod
    def _durations(cls, raw: Any, info: ValidationInfo) -> Any:  # Any: what the environment holds
        return with_duration(raw, info)


def with_duration(raw: Any, info: ValidationInfo) -> Any:  # Any: what the environment holds
    """Return a setting with a duration turned into seconds, if it is one in seconds.

    Raises:
        ValueError: it is neither a number nor a duration.
    """
    is_in_seconds = (info.field_name or "").endswith("_seconds")
    return parse_seconds(raw) if is_in_seconds and isinstance(raw, str) else raw
