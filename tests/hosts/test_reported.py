"""What hypervisors report of themselves: kept as it is said, by one entry."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, transaction

from hosts.domain.vm_list import ReportedVM, ReportingHost
from hosts.feed.reported import ReportedResult, keep_reported_instances
from hosts.models import Host
from hosts.vm_source import reporting_hosts
from tests.concurrency.at_once import wait_for_a_blocked_session
from tests.factories import make_host

ONE = ReportedVM(vm_uuid="vm-1", name="one", is_active=True)
TWO = ReportedVM(vm_uuid="vm-2", name="two", is_active=False)


@pytest.mark.django_db(transaction=True)
def test_a_list_is_read_as_it_was_reported_and_again_writes_nothing() -> None:
    make_host("h1")
    make_host("h2")
    assert keep_reported_instances({"h1": [TWO, ONE], "h2": []}).changed == ("h1", "h2")
    expected = [ReportingHost(name="h1", vms=(ONE, TWO)), ReportingHost(name="h2")]
    assert reporting_hosts() == expected

    before = list(Host.objects.order_by("name").values_list("changed_xid", "updated_at"))
    assert keep_reported_instances({"h1": [ONE, TWO], "h2": []}).changed == ()
    assert list(Host.objects.order_by("name").values_list("changed_xid", "updated_at")) == before


@pytest.mark.django_db(transaction=True)
def test_a_host_that_reports_no_more_is_not_one_without_vms() -> None:
    make_host("h1")
    make_host("h2")
    keep_reported_instances({"h1": [ONE], "h2": [TWO]})
    assert keep_reported_instances({"h1": None}).changed == ("h1",)
    assert reporting_hosts() == [ReportingHost(name="h2", vms=(TWO,))]


@pytest.mark.django_db(transaction=True)
def test_a_vm_that_is_said_twice_runs_if_one_says_so() -> None:
    make_host("h1")
    stopped = ReportedVM(vm_uuid="vm-1", name="one", is_active=False)
    keep_reported_instances({"h1": [ONE, stopped]})
    assert reporting_hosts() == [ReportingHost(name="h1", vms=(ONE,))]


@pytest.mark.django_db(transaction=True)
def test_hosts_that_nobody_knows_are_named_and_the_others_written() -> None:
    make_host("h1")
    told = keep_reported_instances({"h1": [ONE], "nobody": [TWO]})
    assert told == ReportedResult(changed=("h1",), unknown=("nobody",))


@pytest.mark.django_db(transaction=True)
def test_reports_wait_for_who_writes_the_host_and_undo_nothing() -> None:
    make_host("h1")

    def report() -> None:
        try:
            keep_reported_instances({"h1": [ONE]})
        finally:
            connection.close()

    thread = threading.Thread(target=report)
    with transaction.atomic():
        Host.objects.filter(name="h1").update(disabled_reason="upgrade")
        thread.start()
        wait_for_a_blocked_session()
    thread.join()
    host = Host.objects.get()
    assert host.disabled_reason == "upgrade"
    assert reporting_hosts() == [ReportingHost(name="h1", vms=(ONE,))]
