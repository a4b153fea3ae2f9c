"""Since when conditions of hosts stand as they do (spec hosts, C.3, D.2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from core.sql import load_sql
from hosts.models import Host, HostCondition
from tests.examples import few
from tests.factories import make_host

KEPT = "hosts_host_keep_conditions"
pytestmark = [pytest.mark.django_db, pytest.mark.sql("hosts_host_keep_conditions")]


def report(host: Host, conditions: dict[str, Any], **reasons: dict[str, str]) -> None:
    Host.objects.filter(pk=host.pk).update(conditions=conditions, condition_reasons=reasons)


def kept(host: Host) -> dict[str, tuple[str, str, str]]:
    rows = HostCondition.objects.filter(host=host)
    return {row.type: (row.status, row.reason, row.message) for row in rows}


def age(host: Host, **since: timedelta) -> dict[str, datetime | None]:
    """Make conditions older than they are, and return since when each stands."""
    for row in HostCondition.objects.filter(host=host):
        assert row.last_transition_at is not None
        if row.type in since:
            row.last_transition_at -= since[row.type]
            row.save()
    return moments(host)


def moments(host: Host) -> dict[str, datetime | None]:
    rows = HostCondition.objects.filter(host=host)
    return {row.type: row.last_transition_at for row in rows}


def test_a_condition_stands_since_its_status_changed() -> None:
    host = make_host("h1", conditions={"Ready": "True", "Tainted": "False"})
    report(host, {"Ready": "True", "Tainted": "False"}, Ready={"reason": "Ready"})
    before = age(host, Ready=timedelta(days=1), Tainted=timedelta(days=2))

    told = {"reason": "Offboarded", "message": "by ann"}
    report(host, {"Ready": "False", "Tainted": "False"}, Ready=told, Tainted={"message": "no"})

    assert kept(host) == {
        "Ready": ("False", "Offboarded", "by ann"),
        "Tainted": ("False", "", "no"),
    }
    after = moments(host)
    assert after["Tainted"] == before["Tainted"]
    assert after["Ready"] is not None
    assert before["Ready"] is not None
    assert after["Ready"] - before["Ready"] > timedelta(hours=23)

    report(host, {"Tainted": "False"})
    assert list(kept(host)) == ["Tainted"]
    host.delete()
    assert not HostCondition.objects.exists()


def test_truth_values_and_what_is_not_stated_are_as_schedulers_read_them() -> None:
    host = make_host("h1")
    report(host, {"Ready": True, "HypervisorDisabled": False, "Terminating": None, "t" * 300: "x"})
    assert kept(host) == {"Ready": ("True", "", ""), "HypervisorDisabled": ("False", "", "")}


def test_other_changes_of_a_host_write_no_condition() -> None:
    host = make_host("h1", conditions={"Ready": "True"})
    before = HostCondition.objects.values_list("pk", "last_transition_at").get()
    Host.objects.filter(pk=host.pk).update(state="down")
    report(host, {"Ready": "True"})
    assert HostCondition.objects.values_list("pk", "last_transition_at").get() == before


def test_of_conditions_from_before_nobody_knows_since_when() -> None:
    host = make_host("h1", conditions={"Ready": "True"})
    HostCondition.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute(load_sql("hosts", KEPT))
        cursor.execute(load_sql("hosts", KEPT))
    assert moments(host) == {"Ready": None}
    report(host, {"Ready": "False"})
    assert moments(host)["Ready"] is not None


LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
STATED = st.dictionaries(
    st.sampled_from(["Ready", "Tainted", "Evicting"]), st.sampled_from(["True", "False", "Unknown"])
)


@few(15)
@given(st.lists(STATED, max_size=6))
def test_rows_are_what_is_stated_after_whatever_reports(reports: list[dict[str, str]]) -> None:
    Host.objects.filter(name="drawn").delete()
    host = make_host("drawn")
    stated: dict[str, str] = {}
    for conditions in reports:
        HostCondition.objects.filter(host=host).update(last_transition_at=LONG_AGO)
        report(host, conditions)
        fresh = {
            row.type
            for row in HostCondition.objects.filter(host=host)
            if row.last_transition_at != LONG_AGO
        }
        assert fresh == {kind for kind in conditions if stated.get(kind) != conditions[kind]}
        stated = conditions
    assert {kind: status for kind, (status, _, _) in kept(host).items()} == stated
