"""A new process loads its providers before the first request asks for them (placement, 9.4)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from placement.selectors.snapshot import current_snapshot
from placement.warming import warm_up
from tests.placement.client import placement_settings
from tests.placement.rows import make_provider
from tests.process_tables import reset_snapshot

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_first_search_only_asks_what_changed(settings: Any) -> None:
    placement_settings(settings, warm_up=True)
    host = make_provider("host", inventories={"VCPU": 8})
    reset_snapshot()
    thread = warm_up()
    assert thread is not None
    thread.join()
    with CaptureQueriesContext(connection) as captured:
        snapshot = current_snapshot()
    assert len(captured) == 1
    (block,) = snapshot.summaries.blocks
    assert block is not None
    assert str(host.uuid).encode() in block.text


@pytest.mark.parametrize("options", [{"warm_up": False}, {"warm_up": True, "snapshot": "off"}])
def test_nothing_is_loaded_where_that_is_not_wanted(settings: Any, options: dict[str, Any]) -> None:
    placement_settings(settings, **options)
    assert warm_up() is None


def test_a_process_starts_without_its_database(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement_settings(settings, warm_up=True)

    def broken() -> None:
        raise OperationalError

    monkeypatch.setattr("placement.warming.current_snapshot", broken)
    thread = warm_up()
    assert thread is not None
    thread.join()
    assert not thread.is_alive()


def test_an_empty_region_is_loaded_too(settings: Any) -> None:
    placement_settings(settings, warm_up=True)
    reset_snapshot()
    thread = warm_up()
    assert thread is not None
    thread.join()
    assert len(current_snapshot()) == 0
