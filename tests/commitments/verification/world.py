"""What the tests of slots over time share."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.models import AllocationState

# What a transaction wrote itself is no change to it: looks at changes need real commits.
follows_changes = pytest.mark.django_db(transaction=True)

CONFIRMED, EXPECTED = AllocationState.CONFIRMED, AllocationState.EXPECTED


def use_slots(settings: Any, **changes: Any) -> None:
    changed = settings.HEADROOM.slots.model_copy(update=changes)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"slots": changed})
