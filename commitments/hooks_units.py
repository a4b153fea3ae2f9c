"""What a declared RAM unit must divide (spec liquid, 12.2)."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import F
from django.db.models.functions import Mod

from commitments.models import Commitment, ResourceType

EVERY_OTHER_GROUP = "*"


def count_broken_amounts(group_name: str, excepted: Collection[str], unit_bytes: int) -> int:
    """Return how many commitments of memory, ended ones included, are no multiple of a unit.

    Args:
        group_name: Flavor group, or ``*`` for all but ``excepted``.
        excepted: Groups with a unit of their own.
        unit_bytes: Bytes of the unit.
    """
    rows = Commitment.objects.filter(resource_type=ResourceType.MEMORY)
    if group_name == EVERY_OTHER_GROUP:
        rows = rows.exclude(flavor_group_name__in=list(excepted))
    else:
        rows = rows.filter(flavor_group_name=group_name)
    return rows.annotate(rest=Mod(F("requested_amount"), unit_bytes)).exclude(rest=0).count()
