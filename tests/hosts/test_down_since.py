"""Since when a host is down or being terminated: a fact of its own, whoever writes the row."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from hosts.models import Host
from journal.clock import database_now
from tests.factories import make_host
from tests.hosts.region_files import load, small_region, write_file

pytestmark = pytest.mark.django_db

LONG_AGO = timedelta(days=3)


@pytest.mark.sql("hosts_host_keep_absence")
@pytest.mark.parametrize(
    ("fact", "there", "gone"),
    [
        ("down_since", {"state": "down"}, {"state": "up"}),
        ("down_since", {"state": "down"}, {"state": "unknown"}),
        ("terminating_since", {"maintenance": "termination"}, {"maintenance": ""}),
        ("terminating_since", {"maintenance": "termination"}, {"maintenance": "ha"}),
    ],
)
def test_it_is_set_kept_and_forgotten_with_the_state(
    fact: str, there: dict[str, str], gone: dict[str, str]
) -> None:
    host = make_host()
    assert getattr(host, fact) is None
    before = database_now()
    Host.objects.update(**there)
    host.refresh_from_db()
    since = getattr(host, fact)
    assert since is not None
    assert abs(since - before) < timedelta(minutes=5)
    Host.objects.update(**{fact: since - LONG_AGO})
    Host.objects.update(**there, disabled_reason="still so", updated_at=timezone.now())
    host.refresh_from_db()
    host.save()
    host.refresh_from_db()
    assert getattr(host, fact) == since - LONG_AGO
    Host.objects.update(**gone)
    host.refresh_from_db()
    assert getattr(host, fact) is None
    Host.objects.update(**there)
    host.refresh_from_db()
    assert getattr(host, fact) >= since


def test_a_new_host_may_be_down(tmp_path: Path) -> None:
    assert make_host(state="down").down_since is None  # the trigger knows, the object does not yet
    assert Host.objects.get().down_since is not None


def test_an_import_keeps_it_while_other_facts_change(tmp_path: Path) -> None:
    region = small_region()
    load(write_file(tmp_path, region))
    Host.objects.update(created_at=timezone.now() - LONG_AGO, updated_at=timezone.now() - LONG_AGO)
    before = database_now()
    (hypervisor,) = region["compute"]["hypervisors"]
    hypervisor["state"] = "down"
    load(write_file(tmp_path, region))
    since = Host.objects.get().down_since
    assert since is not None
    assert since >= before - timedelta(minutes=5)
    Host.objects.update(down_since=since - LONG_AGO)
    hypervisor["status"] = "disabled"
    load(write_file(tmp_path, region))
    assert Host.objects.get().down_since == since - LONG_AGO
    hypervisor["state"] = "up"
    load(write_file(tmp_path, region))
    assert Host.objects.get().down_since is None
