from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from django.conf import settings as django_settings
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from django.test import TransactionTestCase, override_settings
from hypothesis import HealthCheck, settings

from tests.clean_tables import CleanTables
from tests.examples import is_thorough, scaled
from tests.fuzz.region import Known, build_region


@pytest.fixture(scope="module", autouse=True)
def noauth() -> Iterator[None]:
    """Let everybody in, from the first request on: who may do what is tested elsewhere."""
    environment = django_settings.HEADROOM.model_copy(update={"auth": "noauth"})
    with override_settings(HEADROOM=environment):
        yield


@contextmanager
def without_closing_connections() -> Iterator[None]:
    """Keep the connection with the test's transaction open between requests."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@contextmanager
def rolled_back() -> Iterator[None]:
    """Undo at the end whatever is written inside; durable transactions may run in it."""
    outer = transaction.atomic()
    outer._from_testcase = True  # type: ignore[attr-defined]  # as Django's own TestCase does
    with outer:
        yield
        transaction.set_rollback(True)


@pytest.fixture(scope="module")
def region(
    django_db_setup: None, django_db_blocker: Any, noauth: None
) -> Iterator[tuple[Known, ...]]:
    """Build the region once for all tests of a module, each of which undoes what it writes.

    It is committed, so that what the process keeps of rows (host table, pipelines, groups) serves
    all requests: in a transaction that has written each of them would load everything anew.
    Tests of modules marked ``transaction=True`` get the region back after each test.
    """
    del django_db_setup, noauth
    with django_db_blocker.unblock(), without_closing_connections(), ExitStack() as undo:
        undo.callback(CleanTables.now().restore)
        known = build_region()
        clean = CleanTables.now()
        undo.enter_context(
            patch.object(TransactionTestCase, "_fixture_teardown", lambda _: clean.restore())
        )
        yield known


def bounded(examples: int) -> settings:
    """Return settings for so many examples, always the same ones.

    With ``HYPOTHESIS_PROFILE=thorough`` there are five times as many, and new ones each time.
    """
    return settings(
        max_examples=scaled(examples),
        derandomize=not is_thorough(),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
