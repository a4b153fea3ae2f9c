"""What is known of the region as a whole: its name, and where and when its lists were taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from django.db import transaction

from hosts.models import Region

CREATED: Final = "created"
UPDATED: Final = "updated"
UNCHANGED: Final = "unchanged"


def keep_region(
    told: Mapping[str, object], *, otherwise: Mapping[str, object] | None = None
) -> str:
    """Write what files and clouds tell of the region: the one writer of its row.

    Args:
        told: Column -> what it becomes.
        otherwise: Column -> what it becomes where it is empty so far.

    Returns:
        What that did: ``created``, ``updated`` or ``unchanged``.
    """
    known = Region.objects.first()
    if known is not None and not _differing(known, told, otherwise or {}):
        return UNCHANGED
    with transaction.atomic():
        row, is_new = Region.objects.select_for_update().get_or_create(singleton=True)
        differing = _differing(row, told, otherwise or {})
        for column, wanted in differing.items():
            setattr(row, column, wanted)
        row.save(update_fields=list(differing))
    return CREATED if is_new else UPDATED


def _differing(
    row: Region, told: Mapping[str, object], otherwise: Mapping[str, object]
) -> dict[str, object]:
    missing = {column: wanted for column, wanted in otherwise.items() if not getattr(row, column)}
    wanted_by_column = {**missing, **told}
    return {
        column: wanted
        for column, wanted in wanted_by_column.items()
        if getattr(row, column) != wanted
    }
