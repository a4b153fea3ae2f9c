"""What every test shares: deterministic hypothesis profile and clean per-process caches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from django.test import TransactionTestCase, override_settings
from hypothesis import HealthCheck, settings

from journal import heavy
from journal.collector import spare_what_is_loaded
from tests.clean_tables import CleanTables
from tests.e2e.own_postgres import migrated, with_region  # noqa: F401 - fixtures
from tests.examples import DEFAULT_EXAMPLES, THOROUGH_EXAMPLES
from tests.kube.plugin import api_server, own_api_server  # noqa: F401 - fixtures
from tests.peers.plugin import fake_cloud, keystone  # noqa: F401 - fixtures
from tests.process_tables import reset_host_table, reset_snapshot
from tests.static_files import listed_once

settings.register_profile(
    "default",
    max_examples=DEFAULT_EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "thorough", parent=settings.get_profile("default"), max_examples=THOROUGH_EXAMPLES
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_finish() -> None:
    """Spare the collector all tests and what they load; children that are forked share it, too."""
    spare_what_is_loaded()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Empty the tables that a test has written, instead of all of them."""
    with django_db_blocker.unblock():
        clean = CleanTables.now()
    with patch.object(TransactionTestCase, "_fixture_teardown", lambda _: clean.restore()):
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords() -> Iterator[None]:
    with override_settings(PASSWORD_HASHERS=["tests.passwords.QuickHasher"]):
        yield


@pytest.fixture(scope="session", autouse=True)
def _computations_wait_for_nobody() -> Iterator[None]:
    """Compute apart, but at no lower priority: beside busy workers a test would wait for long."""
    with patch.multiple(heavy, NICENESS=0, QUICK_SECONDS=3600.0):
        yield


@pytest.fixture(scope="session", autouse=True)
def _static_files_listed_once() -> Iterator[None]:
    with listed_once():
        yield


@pytest.fixture(autouse=True)
def _clean_process_tables() -> Iterator[None]:
    """Forget what the process keeps of rows: tests truncate tables, which production never does."""
    reset_host_table()
    reset_snapshot()
    yield
    reset_host_table()
    reset_snapshot()
