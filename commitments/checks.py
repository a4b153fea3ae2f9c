"""System checks of what is told to Limes (spec commitments, 3.3); they read the database."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.core.checks import CheckMessage, Info, Tags, Warning, register  # noqa: A004 - its name
from django.db import DatabaseError

from capacity.groups.group_settings import CATCH_ALL, SHIPPED
from capacity.groups.reading import load_group_definitions, load_group_settings
from commitments.domain.service_info import ram_unit_warning
from journal.errors import NotReady


@register(Tags.database)
def check_ram_units(
    databases: Collection[str] | None = None,
    **kwargs: Any,  # Any: Django's own signature
) -> list[CheckMessage]:
    """Warn of flavor groups whose unit of memory is unset, or is not the one of their flavors.

    Says nothing while there are no flavor groups, or no tables yet.
    """
    if not databases:
        return []
    try:
        groups, chosen = load_group_definitions(), load_group_settings()
    except (DatabaseError, NotReady):
        return []
    if chosen.get(CATCH_ALL) is SHIPPED[CATCH_ALL]:
        message = "no flavor group has settings: as shipped, memory of each is committed in GiB"
        return [Info(message, id="commitments.I001")]
    problems = {name: ram_unit_warning(groups[name], chosen) for name in sorted(groups)}
    return [
        Warning(f"flavor group {name}: {problem}", id="commitments.W001")
        for name, problem in problems.items()
        if problem is not None
    ]
