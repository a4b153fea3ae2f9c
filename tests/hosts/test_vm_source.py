"""Where VMs come from (spec failover, 5)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hosts.domain.vm import VM
from hosts.domain.vm_list import ReportedVM, ReportingHost, active_hosts, vms_on_hosts
from hosts.models import Host
from hosts.vm_source import (
    DatabaseVMSource,
    FlavorRecord,
    ServerRecord,
    VMSourceError,
    reporting_hosts,
)
from tests.factories import make_flavor, make_host, make_vm

GIB = 1 << 30


class Reader:
    """Servers and flavors of a test; an exception in place of either is raised."""

    def __init__(
        self,
        servers: Sequence[ServerRecord] | Exception = (),
        flavors: Sequence[FlavorRecord] | Exception = (),
    ) -> None:
        self._servers = servers
        self._flavors = flavors

    def servers(
        self, *, vm_uuid: str | None = None, project_id: str | None = None
    ) -> Sequence[ServerRecord]:
        if isinstance(self._servers, Exception):
            raise self._servers
        return [
            row
            for row in self._servers
            if vm_uuid in {None, row.vm_uuid} and project_id in {None, row.project_id}
        ]

    def flavors(self) -> Sequence[FlavorRecord]:
        if isinstance(self._flavors, Exception):
            raise self._flavors
        return self._flavors


def server(
    uuid: str, flavor: str = "m1.large", host: str = "host1", status: str = "ACTIVE"
) -> ServerRecord:
    number = uuid[-1]
    return ServerRecord(uuid, uuid, status, f"project-{number}", flavor, host, "az-a")


LARGE = FlavorRecord("m1.large", 4, 8192)
SMALL = FlavorRecord("m1.small", 2, 4096)
BROKEN = OSError("connection lost")


def test_vms_have_the_size_of_their_flavor() -> None:
    servers = [server("vm-1"), server("vm-2", "m1.small", "host2")]
    first, second = DatabaseVMSource(Reader(servers, [LARGE, SMALL])).list_vms()
    assert (first.vm_uuid, first.host, first.project_id) == ("vm-1", "host1", "project-1")
    assert (first.memory_bytes, first.vcpus) == (8589934592, 4)
    assert (second.vm_uuid, second.vcpus, second.os_type) == ("vm-2", 2, "unknown")


@pytest.mark.parametrize(
    ("one", "flavors"),
    [
        pytest.param(server("vm-1", host=""), [LARGE], id="no host"),
        pytest.param(server("vm-1", flavor="gone"), [LARGE], id="unknown flavor"),
    ],
)
def test_vm_without_host_or_flavor_is_left_out(
    one: ServerRecord, flavors: list[FlavorRecord]
) -> None:
    source = DatabaseVMSource(Reader([one], flavors))
    assert source.list_vms() == []
    assert source.get_vm("vm-1") is None


@pytest.mark.parametrize(
    ("reader", "what"),
    [
        pytest.param(Reader(BROKEN, [LARGE]), "servers", id="servers"),
        pytest.param(Reader([server("vm-1")], BROKEN), "flavors", id="flavors"),
    ],
)
def test_failure_says_what_could_not_be_read(reader: Reader, what: str) -> None:
    source = DatabaseVMSource(reader)
    with pytest.raises(VMSourceError, match=f"failed to read {what}: connection lost"):
        source.list_vms()
    with pytest.raises(VMSourceError):
        source.list_vms_on_hosts([], trust_host_location=True)


def test_single_vms_and_projects_are_found() -> None:
    servers = [server("vm-1"), server("vm-2"), server("vm-3", status="DELETED")]
    source = DatabaseVMSource(Reader(servers, [LARGE]))
    assert [vm.vm_uuid for vm in source.list_vms_by_project("project-2")] == ["vm-2"]
    assert source.get_vm("vm-9") is None
    assert [source.is_server_active(f"vm-{n}") for n in (1, 3, 9)] == [True, False, False]


def test_deleted_vm_is_described_as_long_as_its_row_is_there() -> None:
    source = DatabaseVMSource(Reader([server("vm-1"), server("vm-2", "gone")], [LARGE]))
    info = source.get_deleted_vm_info("vm-1")
    assert info is not None
    assert (info.project_id, info.zone, info.memory_mib, info.vcpus) == (
        "project-1",
        "az-a",
        8192,
        4,
    )
    assert source.get_deleted_vm_info("vm-9") is None
    with pytest.raises(VMSourceError, match="flavor gone is not known"):
        source.get_deleted_vm_info("vm-2")


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_extra_specs_that_cannot_be_read_are_none(text: str) -> None:
    flavor = FlavorRecord("m1.large", 4, 8192, 0, text)
    (vm,) = DatabaseVMSource(Reader([server("vm-1")], [flavor])).list_vms()
    assert vm.extra_specs == {}


def host(text: str) -> ReportingHost:
    """Return the host of a text like ``host1[vm-1,!vm-2]``; ``!`` marks one that is stopped."""
    name, _, listed = text.rstrip("]").partition("[")
    vms = [one for one in listed.split(",") if one]
    return ReportingHost(
        name=name,
        vms=tuple(
            ReportedVM(vm_uuid=one.lstrip("!"), is_active=not one.startswith("!")) for one in vms
        ),
    )


@pytest.mark.parametrize(
    ("hosts", "vms", "by_list", "by_host"),
    [
        pytest.param(
            "host1[vm-1] host2[vm-2]",
            "vm-1@host1 vm-2@host2",
            "vm-1@host1 vm-2@host2",
            "vm-1@host1 vm-2@host2",
            id="agree",
        ),
        pytest.param(
            "host1[vm-1] host2[]", "vm-1@host1 vm-2@host2", "vm-1@host1", "vm-1@host1", id="nowhere"
        ),
        pytest.param("host1[!vm-1]", "vm-1@host1", "", "", id="inactive"),
        pytest.param("host1[] host2[vm-1]", "vm-1@host1", "", "vm-1@host2", id="on another host"),
        pytest.param(
            "host1[vm-1] host2[vm-1]", "vm-1@host2", "vm-1@host2", "vm-1@host1", id="on two hosts"
        ),
        pytest.param("host1[vm-1]", "", "", "", id="not in the list"),
        pytest.param("", "vm-1@host1", "", "", id="no hosts"),
        pytest.param("host1[]", "vm-1@host1", "", "", id="empty host"),
    ],
)
def test_vms_run_where_list_and_hosts_say(hosts: str, vms: str, by_list: str, by_host: str) -> None:
    listed = [VM(vm_uuid=one.split("@")[0], host=one.split("@")[1]) for one in vms.split()]
    reports = [host(text) for text in hosts.split()]

    def found(*, trust: bool) -> str:
        kept = vms_on_hosts(listed, reports, trust_host_location=trust).vms
        return " ".join(f"{vm.vm_uuid}@{vm.host}" for vm in kept)

    assert found(trust=False) == by_list
    assert found(trust=True) == by_host


def test_what_is_left_out_is_counted() -> None:
    listed = [VM(vm_uuid=f"vm-{n}", host=name) for n, name in enumerate(["h1", "h1", "h9", "h2"])]
    reports = [host("h1[vm-0,stranger]"), host("h2[vm-1,vm-0]")]
    by_list = vms_on_hosts(listed, reports, trust_host_location=False)
    assert (by_list.unknown_host, by_list.elsewhere, by_list.nowhere) == (1, 1, 1)
    assert (by_list.not_in_list, by_list.not_reported) == (("stranger",), 2)
    assert vms_on_hosts(listed, reports, trust_host_location=True).duplicates == 1
    assert active_hosts(reports) == {"vm-0": "h1", "stranger": "h1", "vm-1": "h2"}


@pytest.mark.django_db
def test_vms_are_read_from_the_rows_of_the_region() -> None:
    make_flavor("m1.large", memory_mib=8192, vcpus=4)
    make_vm("one", make_host("host1"), openstack_id="vm-1", flavor_name="m1.large")
    make_vm("two", None, openstack_id="vm-2", flavor_name="m1.large")
    Host.objects.update(reported_instances=[{"id": "vm-1", "name": "one", "active": True}])
    source = DatabaseVMSource()
    (vm,) = source.list_vms()
    assert (vm.vm_uuid, vm.host, vm.memory_bytes) == ("vm-1", "host1", 8 * GIB)
    assert vm.extra_specs == {"capabilities:hypervisor_type": "qemu"}
    assert source.list_vms_on_hosts(reporting_hosts(), trust_host_location=True) == [vm]
