"""System checks of pipelines (spec scheduling, 9.1); they read the database."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.core.checks import CheckMessage, Tags, Warning, register  # noqa: A004 - its name
from django.db import DatabaseError

from capacity.nova.pipelines import stored_pipeline_warnings


@register(Tags.database)
def check_pipelines(
    databases: Collection[str] | None = None,
    **kwargs: Any,  # Any: Django's own signature
) -> list[CheckMessage]:
    """Warn of pipelines that let slots or VMs where they may not run; nothing without tables."""
    if not databases:
        return []
    try:
        warnings = stored_pipeline_warnings()
    except DatabaseError:
        return []
    return [
        Warning(f"pipeline {name}: {line}", id="capacity.W001")
        for name, lines in sorted(warnings.items())
        for line in lines
    ]
