from __future__ import annotations

from typing import Any

import pytest

from tests.placement.client import PlacementClient, placement_settings


@pytest.fixture
def placement(settings: Any) -> PlacementClient:
    """An administrator at the latest version, on a server that believes its callers."""
    placement_settings(settings, enforce_new_defaults=True)
    return PlacementClient()
