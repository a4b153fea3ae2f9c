"""What hosts themselves say about their VMs (spec failover, 5.3, 9.2 step 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hosts.domain.vm_list import active_hosts
from hosts.vm_source import reporting_hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneReports:
    """Lists of the hosts of a zone that report any.

    Attributes:
        lists: Host -> VMs that it runs; hosts that report nothing at all are missing.
        known: VMs that some host reports, running or not.
        active_host: VM -> the first host that runs it.
    """

    lists: Mapping[str, frozenset[str]] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    active_host: Mapping[str, str] = field(default_factory=dict)


def read_reports(zone: str) -> ZoneReports:
    """Return what the hosts of a zone report."""
    hosts = reporting_hosts(zone)
    return ZoneReports(
        lists={
            host.name: frozenset(vm.vm_uuid for vm in host.vms if vm.is_active) for host in hosts
        },
        known=frozenset(vm.vm_uuid for host in hosts for vm in host.vms),
        active_host=active_hosts(hosts),
    )
